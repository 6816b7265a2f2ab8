"""What a session leaves in Redis to be resumed: only its owner of now writes, and nothing is had twice or missed."""

import asyncio
from typing import Any

import pytest

from dragoman.store.keys import Keys
from dragoman.store.owners import Owners
from dragoman.store.redis import Redis
from dragoman.store.sessions import MAX_BYTES, MAX_ENTRIES, MAX_PARKED, ResumableSessions, Resumed
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


async def test_of_many_that_resume_at_once_each_has_an_epoch_of_its_own_and_the_last_one_the_session(
    sessions: ResumableSessions, connect: Connect, keys: Keys
) -> None:
    other = store(await connect(), keys)
    taken = await asyncio.gather(*(resumed((sessions, other)[n % 2], instance=f"i{n}") for n in range(20)))
    assert sorted(each.epoch for each in taken) == list(range(2, 22))
    verdicts = [await sessions.write("s", each.epoch, 1, b"x") for each in taken]
    assert verdicts.count(b"OK") == 1
    assert await sessions.epoch("s") == 21


@pytest.mark.parametrize(
    ("token", "subject", "last_seq"), [("wrong", "user", 0), ("token", "other", 0), ("token", "user", 4)]
)
async def test_resume_is_denied_with_a_wrong_token_or_an_impossible_sequence(
    sessions: ResumableSessions, token: str, subject: str, last_seq: int
) -> None:
    await fill(sessions, 3)
    assert await sessions.resume("s", token, subject, last_seq, "thief") == "DENIED"
    assert await sessions.epoch("s") == 1
    assert await sessions.write("s", 1, 4, b"still mine") == b"OK"


async def test_the_token_itself_is_not_kept(sessions: ResumableSessions, redis: Redis, keys: Keys) -> None:
    assert b"token" not in (await redis.call("HGETALL", keys.session_state("s")))[1::2]


async def test_unknown_session_is_reported_as_missing(sessions: ResumableSessions) -> None:
    assert await sessions.resume("nobody", "token", "user", 0, "b") == "NONE"
    assert await sessions.write("nobody", 1, 1, b"x") == b"FENCED"
    assert await sessions.park("nobody", b"x") == "NONE"
    assert await sessions.epoch("nobody") is None


# -- the outbox -------------------------------------------------------------------------------------


async def test_confirmed_messages_are_deleted_and_cannot_be_requested(sessions: ResumableSessions) -> None:
    await fill(sessions, 5)
    assert await sessions.free("s", 1, 3) == 3
    assert await sessions.free("s", 1, 3) == 0
    assert await sessions.resume("s", "token", "user", 2, "b") == "TOO_OLD"
    assert (await resumed(sessions, last_seq=3)).outbox == [b"frame 4", b"frame 5"]


async def test_everything_confirmed_leaves_nothing_to_send(sessions: ResumableSessions) -> None:
    await fill(sessions, 3)
    await sessions.free("s", 1, 3)
    assert (await resumed(sessions, last_seq=3)).outbox == []
    assert await sessions.resume("s", "token", "user", 2, "b") == "TOO_OLD"


async def test_a_message_whose_answer_was_lost_is_not_written_twice(sessions: ResumableSessions) -> None:
    assert await sessions.write("s", 1, 1, b"once") == b"OK"
    assert await sessions.write("s", 1, 1, b"once") == b"OK"
    assert (await resumed(sessions)).outbox == [b"once"]


async def test_state_that_comes_late_by_a_connection_that_was_given_up_does_not_replace_what_is_newer(
    sessions: ResumableSessions,
) -> None:
    assert await sessions.write("s", 1, fields={"next_index": 7}, version=2) == b"OK"
    assert await sessions.write("s", 1, fields={"next_index": 6}, version=1) == b"OK"
    state = (await resumed(sessions)).state
    assert (state["next_index"], state["version"]) == ("7", "2")


