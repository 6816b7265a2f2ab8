"""The nodes whose sockets are here: registering, heartbeats, frames to and from them.

A node id has one connection at a time, told from earlier ones by its epoch. A newer one of the same id, here
or elsewhere, replaces the older. What a node says about a job goes to the job's driver; who that is came with
the assignment.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

import msgspec
import structlog

from dragoman.protocol import ids
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import Close, NodeFeature
from dragoman.protocol.node import (
    JobAck,
    JobResult,
    JobStarted,
    NodeHeartbeat,
    NodePartial,
    NodeRegister,
    NodeRegisterAck,
    slots_of,
)
from dragoman.protocol.peer import Assign, CancelJob, DrainNode, Evict, FromNode, NodeLost, NodeSeen
from dragoman.services.loops import Tasks, unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.sockets import Socket
from dragoman.services.speech.router import Router
from dragoman.services.upkeep.announcer import Announcer
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Push
from dragoman.store.nodes import Nodes, Snapshot
from dragoman.store.owners import Owners, Standing

log = structlog.get_logger(__name__)


FORWARD_PATIENCE_S = 30.0
FORWARD_PAUSE_S = 0.25
MAX_JOBS = 10_000
MAX_SERVICES = 64  # of a node that the others are told of
MAX_READY = 32
TELL_S = 0.2  # between two snapshots of one node: what it says more often is told with the next
PER_NODE: dict[str, Any] = {"limited": True, "each": "node"}  # a node that flaps fills no log and hides no other node
MAX_BREATH_BYTES = 1 << 20  # of one entry, unless a single frame is more: both are well below what an inbox takes

AboutJob = JobAck | JobStarted | NodePartial | JobResult


@dataclass(frozen=True, slots=True)
class Assigned:
    """A job that the node was given: the instance that drives it, and when nobody waits for its result any more."""

    driver: str
    until: float


@dataclass(slots=True)
class LocalNode:
    conn: Socket
    snapshot: Snapshot
    heard_at: float
    usable: bool = False  # from its first heartbeat on
    reported: Snapshot | None = None  # by a heartbeat, and not told to others yet
    telling: bool = False
    told_at: float = -inf
    draining: bool = False  # an operator said so
    named: bool = False  # it showed a token
    jobs: dict[str, Assigned] = field(default_factory=dict)
    said: dict[str, list[bytes]] = field(default_factory=dict)  # job → what its driver elsewhere is about to be told

    @property
    def id(self) -> str:
        return self.snapshot.id

    @property
    def epoch(self) -> int:
        return self.snapshot.epoch


class LocalNodes:
    def __init__(
        self,
        instance: str,
        owners: Owners,
        nodes: Nodes,
        router: Router,
        announcer: Announcer,
        metrics: Metrics,
        tasks: Tasks,
        *,
        silent_after_s: float,
        job_s: float,
        shared: bool,
    ) -> None:
        """`job_s`: how long a driver waits for a job at most. `shared`: whether other instances may use our nodes."""
        self.instance, self.router, self.announcer, self.metrics = instance, router, announcer, metrics
        self.on_seen: Callable[[Snapshot], None]  # both set by the instance
        self.driver_here: Callable[[str, AboutJob], None]
        self._owners, self._nodes, self._tasks, self._silent_after_s = owners, nodes, tasks, silent_after_s
        self._job_s, self._shared = job_s, shared
        self._here: dict[str, LocalNode] = {}
        self._draining = False
        self._idle = asyncio.Event()

    def ids(self) -> Collection[str]:
        return self._here.keys()

    def named(self) -> Collection[str]:
        return [node.id for node in self._here.values() if node.named]

    def __len__(self) -> int:
        return len(self._here)

    # -- coming and going ------------------------------------------------------------------------

    async def register(
        self, conn: Socket, message: NodeRegister, tenant: str = "default", standing: Standing = "unasked"
    ) -> LocalNode:
        """Claim the id, replace the connection that had it, answer. The node is usable from its first heartbeat on.

        Raises NodeIdTaken: an anonymous node does not replace one that showed a token.
        """
        node_id = message.node_id or ids.node_id()
        former, epoch = await asyncio.gather(
            self._owners.node_owner(node_id), self._owners.claim_node(node_id, self.instance, standing)
        )
        node = LocalNode(conn, _described(message, node_id, epoch, self.instance, tenant), monotonic())
        node.named = standing == "token"
        old = self._here.get(node_id)
        self._here[node_id] = node
        self.metrics.nodes.set(len(self._here))
        if old is not None:
            self._replaced(old)
        elif former is not None and former != self.instance:
            self._tasks.spawn(self._evict_elsewhere(former, node_id, epoch), "evict")
        conn.send(encode(NodeRegisterAck(node_id=node_id, message="registered", status="registered")))
        about = {"node": node_id, "epoch": epoch, "slots": node.snapshot.slots, "peer": conn.peer[0]}
        log.info("node registered", **about, **PER_NODE)
        return node

    async def heartbeat(self, node: LocalNode, message: NodeHeartbeat) -> None:
        """Tell the others what a node is now; heartbeats that come faster than `TELL_S` are told as one."""
        node.heard_at = monotonic()
        node.reported = _updated(node.reported or node.snapshot, message)
        if node.telling:
            return
        node.telling = True
        try:
            while node.reported is not None:
                if (wait_s := node.told_at + TELL_S - monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                if self._here.get(node.id) is not node:
                    return
                fresh, node.reported, node.told_at = node.reported, None, monotonic()
                await self._tell(node, msgspec.structs.replace(fresh, draining=self._draining or node.draining))
        finally:
            node.telling = False

    async def _tell(self, node: LocalNode, fresh: Snapshot) -> None:
        """To this instance, to the others and to Redis."""
        changed = not node.usable or msgspec.structs.replace(fresh, running=0) != msgspec.structs.replace(
            node.snapshot, running=0
        )
        node.snapshot, node.usable = fresh, True
        self.on_seen(fresh)
        if not self._shared:
            return
        if changed:
            self.announcer.tell(NodeSeen(msgspec.Raw(msgspec.json.encode(fresh))))
        await self._nodes.heard(fresh)

    def closed(self, node: LocalNode) -> None:
        """Its socket is gone. If a newer connection has its place, nothing of it is ours to take away."""
        newer = self._here.get(node.id)
        if newer is node:
            del self._here[node.id]
            self.metrics.nodes.set(len(self._here))
            self._tasks.spawn(self._leave(node.id), "node-left")
            self._look_whether_idle()
        self.announcer.tell(NodeLost(node.id, node.epoch))
        log.info("node left", node=node.id, epoch=node.epoch, **PER_NODE)

    async def write_all(self) -> None:
        """After Redis or we were away: everything about every socket we hold."""
        await self._owners.renew(self.instance, list(self._here), (), self.named())
        usable = [node for node in self._here.values() if node.usable and self._shared]
        await asyncio.gather(*(self._nodes.heard(node.snapshot) for node in usable))

    async def close_silent(self) -> None:
        """Close nodes whose heartbeats stopped although their socket stands."""
        now = monotonic()
        for node in list(self._here.values()):
            if now - node.heard_at > self._silent_after_s:
                log.warning("node silent", node=node.id, silent_s=round(now - node.heard_at))
                node.conn.close(Close.TIMEOUT, "no heartbeat")
        self._look_whether_idle()  # nobody waits for some jobs any more

    async def finish(self, limit_s: float) -> bool:
        """No node gets new jobs; each is closed when it has none of other instances; whether all were in time.

        An idle node is closed at once, so that it serves elsewhere while the others finish.
        """
        self._draining, until = True, monotonic() + limit_s
        told = [
            asyncio.ensure_future(self._tell(node, msgspec.structs.replace(node.snapshot, draining=True)))
            for node in self._here.values()
            if node.usable
        ]
        for future in told:
            unawaited(future)
        if told:
            await asyncio.wait(told, timeout=max(limit_s, 0))
        self._look_whether_idle()
        try:
            async with asyncio.timeout(until - monotonic()):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _look_whether_idle(self) -> None:
        if not self._draining:
            return
        at_work = False
        for node in list(self._here.values()):
            if self._works_for_others(node):
                at_work = True
            elif not node.conn.closed:
                node.conn.close(Close.SHUTDOWN)
        if not at_work:
            self._idle.set()

    def _works_for_others(self, node: LocalNode) -> bool:
        now = monotonic()
        return any(job.driver != self.instance and now < job.until for job in node.jobs.values())

    def drop_all(self, code: Close) -> None:
        for node in list(self._here.values()):
            node.conn.close(code)
        self._here.clear()

    def _replaced(self, old: LocalNode) -> None:
        log.info("node replaced by a newer connection", node=old.id, epoch=old.epoch, **PER_NODE)
        old.conn.close(Close.REPLACED, "a newer connection of this node id")
        self.announcer.tell(NodeLost(old.id, old.epoch))

    async def _evict_elsewhere(self, former: str, node_id: str, epoch: int) -> None:
        await self.router.push(former, Evict(node_id, epoch))

    async def _leave(self, node_id: str) -> None:
        await self._owners.leave_node(node_id, self.instance)
        if node_id not in self._here:  # it may have come back while we were writing
            await self._nodes.gone(node_id)

    # -- what others send to a node --------------------------------------------------------------

    async def drain(self, message: DrainNode) -> None:
        node = self._here.get(message.node_id)
        if node is None:
            return
        node.draining = message.draining
        log.info("an operator drains a node" if node.draining else "an operator took a drain back", node=node.id)
        if node.usable:
            await self._tell(node, msgspec.structs.replace(node.snapshot, draining=self._draining or node.draining))

    async def assign(self, message: Assign) -> None:
        node = self._here.get(message.node_id)
        if node is None or node.epoch != message.epoch or node.conn.closed:
            await self.router.bounce(message)  # with no room there, the inbox entry of the assignment stays
            return
        node.jobs[message.job_id] = Assigned(message.driver, monotonic() + self._job_s)
        if len(node.jobs) > MAX_JOBS:  # old nodes never answer some jobs
            del node.jobs[next(iter(node.jobs))]
        node.conn.send(bytes(message.frame))
        node.conn.flush()  # what a listener hears of it can wait; the node should begin

    def cancel(self, message: CancelJob) -> None:
        node = self._here.get(message.node_id)
        if node is not None:
            node.jobs.pop(message.job_id, None)
            node.conn.send(bytes(message.frame))
            self._look_whether_idle()

    def evict(self, message: Evict) -> None:
        node = self._here.get(message.node_id)
        if node is not None and node.epoch < message.epoch:
            del self._here[node.id]
            self._replaced(node)
            self._look_whether_idle()

    # -- what a node sends -----------------------------------------------------------------------

    def said(self, node: LocalNode, message: AboutJob, frame: bytes) -> None:
        """Hand what a node said of a job to the job's driver; one of ours hears it at once."""
        result = isinstance(message, JobResult)
        job = node.jobs.pop(message.job_id, None) if result else node.jobs.get(message.job_id)
        if job is not None and job.driver == self.instance:
            self.driver_here(node.id, message)
        else:
            self._tell_elsewhere(node, job.driver if job is not None else None, message.job_id, frame)
        if result:
            self._look_whether_idle()

    def _tell_elsewhere(self, node: LocalNode, driver: str | None, job_id: str, frame: bytes) -> None:
        """At the end of this turn of the loop: what nodes say in one breath is one entry of an inbox."""
        frames = node.said.get(job_id)
        if frames is None or sum(map(len, frames)) + len(frame) > MAX_BREATH_BYTES:
            frames = node.said[job_id] = []
            asyncio.get_running_loop().call_soon(self._forward_soon, node, driver, job_id, frames)
        frames.append(frame)

    def _forward_soon(self, node: LocalNode, driver: str | None, job_id: str, frames: list[bytes]) -> None:
        if node.said.get(job_id) is frames:
            del node.said[job_id]
        self._tasks.spawn(self._forward(node, driver, job_id, frames), "to-driver")

    async def _forward(self, node: LocalNode, driver: str | None, job_id: str, frames: list[bytes]) -> None:
        """Through the driver's inbox; what cannot be handed over now is tried again while it may still matter."""
        event = FromNode(node.id, node.epoch, job_id, [msgspec.Raw(frame) for frame in frames])
        give_up_at = monotonic() + FORWARD_PATIENCE_S
        while True:
            try:
                driver = driver or await self._driver_of(job_id, node.id)
                verdict = await self.router.to_driver(driver, event) if driver is not None else Push.GONE
                if verdict is not Push.FULL:
                    break
            except StoreError:
                verdict = Push.FULL
            if monotonic() > give_up_at:
                break
            await asyncio.sleep(FORWARD_PAUSE_S)
        if verdict is not Push.OK:
            reason = "no_driver" if driver is None else f"inbox_{verdict.lower()}"
            self.metrics.dropped.labels(reason).inc(len(frames))

    async def _driver_of(self, job_id: str, node_id: str) -> str | None:
        """For what this connection was not given: an answer after a reconnect, or one nobody asked for."""
        job = await self.router.jobs.get(job_id)
        return job.get("driver") if job is not None and job.get("node_id") == node_id else None


