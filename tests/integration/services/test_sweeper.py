"""Nodes gone for long leave the sets; a heartbeat that races with the clean-up heals."""

from typing import Any

from dragoman.instance.services import Stores
from dragoman.services.upkeep.presence import Sweeper
from dragoman.store.nodes import Snapshot
from dragoman.store.redis import Redis

LONG_MS = 60_000


async def _heard_long_ago(stores: Stores, node: str) -> None:
    await stores.nodes.heard(Snapshot(node, 1, "a"))
    await stores.redis.call("ZINCRBY", stores.keys.nodes_last_seen, -2 * LONG_MS, node)


async def _listed(stores: Stores) -> tuple[list[str], list[str]]:
    seen = await stores.redis.call("ZRANGE", stores.keys.nodes_last_seen, 0, -1)
    return await stores.nodes.all(), sorted(id.decode() for id in seen)


async def test_a_node_gone_for_long_leaves_the_sets_and_the_others_stay(stores: Stores) -> None:
    await _heard_long_ago(stores, "old")
    await stores.nodes.heard(Snapshot("new", 1, "a"))
    assert await Sweeper(stores.nodes, LONG_MS).run_once() == ["old"]
    assert await _listed(stores) == (["new"], ["new"])


async def test_with_nothing_to_forget_nothing_is_done(stores: Stores) -> None:
    await stores.nodes.heard(Snapshot("new", 1, "a"))
    sweeper = Sweeper(stores.nodes, LONG_MS)
    assert await sweeper.run_once() == []
    assert await sweeper.run_once() == []


async def test_two_sweepers_forget_each_node_once(stores: Stores) -> None:
    for number in range(10):
        await _heard_long_ago(stores, f"n{number}")
    first, second = Sweeper(stores.nodes, LONG_MS), Sweeper(stores.nodes, LONG_MS)
    gone = [*await first.run_once(), *await second.run_once()]
    assert sorted(gone) == sorted(f"n{number}" for number in range(10))


async def test_a_heartbeat_in_the_middle_of_the_clean_up_heals_with_the_next(stores: Stores) -> None:
    """The worst moment: off the one list, heard, then off the other."""
    await _heard_long_ago(stores, "back")
    call, redis = stores.redis.call, stores.redis
    heard = Snapshot("back", 2, "a")

    def before_the_second_list(command: str, key: str, *args: Any) -> Any:
        if command != "SREM":
            return call(command, key, *args)

        async def late() -> Any:
            await stores.nodes.heard(heard)
            return await call(command, key, *args)

        return late()

    _patch(redis, before_the_second_list)
    assert await Sweeper(stores.nodes, LONG_MS).run_once() == ["back"]
    _patch(redis, call)
    assert await _listed(stores) == ([], ["back"])
    assert await stores.nodes.snapshot("back") == heard
    await stores.nodes.heard(heard)
    assert await _listed(stores) == (["back"], ["back"])


def _patch(redis: Redis, call: Any) -> None:
    redis.call = call  # type: ignore[method-assign]
