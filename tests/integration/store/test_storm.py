"""One instance's experience with a node spares the others theirs."""

import pytest

from dragoman.domain.storm import StormSettings, StormVerdict
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.storm import CoolDowns, Storm
from support.redis_servers import Connect

SETTINGS = StormSettings(debounce_window_s=60, unavailable_ttl_s=600, rate_limit=5, rate_window_s=600)


@pytest.fixture
def storm(redis: Redis, keys: Keys) -> Storm:
    return Storm(redis, keys, SETTINGS)


async def test_a_report_marks_its_service_and_the_next_ones_count_once(storm: Storm, redis: Redis, keys: Keys) -> None:
    assert await storm.report("n", "asr@1") is StormVerdict.MARKED
    assert await storm.report("n", "asr@1") is StormVerdict.DEBOUNCED
    assert await storm.report("n", "nmt@1") is StormVerdict.MARKED
    assert set((await storm.cooling("n")).services) == {"asr@1", "nmt@1"}
    assert 0 < await redis.call("PTTL", keys.storm("n")) <= 600_000


async def test_storm_report_of_one_instance_is_read_by_another(storm: Storm, connect: Connect, keys: Keys) -> None:
    other = Storm(await connect(), keys, SETTINGS)
    await storm.report("n", "asr@1")
    assert await other.report("n", "asr@1") is StormVerdict.DEBOUNCED
    assert await other.cooling("n") == await storm.cooling("n")
    assert await other.cooling("another") == CoolDowns()


async def test_a_node_that_keeps_on_reporting_cools_down_whole(storm: Storm) -> None:
    for _ in range(SETTINGS.rate_limit):
        assert await storm.report("n", "asr@1") is not StormVerdict.RATE_LIMITED
    assert "*" not in (await storm.cooling("n")).services
    assert await storm.report("n", "asr@1") is StormVerdict.RATE_LIMITED
    cooling = (await storm.cooling("n")).services
    assert cooling["*"] >= cooling["asr@1"]


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
