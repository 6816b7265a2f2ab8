"""What a session leaves in Redis to be resumed: only its owner of now writes, and nothing is had twice or missed."""

import asyncio
from typing import Any

import pytest

from dragoman.store.instances import Owners
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.sessions import ResumableSessions, Resumed
from support.redis_servers import Connect
from support.waiting import wait_until

OWNER_TTL_MS, GRACE_MS = 45_000, 30_000
LANGUAGES = {"src_lang": "en", "tgt_lang": "es"}


def store(redis: Redis, keys: Keys, grace_ms: int = GRACE_MS) -> ResumableSessions:
    return ResumableSessions(redis, keys, owner_ttl_ms=OWNER_TTL_MS, grace_ms=grace_ms)


@pytest.fixture
def sessions(runner: asyncio.Runner, redis: Redis, keys: Keys) -> ResumableSessions:
    """Session `s` is open, at instance `a`."""
    made = store(redis, keys)
    runner.run(made.open("s", "token", "user", LANGUAGES))
    runner.run(Owners(redis, keys, OWNER_TTL_MS).claim_session("s", "a"))
    return made


async def resumed(sessions: ResumableSessions, last_seq: int = 0, instance: str = "b") -> Resumed:
    taken = await sessions.resume("s", "token", "user", last_seq, instance)
    assert isinstance(taken, Resumed), taken
    return taken


async def fill(sessions: ResumableSessions, count: int, epoch: int = 1) -> None:
    for seq in range(1, count + 1):
        assert await sessions.write("s", epoch, seq, b"frame %d" % seq, {"next_index": seq}) == b"OK"


async def test_a_session_that_is_there_has_its_time_to_live_whatever_else_is_cut_off(
    redis: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*command: Any) -> "asyncio.Future[Any]":
        if command[0] == "HSET":
            return call(*command)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    call = redis.call
    with monkeypatch.context() as patch:
        patch.setattr(redis, "call", cut_off)
        await store(redis, keys).open("new", "token", "user", LANGUAGES)
    assert OWNER_TTL_MS < await redis.call("PTTL", keys.session_state("new")) <= OWNER_TTL_MS + GRACE_MS


# -- resuming ---------------------------------------------------------------------------------------


async def test_a_session_is_taken_over_with_its_state_and_what_its_client_has_not_had(
    sessions: ResumableSessions, connect: Connect, keys: Keys
) -> None:
    await fill(sessions, 5)
    assert await sessions.park("s", b"late result", "a") == "OK"
    taken = await resumed(store(await connect(), keys), last_seq=2)
    assert (taken.epoch, taken.former_owner) == (2, "a")
    assert taken.outbox == [b"frame 3", b"frame 4", b"frame 5"]
    assert await sessions.parked("s", taken.epoch) == [b"late result"]
    assert taken.state.items() >= {**LANGUAGES, "next_index": "5", "seq": "5", "subject": "user", "v": "1"}.items()


async def test_the_new_owner_is_known_at_once(sessions: ResumableSessions, redis: Redis, keys: Keys) -> None:
    await resumed(sessions)
    assert await Owners(redis, keys, OWNER_TTL_MS).session_owner("s") == "b"
    assert 0 < await redis.call("PTTL", keys.session_owner("s")) <= OWNER_TTL_MS


async def test_former_owner_writes_releases_and_ends_nothing(sessions: ResumableSessions) -> None:
    await fill(sessions, 2)
    taken = await resumed(sessions)
    assert await sessions.write("s", 1, 3, b"mine", {"next_index": 99}) == b"FENCED"
    assert await sessions.free("s", 1, 2) == b"FENCED"
    assert not await sessions.end("s", 1)
    again = await resumed(sessions)
    assert again.outbox == taken.outbox
    assert again.state["next_index"] == "2"


async def test_the_token_itself_is_not_kept(sessions: ResumableSessions, redis: Redis, keys: Keys) -> None:
    assert b"token" not in (await redis.call("HGETALL", keys.session_state("s")))[1::2]


# -- the outbox -------------------------------------------------------------------------------------


async def test_sequence_numbers_may_be_large(sessions: ResumableSessions) -> None:
    large = 2**53 - 2
    assert await sessions.write("s", 1, large, b"x") == b"OK"
    assert (await resumed(sessions, last_seq=large)).outbox == []
    assert await sessions.free("s", 2, large) == 1
    assert await sessions.write("s", 2, large + 1, b"y") == b"OK"
    assert (await resumed(sessions, last_seq=large)).outbox == [b"y"]


async def test_all_of_a_session_lives_until_its_grace_is_over(
    sessions: ResumableSessions, redis: Redis, keys: Keys
) -> None:
    await fill(sessions, 1)
    await sessions.park("s", b"x", "a")
    names = [keys.session_state("s"), keys.session_outbox("s"), keys.session_parked("s")]
    for name in names:
        assert OWNER_TTL_MS < await redis.call("PTTL", name) <= OWNER_TTL_MS + GRACE_MS
    for name in names[:2]:
        await redis.call("PEXPIRE", name, 1000)
    await sessions.keep("s")
    for name in names[:2]:
        assert await redis.call("PTTL", name) > 1000


# -- what came while nobody was there ---------------------------------------------------------------


async def test_parked_results_are_had_in_order_until_they_are_settled(sessions: ResumableSessions) -> None:
    for n in range(3):
        await sessions.park("s", b"%d" % n, "a")
    overtaken = await resumed(sessions)
    taken = await resumed(sessions)
    await sessions.unpark("s", overtaken.epoch, [b"0"])
    found = await sessions.parked("s", taken.epoch)
    assert found == [b"0", b"1", b"2"]
    await sessions.park("s", b"since", "b")
    for _ in range(2):  # two may have read them
        await sessions.unpark("s", taken.epoch, found)
    assert await sessions.parked("s", taken.epoch) == [b"since"]


async def test_parked_results_are_refused_to_a_former_owner(sessions: ResumableSessions) -> None:
    overtaken = await resumed(sessions)
    taken = await resumed(sessions)
    await sessions.park("s", b"late", "b")
    assert await sessions.parked("s", overtaken.epoch) is None
    assert await sessions.parked("s", taken.epoch) == [b"late"]


# -- the end ----------------------------------------------------------------------------------------


async def test_a_session_left_behind_is_overdue_when_its_grace_is_over(
    sessions: ResumableSessions, redis: Redis, keys: Keys
) -> None:
    hasty = store(redis, keys, grace_ms=1)
    await sessions.leave_behind("s", 1)
    assert await sessions.overdue() == [], "its grace is not over"
    await hasty.leave_behind("odd|name", 7)
    assert await wait_until(hasty.overdue) == [("odd|name", 7)]
    assert await hasty.overdue() == [("odd|name", 7)], "it stays until somebody has settled it"
    await hasty.settled("odd|name", 7)
    assert await hasty.overdue() == []


async def test_grace_applies_to_unowned_resumable_sessions(
    sessions: ResumableSessions, redis: Redis, keys: Keys
) -> None:
    assert await sessions.grant_grace("nobody", "dead") == "NONE"
    await redis.call("SET", keys.session_owner("s"), "heir", "PX", 60_000)
    assert await sessions.grant_grace("s", "dead") == "OWNED"
    assert await redis.call("ZRANGE", keys.sessions_grace, 0, -1) == []
    assert await sessions.grant_grace("s", "heir") == "OK"
    await redis.call("DEL", keys.session_owner("s"))
    assert await sessions.grant_grace("s", "dead") == "OK"
    assert await redis.call("ZRANGE", keys.sessions_grace, 0, -1) == [b"s|1"]
