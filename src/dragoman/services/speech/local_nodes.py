"""The nodes whose sockets are on this instance: registration, heartbeats, frames to and from them.

A node id has one connection at a time; the epoch distinguishes it from earlier ones. A newer connection of the same
id, on this instance or another, replaces the older. A node's messages about a job go to the job's driver, which the
assignment named.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

import msgspec
import structlog

from dragoman.domain.job_signals import JobMessage
from dragoman.domain.preview import PartialPace
from dragoman.protocol import ids
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import Close, NodeFeature
from dragoman.protocol.node import (
    JobResult,
    NodeHeartbeat,
    NodeRegister,
    NodeRegisterAck,
    previews_of,
    slots_of,
)
from dragoman.protocol.peer import AssignJob, CancelJob, DrainNode, Evict, FromNode, NodeLost, NodeSeen
from dragoman.services.loops import Tasks, unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer, Router
from dragoman.services.sockets import Socket
from dragoman.store.errors import StoreError
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Owners, Standing
from dragoman.store.nodes import Nodes, Snapshot

log = structlog.get_logger(__name__)


FORWARD_TIMEOUT_S = 30.0
FORWARD_PAUSE_S = 0.25
MAX_JOBS = 10_000
MAX_SERVICES = 64  # of a node, in its snapshot
MAX_READY = 32  # types of service of a node, in its snapshot
PUBLISH_INTERVAL_S = 0.2  # between two snapshots of one node: faster heartbeats are published together
# A node that reconnects all the time must neither fill the log nor hide other nodes.
PER_NODE: dict[str, Any] = {"limited": True, "each": "node"}
MAX_BATCH_BYTES = 1 << 20  # of one inbox entry, unless a single frame is larger


@dataclass(frozen=True, slots=True)
class Assigned:
    """A job of the node: the instance that drives it, and until when the driver waits for the result."""

    driver: str
    until: float


@dataclass(slots=True)
class LocalPreview:
    """A preview that the node has open."""

    listener: str  # the instance of its session
    audio_at: float = -inf  # the last
    pace: PartialPace = field(default_factory=PartialPace)
    in_flight: "asyncio.Future[PushReply | None] | None" = None  # the words sent last

    def got_audio(self, now: float) -> None:
        self.audio_at = now

    def sent(self, answer: "asyncio.Future[PushReply | None] | None") -> None:
        self.in_flight = answer


@dataclass(slots=True)
class LocalNode:
    conn: Socket
    snapshot: Snapshot
    last_heartbeat: float
    usable: bool = False  # from its first heartbeat on
    reported: Snapshot | None = None  # by a heartbeat, and not published yet
    publishing: bool = False
    published_at: float = -inf
    draining: bool = False  # by an operator
    named: bool = False  # it has a token
    jobs: dict[str, Assigned] = field(default_factory=dict)
    previews: dict[str, LocalPreview] = field(default_factory=dict)
    unsent: dict[str, list[bytes]] = field(default_factory=dict)  # job → frames that its remote driver is about to get

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
        on_seen: Callable[[Snapshot], None],
        on_message: Callable[[str, JobMessage], None],
    ) -> None:
        """`job_s`: how long a driver waits for a job at most. `shared`: whether other instances may use local nodes.
        `on_seen`: a node reported its capabilities. `on_message`: a node sent a message about a job driven here."""
        self.instance, self.router, self.announcer, self.metrics = instance, router, announcer, metrics
        self._on_seen, self._on_message = on_seen, on_message
        self._owners, self._nodes, self._tasks, self._silent_after_s = owners, nodes, tasks, silent_after_s
        self._job_s, self._shared = job_s, shared
        self._local: dict[str, LocalNode] = {}
        self._draining = False
        self._idle = asyncio.Event()

    def ids(self) -> Collection[str]:
        return self._local.keys()

    def named(self) -> Collection[str]:
        return [node.id for node in self._local.values() if node.named]

    def __len__(self) -> int:
        return len(self._local)

    def all(self) -> Collection[LocalNode]:
        return self._local.values()

    def find(self, node_id: str, epoch: int) -> LocalNode | None:
        """The node, if this is its connection and open."""
        node = self._local.get(node_id)
        return node if node is not None and node.epoch == epoch and not node.conn.closed else None

    # -- connections -----------------------------------------------------------------------------

    async def register(
        self, conn: Socket, message: NodeRegister, tenant: str = "default", standing: Standing = "unasked"
    ) -> LocalNode:
        """Claim the id, replace its former connection, answer. The node is usable from its first heartbeat on.

        Raises NodeIdTaken: an anonymous node does not replace one that has a token.
        """
        node_id = message.node_id or ids.node_id()
        former, epoch = await asyncio.gather(
            self._owners.node_owner(node_id), self._owners.claim_node(node_id, self.instance, standing)
        )
        node = LocalNode(conn, _described(message, node_id, epoch, self.instance, tenant), monotonic())
        node.named = standing == "token"
        old = self._local.get(node_id)
        self._local[node_id] = node
        self.metrics.nodes.set(len(self._local))
        if old is not None:
            self._replaced(old)
        elif former is not None and former != self.instance:
            self._tasks.spawn(self._evict_remote(former, node_id, epoch), "evict")
        conn.send(encode(NodeRegisterAck(node_id=node_id, message="registered", status="registered")))
        about = {"node": node_id, "epoch": epoch, "slots": node.snapshot.slots, "peer": conn.peer[0]}
        log.info("node registered", **about, **PER_NODE)
        return node

    async def heartbeat(self, node: LocalNode, message: NodeHeartbeat) -> None:
        """Publish the state of a node; heartbeats faster than `PUBLISH_INTERVAL_S` are published as one."""
        node.last_heartbeat = monotonic()
        node.reported = _updated(node.reported or node.snapshot, message)
        if node.publishing:
            return
        node.publishing = True
        try:
            while node.reported is not None:
                if (wait_s := node.published_at + PUBLISH_INTERVAL_S - monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                if self._local.get(node.id) is not node:
                    return
                fresh, node.reported, node.published_at = node.reported, None, monotonic()
                await self._publish(node, msgspec.structs.replace(fresh, draining=self._draining or node.draining))
        finally:
            node.publishing = False

    async def _publish(self, node: LocalNode, fresh: Snapshot) -> None:
        """To this instance, to the other instances and to Redis."""
        changed = not node.usable or msgspec.structs.replace(fresh, running=0) != msgspec.structs.replace(
            node.snapshot, running=0
        )
        node.snapshot, node.usable = fresh, True
        self._on_seen(fresh)
        if not self._shared:
            return
        if changed:
            self.announcer.announce(NodeSeen(msgspec.Raw(msgspec.json.encode(fresh))))
        await self._nodes.write(fresh)

    def closed(self, node: LocalNode) -> None:
        """Its socket is closed. If a newer connection has replaced it, the node stays."""
        newer = self._local.get(node.id)
        if newer is node:
            del self._local[node.id]
            self.metrics.nodes.set(len(self._local))
            self._tasks.spawn(self._release(node.id), "node-disconnected")
            self._check_idle()
        self.announcer.announce(NodeLost(node.id, node.epoch))
        log.info("node disconnected", node=node.id, epoch=node.epoch, **PER_NODE)

    async def write_all(self) -> None:
        """Redis was unavailable, or this instance was suspended: write everything about every local node."""
        await self._owners.renew(self.instance, list(self._local), (), self.named())
        usable = [node for node in self._local.values() if node.usable and self._shared]
        await asyncio.gather(*(self._nodes.write(node.snapshot) for node in usable))

    async def close_silent(self) -> None:
        """Close nodes that send no heartbeat although their socket is open."""
        now = monotonic()
        for node in list(self._local.values()):
            if now - node.last_heartbeat > self._silent_after_s:
                log.warning("node silent", node=node.id, silent_s=round(now - node.last_heartbeat))
                node.conn.close(Close.TIMEOUT, "no heartbeat")
        self._check_idle()  # the time of some jobs may be over

    async def finish(self, limit_s: float) -> bool:
        """Give no node new jobs, and close each when it has no jobs of other instances; False if some still had.

        An idle node is closed at once, so that it connects to another instance while the others finish.
        """
        self._draining, until = True, monotonic() + limit_s
        publishing = [
            asyncio.ensure_future(self._publish(node, msgspec.structs.replace(node.snapshot, draining=True)))
            for node in self._local.values()
            if node.usable
        ]
        for future in publishing:
            unawaited(future)
        if publishing:
            await asyncio.wait(publishing, timeout=max(limit_s, 0))
        self._check_idle()
        try:
            async with asyncio.timeout(until - monotonic()):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _check_idle(self) -> None:
        if not self._draining:
            return
        at_work = False
        for node in list(self._local.values()):
            if self._has_remote_jobs(node):
                at_work = True
            elif not node.conn.closed:
                node.conn.close(Close.SHUTDOWN)
        if not at_work:
            self._idle.set()

    def _has_remote_jobs(self, node: LocalNode) -> bool:
        now = monotonic()
        return any(job.driver != self.instance and now < job.until for job in node.jobs.values())

    def close_all(self, code: Close) -> None:
        for node in list(self._local.values()):
            node.conn.close(code)
        self._local.clear()

    def _replaced(self, old: LocalNode) -> None:
        log.info("node replaced by a newer connection", node=old.id, epoch=old.epoch, **PER_NODE)
        old.conn.close(Close.REPLACED, "a newer connection of this node id")
        self.announcer.announce(NodeLost(old.id, old.epoch))

    async def _evict_remote(self, former: str, node_id: str, epoch: int) -> None:
        await self.router.push(former, Evict(node_id, epoch))

    async def _release(self, node_id: str) -> None:
        await self._owners.leave_node(node_id, self.instance)
        if node_id not in self._local:  # it may have reconnected meanwhile
            await self._nodes.gone(node_id)

    # -- to nodes --------------------------------------------------------------------------------

    async def drain(self, message: DrainNode) -> None:
        node = self._local.get(message.node_id)
        if node is None:
            return
        node.draining = message.draining
        log.info("node drained by an operator" if node.draining else "drain ended by an operator", node=node.id)
        if node.usable:
            await self._publish(node, msgspec.structs.replace(node.snapshot, draining=self._draining or node.draining))

    async def assign(self, message: AssignJob) -> None:
        node = self.find(message.node_id, message.epoch)
        if node is None:
            await self.router.bounce(message)  # InboxFull: the assignment stays in our inbox
            return
        node.jobs[message.job_id] = Assigned(message.driver, monotonic() + self._job_s)
        if len(node.jobs) > MAX_JOBS:  # old nodes do not answer some jobs
            del node.jobs[next(iter(node.jobs))]
        node.conn.send(bytes(message.frame))
        node.conn.flush()  # the node starts before the listener is notified

    def cancel(self, message: CancelJob) -> None:
        node = self._local.get(message.node_id)
        if node is not None:
            node.jobs.pop(message.job_id, None)
            node.conn.send(bytes(message.frame))
            self._check_idle()

    def evict(self, message: Evict) -> None:
        node = self._local.get(message.node_id)
        if node is not None and node.epoch < message.epoch:
            del self._local[node.id]
            self._replaced(node)
            self._check_idle()

    # -- from nodes ------------------------------------------------------------------------------

    def on_job_message(self, node: LocalNode, message: JobMessage, frame: bytes) -> None:
        """Pass a node's message to the driver of the job, at once if it is local."""
        job_id, result = message.job_id or "", isinstance(message, JobResult)
        job = node.jobs.pop(job_id, None) if result else node.jobs.get(job_id)
        if job is not None and job.driver == self.instance:
            self._on_message(node.id, message)
        else:
            self._queue_for_driver(node, job.driver if job is not None else None, job_id, frame)
        if result:
            self._check_idle()

    def _queue_for_driver(self, node: LocalNode, driver: str | None, job_id: str, frame: bytes) -> None:
        """At the end of this turn of the loop: messages that arrive together become one inbox entry."""
        frames = node.unsent.get(job_id)
        if frames is None or sum(map(len, frames)) + len(frame) > MAX_BATCH_BYTES:
            frames = node.unsent[job_id] = []
            asyncio.get_running_loop().call_soon(self._forward_soon, node, driver, job_id, frames)
        frames.append(frame)

    def _forward_soon(self, node: LocalNode, driver: str | None, job_id: str, frames: list[bytes]) -> None:
        if node.unsent.get(job_id) is frames:
            del node.unsent[job_id]
        self._tasks.spawn(self._forward(node, driver, job_id, frames), "to-driver")

    async def _forward(self, node: LocalNode, driver: str | None, job_id: str, frames: list[bytes]) -> None:
        """Push to the driver's inbox; retried for `FORWARD_TIMEOUT_S` while the inbox is full or Redis unavailable."""
        event = FromNode(node.id, node.epoch, job_id, [msgspec.Raw(frame) for frame in frames])
        give_up_at = monotonic() + FORWARD_TIMEOUT_S
        while True:
            try:
                driver = driver or await self._driver_of(job_id, node.id)
                verdict = await self.router.to_driver(driver, event) if driver is not None else PushReply.GONE
                if verdict is not PushReply.FULL:
                    break
            except StoreError:
                verdict = PushReply.FULL
            if monotonic() > give_up_at:
                break
            await asyncio.sleep(FORWARD_PAUSE_S)
        if verdict is not PushReply.OK:
            reason = "no_driver" if driver is None else f"inbox_{verdict.lower()}"
            self.metrics.dropped.labels(reason).inc(len(frames))

    async def _driver_of(self, job_id: str, node_id: str) -> str | None:
        """For a job that this connection was not assigned: a result after a reconnect, or an unexpected one."""
        job = await self.router.jobs.get(job_id)
        return job.get("driver") if job is not None and job.get("node_id") == node_id else None


def _described(message: NodeRegister, node_id: str, epoch: int, instance: str, tenant: str) -> Snapshot:
    features = [feature for feature in NodeFeature if feature in (message.advanced_features or ())]
    return Snapshot(
        id=node_id,
        epoch=epoch,
        instance=instance,
        slots=slots_of(message.advanced_features) or 0,
        features=sorted(feature.value for feature in features),
        text=sorted(set(message.text_pairs or ())) if NodeFeature.TEXT_JOBS in features else [],
        previews=previews_of(message.advanced_features),
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
    """The fields of a snapshot that the message sets. A list that is missing changes nothing."""
    found: dict[str, Any] = {}
    if message.installed_services is not None:
        found["services"] = {service.service_id: service.type for service in message.installed_services[:MAX_SERVICES]}
    if message.capability_by_type:
        found["ready"] = sorted({c.type for c in message.capability_by_type if c.ready})[:MAX_READY]
    if (languages := message.language_capabilities) is not None:
        found["asr"] = languages.asr_languages
        found["semantic"] = languages.semantic_languages
        found["tts"] = languages.tts_languages
    return {name: value for name, value in found.items() if value is not None}
