"""The local view of the fleet, updated by announcements and by what changed in Redis.

    announcement ─▶ at once, with the snapshot      refresh ─▶ what changed in Redis since the last refresh
    own nodes    ─▶ at once, without Redis          silence ─▶ a node without a heartbeat for its TTL is lost

Jobs that wait for a node are woken when a node came or a slot was released. `NodeTransport` sends the messages of
drivers to the nodes of the view.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import assert_never

import msgspec
import structlog

from dragoman.domain.fleet import WHOLE_NODE, Fleet
from dragoman.domain.limits.fair_queue import FairQueue
from dragoman.domain.placement import Assign
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import NodeFeature
from dragoman.protocol.node import JobCancel
from dragoman.protocol.peer import (
    Announcement,
    AssignJob,
    CancelJob,
    CoolingDown,
    EarlyPushes,
    NodeLost,
    NodeSeen,
    PushedEarly,
    RevocationChanged,
    ShardFreed,
    SlotFreed,
    SwitchesChanged,
)
from dragoman.services.loops import Tasks, resolve
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import InboxFull, Router
from dragoman.services.speech.job_request import JobRequest
from dragoman.store.errors import StoreError
from dragoman.store.inbox import PushReply
from dragoman.store.nodes import CoolDowns, Nodes, Snapshot, Storm, parse_snapshot

log = structlog.get_logger(__name__)


class FleetView:
    def __init__(
        self,
        nodes: Nodes,
        storm: Storm,
        metrics: Metrics,
        *,
        presence_ttl_s: float,
        shared: bool = True,
    ) -> None:
        """Not `shared`: the nodes connected to this instance are all it knows."""
        self.fleet = Fleet()
        self._nodes, self._storm, self._metrics, self._presence_ttl_s = nodes, storm, metrics, presence_ttl_s
        self._shared = shared
        self._lost_listeners: list[Callable[[str, int], None]] = []
        self._since_ms = 0
        self._seen_at: dict[str, float] = {}
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._unreadable: set[str] = set()
        self._times_freed: dict[str, int] = {}  # node → how often a free slot was announced
        self._snapshots: dict[str, Snapshot] = {}  # also of a node just lost: listeners need its features
        self._speech_waits = 0

    def on_lost(self, listener: Callable[[str, int], None]) -> None:
        """`listener` is called with the id and epoch of each lost connection of a node."""
        self._lost_listeners.append(listener)

    # -- updates ---------------------------------------------------------------------------------

    def on_announcement(self, message: Announcement) -> None:
        match message:
            case NodeSeen():
                snapshot = parse_snapshot(bytes(message.snapshot)) if self._shared else None
                if snapshot is not None:
                    self.seen(snapshot)
            case NodeLost():
                self.lost(message.node_id, message.epoch)
            case SlotFreed():
                self._times_freed[message.node_id] = self.times_freed(message.node_id) + 1
                self.fleet.freed(message.node_id)
                self.wake()
            case CoolingDown(failing=True, for_ms=0):
                self._resume(message.node_id)
            case CoolingDown(failing=True):
                self.fleet.pause(message.node_id, monotonic() + message.for_ms / 1000)
            case CoolingDown():
                self.fleet.cool(message.node_id, message.service, monotonic() + message.for_ms / 1000)
            case SwitchesChanged() | ShardFreed() | EarlyPushes() | PushedEarly() | RevocationChanged():
                pass  # of other subscribers
            case _:
                assert_never(message)

    def seen(self, snapshot: Snapshot) -> None:
        if self.fleet.upsert(snapshot.node()):
            self._seen_at[snapshot.id] = monotonic()
            self._snapshots[snapshot.id] = snapshot
            self._metrics.fleet.set(len(self.fleet))
            self.wake()

    def lost(self, node_id: str, epoch: int) -> None:
        """A node's connection is over. Notify even if the view knows a newer one: jobs may be on the lost one."""
        if self.fleet.remove(node_id, epoch):
            self._seen_at.pop(node_id, None)
            self._times_freed.pop(node_id, None)
            self._metrics.fleet.set(len(self.fleet))
        for listener in self._lost_listeners:
            listener(node_id, epoch)
        if node_id not in self.fleet:
            self._snapshots.pop(node_id, None)

    def times_freed(self, node_id: str) -> int:
        """Compared before and after a reservation: the announcement of a free slot can overtake a refusal."""
        return self._times_freed.get(node_id, 0)

    def has_feature(self, node_id: str, feature: str) -> bool:
        snapshot = self._snapshots.get(node_id)
        return snapshot is not None and feature in snapshot.features

    def type_of(self, node_id: str, service_id: str) -> str:
        """The type of a node's service, which is what pipelines need; the id itself if it is unknown."""
        snapshot = self._snapshots.get(node_id)
        return snapshot.services.get(service_id, service_id) if snapshot is not None else service_id

    def serves_text(self, src: str, tgt: str) -> bool:
        """Whether some node takes text jobs of this pair now; with the source `auto`, one that detects the language."""
        return self.fleet.serves_text(src, tgt)

    def serves_speech(self, src: str, tgt: str) -> bool:
        """Whether some node takes jobs of speech of this pair now."""
        return self.fleet.serves_speech(src, tgt)

    # -- refresh ---------------------------------------------------------------------------------

    async def run_once(self) -> None:
        if self._shared:
            await self._refresh()
        self._drop_silent(monotonic())

    async def _refresh(self) -> None:
        changes = await self._nodes.changed_since(self._since_ms)
        for snapshot in changes.seen:
            self.seen(snapshot)
        for node_id in changes.gone:
            known = self.fleet.get(node_id)
            if known is not None and not await self._nodes.online(node_id):
                self.lost(node_id, known.epoch)
        self._since_ms = changes.until_ms
        await self._learn_cool_downs([snapshot.id for snapshot in changes.seen])
        self._log_unreadable(changes.unreadable)

    async def _learn_cool_downs(self, node_ids: list[str]) -> None:
        """Read what other instances announced before this one was subscribed."""
        storm = self._storm
        found = await asyncio.gather(*(storm.cooling(node_id) for node_id in node_ids))
        for node_id, cooling in zip(node_ids, found, strict=True):
            if cooling.services or cooling.paused_until_ms:
                self._cool(node_id, cooling, await storm.now_ms(node_id))
            if not cooling.paused_until_ms:
                self._resume(node_id)

    def _cool(self, node_id: str, cooling: CoolDowns, now_ms: int) -> None:
        """The storm guard names a service id@version, or `*` for the whole node."""
        for service, at_ms in cooling.services.items():
            what = service if service == WHOLE_NODE else self.type_of(node_id, service.rpartition("@")[0])
            self.fleet.cool(node_id, what, monotonic() + (at_ms - now_ms) / 1000)
        if cooling.paused_until_ms:
            self.fleet.pause(node_id, monotonic() + (cooling.paused_until_ms - now_ms) / 1000)

    def _resume(self, node_id: str) -> None:
        """The node works again after a run of failures: jobs that wait may use it."""
        if self.fleet.has_failed(node_id):
            self.fleet.resume(node_id)
            self.wake()

    def _log_unreadable(self, unreadable: list[str]) -> None:
        for node_id in set(unreadable) - self._unreadable:
            log.warning("unreadable node snapshot; the next heartbeat replaces it", node=node_id)
        self._unreadable = set(unreadable)

    def _drop_silent(self, now: float) -> None:
        for node_id, seen_at in list(self._seen_at.items()):
            node = self.fleet.get(node_id)
            if node is not None and now - seen_at > self._presence_ttl_s:
                self.lost(node_id, node.epoch)

    # -- waiting ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed: every job that waits looks for a node again. The clients take turns, so the jobs of one
        client do not take all free slots while others wait."""
        waiting, self._waiting = self._waiting, FairQueue()
        while (future := waiting.pop()) is not None:
            resolve(future)

    @property
    def speech_waits(self) -> bool:
        """Whether some job of speech of this instance waits for a node."""
        return self._speech_waits > 0

    def next_change(self, account: str, *, is_speech: bool = False) -> "asyncio.Future[None]":
        """Done at the next change; the caller may resolve it earlier. `account`: whose job it is that waits. Text jobs
        yield to a job of speech."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(account, future)
        if is_speech:
            self._speech_waits += 1
            future.add_done_callback(self._speech_waited)
        return future

    def _speech_waited(self, _: "asyncio.Future[None]") -> None:
        self._speech_waits -= 1


