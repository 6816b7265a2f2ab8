"""What several instances share in Redis, from end to end, under the literal names of its keys.

Each runs on the Redis that the environment names (one of its own otherwise), on a Cluster, and on Redis 6.2.
"""

import asyncio

import msgspec
import pytest

from dragoman.domain.job import Event, Outcome, Reply
from dragoman.store.inbox import InboxCounts, Inboxes, InboxSettings, PushReply
from dragoman.store.instances import Instances, Owners, Presence
from dragoman.store.jobs import Binding, Jobs, Turns
from dragoman.store.keys import Keys
from dragoman.store.nodes import Nodes, ReleaseReply, Reservations, Reserved, ReserveReply, Snapshot
from dragoman.store.redis import Redis
from support.raw_node import thorough
from support.redis_servers import Connect
from support.speech import ACKING, TIMEOUT_S, Harness, new_scenario
from support.waiting import wait_until

GROUP = "scheduler"
TTL_MS = 60_000
SLOTS = 10


async def test_phase2_streams_enqueue_and_readgroup_smoke(
    redis: Redis, connect: Connect, keys: Keys, prefix: str
) -> None:
    sender = Inboxes(await connect(), keys, InboxSettings(group=GROUP))
    receiver = Inboxes(redis, keys, InboxSettings(group=GROUP))
    assert await sender.push("b", "job_result", b"too early") is PushReply.GONE
    await Instances(redis, keys).open("b", "incarnation", GROUP)
    bodies = [b'{"n":%d}' % n for n in range(100)]
    assert (
        await asyncio.gather(*(sender.push("b", "job_result", body, "trace") for body in bodies))
        == [PushReply.OK] * 100
    )
    assert await redis.call("XLEN", f"{prefix}:streams:{{instance:b}}:inbox") == 100
    reader = receiver.reader("b")
    try:
        entries = [entry for _ in range(4) for entry in await receiver.read(reader, "b", 25, block_ms=1000)]
    finally:
        await reader.close()
    assert [entry.data for entry in entries] == bodies
    assert {(entry.kind, entry.trace_id) for entry in entries} == {("job_result", "trace")}
    assert await receiver.done("b", entries[:-1]) == 99
    assert await receiver.dead_letter("b", entries[-1].id, "could not be worked", 6) == "OK"
    assert await redis.call("XLEN", f"{prefix}:streams:{{instance:b}}:dlq") == 1
    assert await receiver.counts("b") == InboxCounts(added=100, done=99, dead=1)
    assert await receiver.pending("b", 0, 10) == []


async def test_phase2_node_snapshot_roundtrip_smoke(redis: Redis, connect: Connect, keys: Keys, prefix: str) -> None:
    told = Snapshot("n1", 3, "a", slots=4, asr=["en"], semantic=["es"], tts=["es"], ready=["asr"], features=["job_ack"])
    here, there = Nodes(redis, keys, TTL_MS), Nodes(await connect(), keys, TTL_MS)
    await here.write(told)
    changes = await there.changed_since(0)
    assert changes.seen == [told]
    assert changes.seen[0].node().asr == frozenset({"en"})
    assert msgspec.json.decode(await redis.call("GET", f"{prefix}:v1:nodes:snapshot:n1"))["id"] == "n1"
    assert await redis.call("EXISTS", f"{prefix}:v1:nodes:presence:n1") == 1
    assert await redis.call("SISMEMBER", f"{prefix}:v1:nodes:all", "n1") == 1
    assert await redis.call("ZSCORE", f"{prefix}:v1:nodes:last_seen", "n1") is not None
    await here.gone("n1")
    assert (await there.changed_since(changes.until_ms)).gone == ["n1"]


