"""The history for the charts: what two instances counted, merged, and bounded in Redis."""

from dragoman.domain.history import KEPT_MS, POINT_MS, SAMPLE_MS
from dragoman.instance.services import Stores
from dragoman.services.history import History
from dragoman.services.metrics import Metrics


class Counting:
    """An instance that counts, with a clock of its own."""

    def __init__(self, name: str, stores: Stores) -> None:
        self.metrics, self.now = Metrics(), 0.0
        self.history = History(name, self.metrics, stores.samples, stores.instances, lambda: self.now)


async def test_history_adds_the_counts_of_two_instances(stores: Stores) -> None:
    both = [Counting(name, stores) for name in ("a", "b")]
    for one in both:
        one.metrics.jobs.labels("ok", "").inc(10)
        one.metrics.stage.labels("result").observe(0.2)
        one.metrics.sessions.set(3)
        one.now = 5.0
        await one.history.run_once()
    taken = await stores.samples.since(0)
    assert [(sample.instance, sample.counters["ended"]) for _, sample in taken] == [("a", 10), ("b", 10)]
    assert sum(taken[0][1].histograms["job_ms"]) == 1
    assert taken[0][1].gauges["sessions"] == 3


async def test_a_sample_has_what_was_counted_since_the_last_one(stores: Stores) -> None:
    one = Counting("a", stores)
    for counted in (4, 0, 3):
        one.metrics.jobs.labels("ok", "").inc(counted)
        one.now += 5.0
        await one.history.run_once()
    assert [sample.counters["ended"] for _, sample in await stores.samples.since(0)] == [4, 0, 3]


async def test_history_is_merged_and_covers_half_an_hour(stores: Stores) -> None:
    one = Counting("a", stores)
    one.metrics.jobs.labels("ok", "").inc(10)
    one.now = 5.0
    await one.history.run_once()
    key, now_ms = stores.keys.history, await stores.instances.now_ms()
    data = (await stores.redis.call("XRANGE", key, "-", "+"))[0][1][3]
    await stores.redis.call("DEL", key)
    for ago in (KEPT_MS + POINT_MS, KEPT_MS // 2, 2 * POINT_MS + SAMPLE_MS):
        await stores.redis.call("XADD", key, f"{now_ms - ago}-0", "v", "1", "data", data)
    await stores.redis.call("PEXPIRE", key, KEPT_MS)
    told = await one.history.points()
    assert [point["ended"] for point in told["points"]] == [2, 2]
    assert all(point["at"] >= told["now_ms"] - KEPT_MS - POINT_MS for point in told["points"])
    last = told["points"][-1]["at"]
    assert [point["at"] for point in (await one.history.points(last))["points"]] == [last]


async def test_samples_older_than_half_an_hour_are_removed_and_the_rest_expires(stores: Stores) -> None:
    one, key = Counting("a", stores), stores.keys.history
    old = await stores.instances.now_ms() - KEPT_MS - 1000
    await stores.redis.call("XADD", key, f"{old}-0", "v", "1", "data", b"{}")
    one.now = 5.0
    await one.history.run_once()
    assert await stores.redis.call("XLEN", key) == 1
    assert 0 < await stores.redis.call("PTTL", key) <= KEPT_MS