CANCEL_TIMEOUT_S = 5.0


class NodeTransport:
    """Sends messages of drivers to nodes of any instance."""

    def __init__(self, instance: str, view: FleetView, router: Router, tasks: Tasks) -> None:
        self._instance, self._view, self._router, self._tasks = instance, view, router, tasks

    def acknowledges(self, node_id: str) -> bool:
        node = self._view.fleet.get(node_id)
        return node is not None and NodeFeature.JOB_ACK in node.features

    async def assign(self, choice: Assign, job_id: str, attempt: int, frame: bytes) -> PushReply:
        node = self._view.fleet.get(choice.node_id)
        message = AssignJob(
            node_id=choice.node_id,
            epoch=choice.epoch,
            job_id=job_id,
            attempt=attempt,
            driver=self._instance,
            frame=msgspec.Raw(frame),
        )
        try:
            return await self._router.to_node(node.instance if node is not None else "", message)
        except StoreError:
            return PushReply.GONE

    def cancel(self, node_id: str, request: JobRequest, reason: str, *, unless: Callable[[], bool]) -> None:
        """Another job will get the slot soon, so the node should stop."""
        node = self._view.fleet.get(node_id)
        if node is not None:
            frame = encode(JobCancel(job_id=request.job_id, trace_id=request.trace_id, reason=reason))
            message = CancelJob(node_id, request.job_id, msgspec.Raw(frame))
            self._tasks.spawn(self._cancel(node.instance, message, unless), "cancel")

    async def _cancel(self, owner: str, message: CancelJob, unless: Callable[[], bool]) -> None:
        async def push() -> PushReply:
            return PushReply.GONE if unless() else await self._router.to_node(owner, message)

        try:
            await self._router.push_until(owner, push, CANCEL_TIMEOUT_S)
        except InboxFull as error:
            log.warning(
                "job not cancelled at its node: its inbox is full", node=message.node_id, error=str(error), limited=True
            )