async def test_phase2_job_fsm_smoke(redis: Redis, connect: Connect, keys: Keys, prefix: str) -> None:
    driver, other = Jobs(redis, keys), Jobs(await connect(), keys)
    assert await driver.lock("r", "j") == b"OK"
    assert await other.lock("r", "k") is None
    assert await driver.create("j", {"session_id": "s", "utterance_index": 0}, node="n1", epoch=1) == b"OK"
    assert await driver.bind("r", Binding("j", "a")) == b"OK"
    assert await driver.unlock("r", "j") == b"OK"
    assert other.parse_binding(await other.binding("r")) == Binding("j", "a")
    assert await other.advance("j", Event.ACK, attempt=1, node="n1") is Reply.OK
    assert await driver.advance("j", Event.REASSIGN, attempt=1) is Reply.OK
    assert await driver.advance("j", Event.DISPATCH, attempt=2, node="n2") is Reply.OK
    assert await other.advance("j", Event.RESULT, attempt=1, node="n1") is Reply.STALE
    assert await other.advance("j", Event.ACK, attempt=2, node="n1") is Reply.WRONG_NODE
    assert await other.advance("j", Event.START, attempt=2, node="n2") is Reply.OK
    assert await other.advance("j", Event.ACK, attempt=2, node="n2") is Reply.ALREADY, "overtaken by the start"
    assert await driver.advance("j", Event.RELEASE, attempt=2) is Reply.ILLEGAL
    assert await other.advance("j", Event.RESULT, attempt=2, node="n2", outcome=Outcome.OK) is Reply.OK
    assert await driver.advance("j", Event.RELEASE, attempt=2) is Reply.OK
    assert await driver.advance("j", Event.RELEASE, attempt=2) is Reply.ALREADY
    state, attempt, node, outcome = await redis.call(
        "HMGET", f"{prefix}:v1:jobs:{{job:j}}:fsm", "state", "attempt", "node_id", "outcome"
    )
    assert (state, attempt, node, outcome) == (b"RELEASED", b"2", b"n2", b"ok")


class Driver:
    """Instance `a`: it has the sessions, and drives their jobs on nodes that are at `b`."""

    def __init__(self, redis: Redis, keys: Keys, epochs: dict[str, int]) -> None:
        self.owners, self.inboxes = Owners(redis, keys, TTL_MS), Inboxes(redis, keys, InboxSettings(group=GROUP))
        self.jobs, self.slots, self.turns = Jobs(redis, keys), Reservations(redis, keys, TTL_MS), Turns(redis, keys)
        self.epochs, self.prefix = epochs, keys.prefix

    def names(self, n: int) -> tuple[str, str, str, str]:
        """Session, turn, job and node of one utterance."""
        return f"{self.prefix}-s{n}", f"{self.prefix}-t{n}", f"j{n}", sorted(self.epochs)[n % len(self.epochs)]

    async def speak(self, n: int) -> None:
        """The order of one job, then its frame by way of the node's owner."""
        session, turn, job, node = self.names(n)
        await self.owners.claim_session(session, "a")
        found, locked, reserved, _ = await asyncio.gather(
            self.jobs.binding(session),
            self.jobs.lock(session, job),
            self.slots.reserve(node, job, SLOTS),
            self.jobs.driven("a", job, n),
        )
        assert (found, locked, Reserved.parse(reserved).verdict) == (None, b"OK", ReserveReply.OK)
        created, bound, _ = await asyncio.gather(
            self.jobs.create(job, {"session_id": session}, node=node, epoch=self.epochs[node]),
            self.jobs.bind(session, Binding(job, "a")),
            self.turns.bind(session, turn, node),
        )
        assert (created, bound) == (b"OK", b"OK")
        await self.jobs.unlock(session, job)
        owner = await self.owners.node_owner(node)
        assert owner == "b"
        assert await self.inboxes.push(owner, "job_assign", job.encode()) is PushReply.OK

    async def finish(self, n: int) -> None:
        session, turn, job, node = self.names(n)
        assert await self.turns.node_of(turn) == node
        assert await self.jobs.advance(job, Event.RESULT, attempt=1, node=node) is Reply.OK
        assert await self.slots.release(node, job, SLOTS) is not ReleaseReply.NONE
        assert await self.jobs.advance(job, Event.RELEASE, attempt=1) is Reply.OK
        await self.jobs.undriven("a", job)
        await self.turns.end(session, turn)
        await self.owners.leave_session(session, "a")


