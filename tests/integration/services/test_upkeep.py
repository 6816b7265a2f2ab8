"""The loops that keep Redis tidy: the renewer, the sweeper and the samples of the history."""

from typing import Any

from dragoman.domain.history import KEPT_MS, POINT_MS, SAMPLE_MS
from dragoman.instance.services import Stores
from dragoman.services.history import History
from dragoman.services.metrics import Metrics
from dragoman.services.upkeep.presence import Renewer, Sweeper
from dragoman.store.nodes import Snapshot
from dragoman.store.redis import Redis


async def test_renewer_extends_owned_keys(stores: Stores) -> None:
    renewer = Renewer(stores.owners, "a", lambda: ["n"], lambda: ["s"])
    await stores.owners.claim_node("n", "a")
    await stores.owners.claim_session("s", "a")
    for key in (stores.keys.node_owner("n"), stores.keys.session_owner("s")):
        await stores.redis.call("PEXPIRE", key, 1000)
        await renewer.run_once()
        assert await stores.redis.call("PTTL", key) > 1000


async def test_renewer_writes_keys_again_that_redis_lost(stores: Stores) -> None:
    await Renewer(stores.owners, "a", lambda: ["n"], lambda: ["s"]).run_once()
    assert await stores.owners.node_owner("n") == "a"
    assert await stores.owners.session_owner("s") == "a"
    assert await stores.redis.call("PTTL", stores.keys.node_owner("n")) > 0


async def test_a_node_that_dialled_in_elsewhere_is_not_taken_back(stores: Stores) -> None:
    """Its old socket may stand here for a while yet."""
    await stores.owners.claim_node("n", "a")
    await stores.owners.claim_node("n", "b")
    await Renewer(stores.owners, "a", lambda: ["n"], list).run_once()
    assert await stores.owners.node_owner("n") == "b"


async def test_owning_nothing_is_no_work(stores: Stores) -> None:
    before = stores.redis.flushes
    await Renewer(stores.owners, "a", list, list).run_once()
    assert stores.redis.flushes == before


async def test_thousands_are_written_without_a_wait_for_each(stores: Stores) -> None:
    sessions = [f"s{number}" for number in range(2000)]
    before = stores.redis.flushes
    await Renewer(stores.owners, "a", list, lambda: sessions).run_once()
    assert stores.redis.flushes - before < 200
    assert await stores.owners.session_owner("s1999") == "a"


LONG_MS = 60_000


async def _heard_long_ago(stores: Stores, node: str) -> None:
    await stores.nodes.write(Snapshot(node, 1, "a"))
    await stores.redis.call("ZINCRBY", stores.keys.nodes_last_seen, -2 * LONG_MS, node)


async def _listed(stores: Stores) -> tuple[list[str], list[str]]:
    seen = await stores.redis.call("ZRANGE", stores.keys.nodes_last_seen, 0, -1)
    return await stores.nodes.all(), sorted(id.decode() for id in seen)


async def test_a_node_gone_for_long_leaves_the_sets_and_the_others_stay(stores: Stores) -> None:
    await _heard_long_ago(stores, "old")
    await stores.nodes.write(Snapshot("new", 1, "a"))
    assert await Sweeper(stores.nodes, LONG_MS).run_once() == ["old"]
    assert await _listed(stores) == (["new"], ["new"])


async def test_with_nothing_to_forget_nothing_is_done(stores: Stores) -> None:
    await stores.nodes.write(Snapshot("new", 1, "a"))
    sweeper = Sweeper(stores.nodes, LONG_MS)
    assert await sweeper.run_once() == []
    assert await sweeper.run_once() == []


async def test_a_heartbeat_in_the_middle_of_the_clean_up_heals_with_the_next(stores: Stores) -> None:
    """The worst moment: off the one list, heard, then off the other."""
    await _heard_long_ago(stores, "back")
    call, redis = stores.redis.call, stores.redis
    heard = Snapshot("back", 2, "a")

    def before_the_second_list(command: str, key: str, *args: Any) -> Any:
        if command != "SREM":
            return call(command, key, *args)

        async def late() -> Any:
            await stores.nodes.write(heard)
            return await call(command, key, *args)

        return late()

    _patch(redis, before_the_second_list)
    assert await Sweeper(stores.nodes, LONG_MS).run_once() == ["back"]
    _patch(redis, call)
    assert await _listed(stores) == ([], ["back"])
    assert await stores.nodes.snapshot("back") == heard
    await stores.nodes.write(heard)
    assert await _listed(stores) == (["back"], ["back"])


def _patch(redis: Redis, call: Any) -> None:
    redis.call = call  # type: ignore[method-assign]


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
