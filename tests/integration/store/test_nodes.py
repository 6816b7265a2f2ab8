"""The fleet in Redis: four keys a heartbeat, and readers that ask only for what changed."""

import asyncio

import msgspec
import pytest

from dragoman.store.instances import Owners
from dragoman.store.keys import Keys
from dragoman.store.nodes import MARK_NODE_SEEN, VERSION, Nodes, Snapshot
from dragoman.store.redis import Redis
from support.redis_servers import Connect

TTL_MS = 45_000


@pytest.fixture
def nodes(redis: Redis, keys: Keys) -> Nodes:
    return Nodes(redis, keys, TTL_MS)


def node(id: str, epoch: int = 1, **fields: object) -> Snapshot:
    return msgspec.convert({"id": id, "epoch": epoch, "instance": "i", "asr": ["en"], **fields}, Snapshot)


async def test_a_heartbeat_writes_all_four_keys(nodes: Nodes, redis: Redis, keys: Keys) -> None:
    told = node("n1", 7, slots=4, ready=["asr"], draining=True)
    await nodes.write(told)
    assert await nodes.snapshot("n1") == told
    assert await nodes.online("n1")
    assert await nodes.all() == ["n1"]
    assert await redis.call("GET", keys.node_presence("n1")) == b"7"
    assert await redis.call("ZSCORE", keys.nodes_last_seen, "n1") is not None
    for key in (keys.node_presence("n1"), keys.node_snapshot("n1")):
        assert 0 < await redis.call("PTTL", key) <= TTL_MS


async def test_heartbeat_at_one_instance_is_read_by_another(nodes: Nodes, connect: Connect, keys: Keys) -> None:
    other = Nodes(await connect(), keys, TTL_MS)
    await asyncio.gather(*(nodes.write(node(f"n{n}")) for n in range(200)))
    changes = await other.changed_since(0)
    assert sorted(found.id for found in changes.seen) == sorted(f"n{n}" for n in range(200))
    assert changes.gone == changes.unreadable == []


async def test_a_second_look_finds_what_changed_and_misses_no_tie(nodes: Nodes, redis: Redis, keys: Keys) -> None:
    await nodes.write(node("n1"))
    await nodes.write(node("n2"))
    await redis.call("ZADD", keys.nodes_last_seen, 1000, "n1", 2000, "n2")
    first = await nodes.changed_since(0)
    assert [found.id for found in first.seen] == ["n1", "n2"]
    assert first.until_ms == 2000
    await nodes.write(node("n3"))
    await MARK_NODE_SEEN(redis, last_seen=keys.nodes_last_seen, node="n3", now=2000)
    second = await nodes.changed_since(first.until_ms)
    assert [found.id for found in second.seen] == ["n2", "n3"], "the same moment is read twice rather than missed"


async def test_nothing_new_moves_nothing(nodes: Nodes) -> None:
    changes = await nodes.changed_since(12_345)
    assert (changes.seen, changes.gone, changes.unreadable, changes.until_ms) == ([], [], [], 12_345)


async def test_a_look_that_finds_too_much_goes_on_next_time(nodes: Nodes, redis: Redis, keys: Keys) -> None:
    for n in range(10):
        await nodes.write(node(f"n{n}"))
        await MARK_NODE_SEEN(redis, last_seen=keys.nodes_last_seen, node=f"n{n}", now=1000 + n)
    found: set[str] = set()
    since = 0
    for _ in range(10):
        changes = await nodes.changed_since(since, limit=3)
        found |= {each.id for each in changes.seen}
        since = changes.until_ms
    assert found == {f"n{n}" for n in range(10)}


async def test_a_node_whose_socket_closed_is_gone_for_every_reader(nodes: Nodes) -> None:
    await nodes.write(node("n1"))
    since = (await nodes.changed_since(0)).until_ms
    await nodes.gone("n1")
    assert not await nodes.online("n1")
    assert await nodes.snapshot("n1") is None
    changes = await nodes.changed_since(since)
    assert (changes.seen, changes.gone) == ([], ["n1"])
    await nodes.write(node("n1", 2))
    assert [found.epoch for found in (await nodes.changed_since(since)).seen] == [2]


async def test_a_node_that_dialled_in_elsewhere_is_not_taken_offline_by_the_socket_it_left(
    nodes: Nodes, connect: Connect, redis: Redis, keys: Keys
) -> None:
    client = await connect()
    here, there, theirs = Owners(redis, keys, TTL_MS), Owners(client, keys, TTL_MS), Nodes(client, keys, TTL_MS)
    await nodes.write(node("n1", await here.claim_node("n1", "a")))
    newer = node("n1", await there.claim_node("n1", "b"), instance="b")
    await theirs.write(newer)
    await here.leave_node("n1", "a")
    await nodes.gone("n1")
    assert await nodes.online("n1")
    assert (await nodes.changed_since(0)).seen == [newer]
    await there.leave_node("n1", "b")
    await theirs.gone("n1")
    assert not await nodes.online("n1")


@pytest.mark.parametrize(
    "garbage",
    [b"{", b"\xff\xfe", msgspec.json.encode(Snapshot("bad", 1, "i", v=VERSION + 1))],
    ids=["json", "utf", "v"],
)
async def test_unreadable_snapshot_is_reported_and_skipped(
    nodes: Nodes, redis: Redis, keys: Keys, garbage: bytes
) -> None:
    await nodes.write(node("bad"))
    await nodes.write(node("good"))
    await redis.call("SET", keys.node_snapshot("bad"), garbage, "PX", TTL_MS)
    changes = await nodes.changed_since(0)
    assert [found.id for found in changes.seen] == ["good"]
    assert changes.unreadable == ["bad"]
    assert await nodes.snapshot("bad") is None
    await nodes.write(node("bad"))
    assert (await nodes.changed_since(0)).unreadable == [], "a heartbeat replaces it"


async def test_nodes_without_heartbeats_are_removed(nodes: Nodes, redis: Redis, keys: Keys) -> None:
    for id in ("old1", "old2", "new"):
        await nodes.write(node(id))
    await redis.call("ZADD", keys.nodes_last_seen, 1000, "old1", 2000, "old2")
    assert await nodes.forget(3_600_000, limit=1) == ["old1"]
    assert await nodes.forget(3_600_000) == ["old2"]
    assert await nodes.forget(3_600_000) == []
    assert await nodes.all() == ["new"]