async def nodes_at(redis: Redis, keys: Keys, instance: str) -> dict[str, int]:
    """Ten nodes that connect to `instance`, with their epochs."""
    owners, nodes = Owners(redis, keys, TTL_MS), Nodes(redis, keys, TTL_MS)
    epochs = {f"n{n}": await owners.claim_node(f"n{n}", instance) for n in range(10)}
    await asyncio.gather(*(nodes.write(Snapshot(name, epoch, instance)) for name, epoch in epochs.items()))
    return epochs


async def work(inboxes: Inboxes, instance: str, count: int) -> list[bytes]:
    """What comes in until that many were handled."""
    reader = inboxes.reader(instance)
    handled: list[bytes] = []
    try:
        while len(handled) < count:
            entries = await inboxes.read(reader, instance, 64, block_ms=1000)
            handled += [entry.data for entry in entries]
            await inboxes.done(instance, entries)
    finally:
        await reader.close()
    return handled


@pytest.mark.parametrize("redis_at", [pytest.param("cluster", marks=pytest.mark.cluster)], indirect=True)
async def test_phase2_cluster_acceptance_smoke(redis: Redis, connect: Connect, keys: Keys) -> None:
    """Two instances and a hundred sessions: everything they share, spread over every master."""
    a, b = redis, await connect()
    assert len(a.addresses()) == 3
    for client, name in ((a, "a"), (b, "b")):
        assert await Instances(client, keys).open(name, f"{name}-1", GROUP) == "OK"
        assert await Instances(client, keys).renew(Presence(name, f"{name}-1"), TTL_MS)
    assert set(await Instances(b, keys).all()) == {"a", "b"}

    epochs = await nodes_at(b, keys, "b")
    assert {node.id: node.epoch for node in (await Nodes(a, keys, TTL_MS).changed_since(0)).seen} == epochs

    driver, inboxes = Driver(a, keys, epochs), Inboxes(b, keys, InboxSettings(group=GROUP))
    await asyncio.gather(*(driver.speak(n) for n in range(100)))
    assert (await driver.slots.reserve("n0", "one too many", SLOTS)).startswith(b"FULL")
    assert sorted(await work(inboxes, "b", 100)) == sorted(b"j%d" % n for n in range(100))
    assert await inboxes.counts("b") == InboxCounts(added=100, done=100)

    await asyncio.gather(*(driver.finish(n) for n in range(100)))
    assert [await driver.slots.held(name) for name in epochs] == [[]] * 10
    assert await driver.jobs.driven_by("a", 1000) == []
    states = await asyncio.gather(*(a.call("HGET", keys.job(f"j{n}"), "state") for n in range(100)))
    assert states == [b"RELEASED"] * 100
    assert {a.address_of(keys.job(f"j{n}")).port for n in range(100)} == {address.port for address in a.addresses()}

    for client, name in ((a, "a"), (b, "b")):
        assert await Instances(client, keys).close(name, f"{name}-1") == "OK"
        await Instances(client, keys).forget(name, f"{name}-1")
    assert await Instances(a, keys).all() == {}


async def test_phase2_cross_instance_delivery_e2e_minimal(harness: Harness) -> None:
    """A node on one instance, a session on another, each a process of its own."""
    async with new_scenario(harness) as scenario:
        node = await scenario.node(0, features=ACKING, work=thorough)
        talker = await scenario.talker(1)
        await scenario.say_utterance(talker, 0)
        result = await talker.result(0, TIMEOUT_S)
        heard = [m["event"] if m["type"] == "ui_event" else m["type"] for m in talker.heard]
        assert heard == ["DISPATCHED", "NODE_ACCEPTED", "asr_partial", "ASR_FINAL", "NMT_DONE"]
        record = await wait_until(lambda: scenario.released(result["job_id"]), TIMEOUT_S)
        assert (record["driver"], record["node_id"], record["outcome"]) == ("i1", node.id, "ok")
        assert await scenario.reserved(node) == 0
        await wait_until(lambda: scenario.inboxes_are_done(), TIMEOUT_S)