async def test_nothing_is_written_before_the_message_that_was_sent_before_it(sessions: ResumableSessions) -> None:
    await fill(sessions, 1)
    assert await sessions.write("s", 1, 3, b"frame 3", {"next_index": 3}, after=2) == b"EARLY"
    assert await sessions.write("s", 1, fields={"next_index": 3}, after=3) == b"EARLY"
    assert await sessions.write("s", 1, 2, b"frame 2", {"next_index": 2}, after=1) == b"OK"
    assert await sessions.write("s", 2, 4, b"not mine", after=3) == b"FENCED"
    taken = await resumed(sessions)
    assert (taken.outbox, taken.state["next_index"]) == ([b"frame 1", b"frame 2"], "2")


async def test_a_full_outbox_gives_up_its_oldest_by_number(sessions: ResumableSessions) -> None:
    await fill(sessions, MAX_ENTRIES + 3)
    assert await sessions.resume("s", "token", "user", 2, "b") == "TOO_OLD"
    taken = await resumed(sessions, last_seq=3)
    assert (len(taken.outbox), taken.outbox[0]) == (MAX_ENTRIES, b"frame 4")


async def test_a_full_outbox_gives_up_its_oldest_by_bytes(
    sessions: ResumableSessions, redis: Redis, keys: Keys
) -> None:
    half = b"x" * (MAX_BYTES // 2)
    for seq in (1, 2, 3):
        assert await sessions.write("s", 1, seq, half) == b"OK"
    assert await redis.call("HGET", keys.session_state("s"), "outbox_bytes") == str(MAX_BYTES).encode()
    assert await sessions.write("s", 1, 4, b"") == b"OK", "an empty frame takes no room"
    assert await sessions.write("s", 1, 5, b"x" * (MAX_BYTES + 1)) == b"OK"
    assert await redis.call("HGET", keys.session_state("s"), "outbox_bytes") == b"0"
    assert await sessions.resume("s", "token", "user", 4, "b") == "TOO_OLD", "even the last was too large to be kept"
    assert (await resumed(sessions, last_seq=5)).outbox == []


async def test_the_oldest_of_a_full_outbox_may_be_empty(sessions: ResumableSessions) -> None:
    assert await sessions.write("s", 1, 1, b"") == b"OK"
    for seq in range(2, MAX_ENTRIES + 2):
        assert await sessions.write("s", 1, seq, b"x") == b"OK"
    assert len((await resumed(sessions, last_seq=1)).outbox) == MAX_ENTRIES


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


async def test_nothing_is_parked_beside_an_owner_that_was_not_asked(
    sessions: ResumableSessions, redis: Redis, keys: Keys
) -> None:
    assert await sessions.park("s", b"x") == "OWNED"
    assert await sessions.park("s", b"x", "somebody else") == "OWNED"
    await redis.call("DEL", keys.session_owner("s"))
    assert await sessions.park("s", b"x", "a") == "OK", "who was asked is gone"
    taken = await resumed(sessions)
    assert await sessions.parked("s", taken.epoch) == [b"x"]


async def test_number_of_parked_results_is_bounded(sessions: ResumableSessions) -> None:
    verdicts = await asyncio.gather(*(sessions.park("s", b"x", "a") for _ in range(MAX_PARKED + 2)))
    assert verdicts == ["OK"] * MAX_PARKED + ["FULL"] * 2


# -- the end ----------------------------------------------------------------------------------------


async def test_a_session_that_ends_leaves_nothing(sessions: ResumableSessions, redis: Redis, keys: Keys) -> None:
    await fill(sessions, 1)
    await sessions.park("s", b"x", "a")
    assert await sessions.end("s", 1)
    assert await sessions.end("s", 1), "asking twice changes nothing"
    names = [keys.session_state("s"), keys.session_outbox("s"), keys.session_parked("s")]
    assert [await redis.call("EXISTS", name) for name in names] == [0, 0, 0]
    assert await sessions.resume("s", "token", "user", 0, "b") == "NONE"


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
