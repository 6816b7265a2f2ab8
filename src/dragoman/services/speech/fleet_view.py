"""The local view of the fleet, kept fresh by announcements and by what changed in Redis.

    announcement ─▶ at once, with the snapshot         refresh ─▶ what was heard since the last look
    own nodes    ─▶ at once, without Redis             silence ─▶ a node not heard for its TTL goes

Jobs that wait for a node are woken by whatever may help them: a node came, a slot went back.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

import structlog

from dragoman.domain.fleet import WHOLE_NODE, Fleet
from dragoman.protocol.peer import Announcement, CoolingDown, NodeLost, NodeSeen, SlotFreed
from dragoman.services.metrics import Metrics
from dragoman.store.nodes import Nodes, Snapshot, parse_snapshot
from dragoman.store.storm import CoolDowns, Storm

log = structlog.get_logger(__name__)


class FleetView:
    def __init__(self, nodes: Nodes, metrics: Metrics, *, presence_ttl_s: float, shared: bool = True) -> None:
        """Not `shared`: the nodes connected to this instance are all it knows."""
        self.fleet = Fleet()
        self._shared = shared
        self.on_lost: list[Callable[[str, int], None]] = []
        self.storm: Storm | None = None  # set by the dispatcher, which reports to it
        self._nodes, self._metrics, self._presence_ttl_s = nodes, metrics, presence_ttl_s
        self._since_ms = 0
        self._heard_at: dict[str, float] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._unreadable: set[str] = set()
        self._freed: dict[str, int] = {}  # node → how often we were told that it has a slot again
        self._snapshots: dict[str, Snapshot] = {}  # also of a node just lost: drivers ask what it could

    # -- what comes in ---------------------------------------------------------------------------

    def hear(self, message: Announcement) -> None:
        match message:
            case NodeSeen() if self._shared:
                snapshot = parse_snapshot(bytes(message.snapshot))
                if snapshot is not None:
                    self.saw(snapshot)
            case NodeLost():
                self.lost(message.node_id, message.epoch)
            case SlotFreed():
                self._freed[message.node_id] = self.times_freed(message.node_id) + 1
                self.fleet.freed(message.node_id)
                self.wake()
            case CoolingDown(failing=True, for_ms=0):
                self._resume(message.node_id)
            case CoolingDown(failing=True):
                self.fleet.pause(message.node_id, monotonic() + message.for_ms / 1000)
            case CoolingDown():
                self.fleet.cool(message.node_id, message.service, monotonic() + message.for_ms / 1000)

    def saw(self, snapshot: Snapshot) -> None:
        if self.fleet.upsert(snapshot.node()):
            self._heard_at[snapshot.id] = monotonic()
            self._snapshots[snapshot.id] = snapshot
            self._metrics.fleet.set(len(self.fleet))
            self.wake()

    def lost(self, node_id: str, epoch: int) -> None:
        """A node's connection is over. Drivers are told even when the view knows a newer one: their job was on this."""
        if self.fleet.remove(node_id, epoch):
            self._heard_at.pop(node_id, None)
            self._freed.pop(node_id, None)
            self._metrics.fleet.set(len(self.fleet))
        for listener in self.on_lost:
            listener(node_id, epoch)
        if node_id not in self.fleet:
            self._snapshots.pop(node_id, None)

    def times_freed(self, node_id: str) -> int:
        """Compared before and after a slot was asked for: the news that one is free can overtake the refusal."""
        return self._freed.get(node_id, 0)

    def has_feature(self, node_id: str, feature: str) -> bool:
        snapshot = self._snapshots.get(node_id)
        return snapshot is not None and feature in snapshot.features

    def type_of(self, node_id: str, service_id: str) -> str:
        """What a node's service is for: what pipelines ask for is a type. An unknown one is nobody's."""
        snapshot = self._snapshots.get(node_id)
        return snapshot.services.get(service_id, service_id) if snapshot is not None else service_id

    # -- refresh ---------------------------------------------------------------------------------

    async def run_once(self) -> None:
        if self._shared:
            await self._refresh()
        self._drop_silent(monotonic())

    async def _refresh(self) -> None:
        changes = await self._nodes.changed_since(self._since_ms)
        for snapshot in changes.seen:
            self.saw(snapshot)
        for node_id in changes.gone:
            known = self.fleet.get(node_id)
            if known is not None and not await self._nodes.online(node_id):
                self.lost(node_id, known.epoch)
        self._since_ms = changes.until_ms
        await self._learn_cool_downs([snapshot.id for snapshot in changes.seen])
        self._complain(changes.unreadable)

    async def _learn_cool_downs(self, node_ids: list[str]) -> None:
        """What others announced while we did not listen, or were not there yet."""
        storm = self.storm
        if storm is None:
            return
        found = await asyncio.gather(*(storm.cooling(node_id) for node_id in node_ids))
        for node_id, told in zip(node_ids, found, strict=True):
            if told.services or told.paused_until_ms:
                seconds, micros = await storm.redis.call_at(storm.keys.storm(node_id), "TIME")
                self._cool(node_id, told, int(seconds) * 1000 + int(micros) // 1000)
            if not told.paused_until_ms:
                self._resume(node_id)

    def _cool(self, node_id: str, told: CoolDowns, now_ms: int) -> None:
        """The storm guard calls a service by id@version, or it is the whole node."""
        for service, at_ms in told.services.items():
            what = service if service == WHOLE_NODE else self.type_of(node_id, service.rpartition("@")[0])
            self.fleet.cool(node_id, what, monotonic() + (at_ms - now_ms) / 1000)
        if told.paused_until_ms:
            self.fleet.pause(node_id, monotonic() + (told.paused_until_ms - now_ms) / 1000)

    def _resume(self, node_id: str) -> None:
        """The node works again after a run of failures: jobs that wait may have it."""
        if self.fleet.has_failed(node_id):
            self.fleet.resume(node_id)
            self.wake()

    def _complain(self, unreadable: list[str]) -> None:
        for node_id in set(unreadable) - self._unreadable:
            log.warning("a node's snapshot cannot be read; its next heartbeat replaces it", node=node_id)
        self._unreadable = set(unreadable)

    def _drop_silent(self, now: float) -> None:
        for node_id, heard_at in list(self._heard_at.items()):
            node = self.fleet.get(node_id)
            if node is not None and now - heard_at > self._presence_ttl_s:
                self.lost(node_id, node.epoch)

    # -- waiting ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may have become possible: whoever waits looks again."""
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def changed(self, patience_s: float) -> None:
        """Return at the next change, or when patience ends."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        timer = asyncio.get_running_loop().call_later(max(patience_s, 0), _resolve, future)
        try:
            await future
        finally:
            timer.cancel()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