def _described(message: NodeRegister, node_id: str, epoch: int, instance: str, tenant: str) -> Snapshot:
    return Snapshot(
        id=node_id,
        epoch=epoch,
        instance=instance,
        slots=slots_of(message.advanced_features) or 0,
        features=sorted(feature.value for feature in NodeFeature if feature in (message.advanced_features or ())),
        public=message.accept_public_jobs,
        tenant=tenant,
        version=message.version,
        platform=message.platform,
        **_capabilities(message),
    )


def _updated(snapshot: Snapshot, message: NodeHeartbeat) -> Snapshot:
    usage = message.resource_usage
    return msgspec.structs.replace(
        snapshot, running=usage.running_jobs, gpu_queue=usage.gpu_queue_length or 0, **_capabilities(message)
    )


def _capabilities(message: NodeRegister | NodeHeartbeat) -> dict[str, Any]:
    """The fields of a snapshot that the message sets. A list the node leaves out changes nothing."""
    told: dict[str, Any] = {}
    if message.installed_services is not None:
        told["services"] = {service.service_id: service.type for service in message.installed_services[:MAX_SERVICES]}
    if message.capability_by_type:
        told["ready"] = sorted({c.type for c in message.capability_by_type if c.ready})[:MAX_READY]
    if (languages := message.language_capabilities) is not None:
        told["asr"] = languages.asr_languages
        told["semantic"] = languages.semantic_languages
        told["tts"] = languages.tts_languages
    return {name: value for name, value in told.items() if value is not None}
