"""Jobs, slots, turns and cool-downs in Redis."""

import asyncio

import pytest

from dragoman.domain.storm import StormSettings, StormVerdict
from dragoman.store.jobs import JOB_TTL_MS, Binding, Jobs, Turns
from dragoman.store.keys import Keys
from dragoman.store.nodes import CoolDowns, Reservations, Reserved, ReserveReply, Storm
from dragoman.store.redis import Redis
from support.redis_servers import Connect
from support.waiting import wait_until


@pytest.fixture
def jobs(redis: Redis, keys: Keys) -> Jobs:
    return Jobs(redis, keys)


# -- requests ---------------------------------------------------------------------------------------


async def test_expired_lock_loses_the_binding_and_releases_no_other_lock(jobs: Jobs) -> None:
    assert await jobs.lock("r", "slow") == b"OK"
    await jobs.redis.call("PEXPIRE", jobs.keys.request_lock("r"), 1)
    await wait_until(lambda: jobs.lock("r", "fast"))
    assert await jobs.bind("r", Binding("fast", "i1")) == b"OK"
    assert await jobs.bind("r", Binding("slow", "i2")) is None
    assert await jobs.unlock("r", "slow") == b"OTHER"
    assert await jobs.unlock("r", "fast") == b"OK"
    assert await jobs.unlock("r", "fast") == b"NONE"
    assert jobs.parse_binding(await jobs.binding("r")) == Binding("fast", "i1")


# -- the job itself ---------------------------------------------------------------------------------


async def test_a_job_is_recorded_created_or_dispatched_at_once(jobs: Jobs, redis: Redis, keys: Keys) -> None:
    assert await jobs.create("waiting", {"session_id": "s"}) == b"OK"
    assert await jobs.create("placed", {"session_id": "s"}, node="n", epoch=7) == b"OK"
    assert await jobs.create("placed", {"session_id": "other"}, node="m") == b"ALREADY"
    waiting, placed = await jobs.get("waiting"), await jobs.get("placed")
    assert waiting is not None
    assert placed is not None
    assert (waiting["state"], waiting["attempt"], waiting["session_id"], waiting["v"]) == ("CREATED", "1", "s", "1")
    assert "node_id" not in waiting
    assert (placed["state"], placed["node_id"], placed["node_epoch"]) == ("DISPATCHED", "n", "7")
    assert placed["created_ms"] == placed["dispatched_ms"]
    assert placed["session_id"] == "s"
    assert 0 < await redis.call("PTTL", keys.job("placed")) <= JOB_TTL_MS
    assert await jobs.get("unknown") is None


async def test_jobs_of_a_driver_are_listed_by_deadline(jobs: Jobs) -> None:
    await asyncio.gather(jobs.driven("i", "late", 3000), jobs.driven("i", "soon", 1000), jobs.driven("i", "mid", 2000))
    assert await jobs.driven_by("i", 2) == ["soon", "mid"]
    await jobs.undriven("i", "soon")
    assert await jobs.driven_by("i", 10) == ["mid", "late"]
    assert await jobs.driven_by("nobody", 10) == []


TTL_MS = 60_000


@pytest.fixture
def slots(redis: Redis, keys: Keys) -> Reservations:
    return Reservations(redis, keys, TTL_MS)


async def take(slots: Reservations, job: str, limit: int, node: str = "n") -> Reserved:
    return Reserved.parse(await slots.reserve(node, job, limit))


async def test_a_slot_is_taken_held_and_refused(slots: Reservations, redis: Redis, keys: Keys) -> None:
    assert await take(slots, "j1", 2) == Reserved(ReserveReply.OK)
    assert await take(slots, "j1", 2) == Reserved(ReserveReply.HELD)
    assert await take(slots, "j2", 2) == Reserved(ReserveReply.OK)
    refused = await take(slots, "j3", 2)
    assert refused.verdict is ReserveReply.FULL
    assert 0 < refused.free_in_ms <= TTL_MS
    assert await slots.held("n") == ["j1", "j2"]
    assert 0 < await redis.call("PTTL", keys.reserved("n")) <= TTL_MS


async def test_a_renewal_keeps_what_is_held_and_names_what_was_lost(slots: Reservations) -> None:
    await take(slots, "j1", 5)
    await take(slots, "j2", 5)
    await slots.release("n", "j2", 5)
    assert await slots.renew("n", ["j1", "j2", "j3"]) == ["j2", "j3"]
    assert await slots.held("n") == ["j1"], "what was lost is not revived: it may be sold"


async def test_a_renewal_of_nothing_loses_nothing(slots: Reservations) -> None:
    assert await slots.renew("n", []) == []


@pytest.fixture
def turns(redis: Redis, keys: Keys) -> Turns:
    return Turns(redis, keys)


async def test_a_turn_is_found_under_its_literal_names(turns: Turns, redis: Redis, prefix: str) -> None:
    session, turn = f"{prefix}-s", f"{prefix}-t"
    await turns.bind(session, turn, "n1")
    assert await redis.call("HGETALL", f"scheduler:turn:{turn}") == [b"affinity_node_id", b"n1"]
    assert await redis.call("HGETALL", f"scheduler:session:{session}") == [b"current_turn_id", turn.encode()]
    assert await redis.call("TTL", f"scheduler:turn:{turn}") == -1
    await turns.end(session, turn)


SETTINGS = StormSettings(debounce_window_s=60, unavailable_ttl_s=600, rate_limit=5, rate_window_s=600)


@pytest.fixture
def storm(redis: Redis, keys: Keys) -> Storm:
    return Storm(redis, keys, SETTINGS)


async def test_storm_report_of_one_instance_is_read_by_another(storm: Storm, connect: Connect, keys: Keys) -> None:
    other = Storm(await connect(), keys, SETTINGS)
    await storm.report("n", "asr@1")
    assert await other.report("n", "asr@1") is StormVerdict.DEBOUNCED
    assert await other.cooling("n") == await storm.cooling("n")
    assert await other.cooling("another") == CoolDowns()


async def test_cool_down_uses_the_clock_of_redis(storm: Storm, redis: Redis, keys: Keys) -> None:
    await storm.report("n", "asr@1")
    seconds, _ = await redis.call_at(keys.storm("n"), "TIME")
    until = (await storm.cooling("n")).services["asr@1"]
    assert int(seconds) * 1000 < until <= (int(seconds) + 1) * 1000 + 600_000


async def test_a_pause_is_the_same_for_every_instance_and_ends_with_the_first_success(
    storm: Storm, connect: Connect, keys: Keys
) -> None:
    other = Storm(await connect(), keys, SETTINGS)
    assert await storm.pause("n") == 2000
    assert await other.pause("n") == 0, "it is paused already"
    told = await other.cooling("n")
    assert (told.pauses, told.services) == (1, {})
    assert told.paused_until_ms > 0
    await other.recovered("n")
    assert await storm.cooling("n") == CoolDowns()
    assert await storm.pause("n") == 2000
