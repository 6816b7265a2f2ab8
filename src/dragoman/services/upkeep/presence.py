"""The instance renews its presence, and stops acting when other instances may have declared it dead.

    renewed, lease valid               ─▶ act
    no renewal within the TTL          ─▶ pause: frames, entries and timers wait in order
    renewed, the inbox is still ours   ─▶ write again what this instance owns, then do what waited
    the inbox is not ours any more     ─▶ close every socket (clients connect again), continue as a new incarnation

Work that passed the check before the lease expired does no harm: every script compares attempt, node or epoch. Time
is monotonic and counts from when a renewal was *sent*, so this instance
stops before others may start.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from time import monotonic
from typing import Any
from uuid import uuid4

import structlog

from dragoman.domain.lease import SelfLease
from dragoman.services.metrics import Metrics
from dragoman.store.instances import Instances, Owners, Presence
from dragoman.store.nodes import Nodes

log = structlog.get_logger(__name__)

# Limits the frames that wait: clients were asked to pause. Work without a frame, such as the end of a socket, is
# always kept.
MAX_WAITING_BYTES = 256 * 1024 * 1024
RESUME_BATCH = 100
POLL_S = 0.05
FOREVER = -1


class TakeoverResult(StrEnum):
    """How the takeover of a dead instance ended."""

    DONE = "DONE"
    PARTIAL = "PARTIAL"  # entries stay in its inbox: of a later release, or the dead letters are full
    NOT_OURS = "NOT_OURS"  # it lives, or another instance takes it over


TakeOver = Callable[[str], Awaitable[TakeoverResult]]


class AlreadyRunning(Exception):
    """Another living instance has this id."""


class InstancePresence:
    """Renews presence every third of its TTL and guards everything that acts as owner."""

    def __init__(
        self,
        instances: Instances,
        metrics: Metrics,
        *,
        instance: str,
        ttl_s: float,
        group: str,
        describe: Callable[[str, str], Presence],
        on_return: Callable[[], Awaitable[None]],
        on_declared_dead: Callable[[], Awaitable[None]],
        is_dead: Callable[[Presence], bool] = lambda presence: False,
    ) -> None:
        """`is_dead`: whether the process that wrote a presence is known to have ended, before that presence expires."""
        self.instances, self.metrics = instances, metrics
        self.instance, self.ttl_s, self.group = instance, ttl_s, group
        self.incarnation = uuid4().hex
        self.lease = SelfLease(ttl_s)
        self.steady_at = float("inf")  # from then on this instance may declare others dead
        self._reconnects = -1  # of Redis, at our last renewal
        self.starting_over = False  # declared dead, and not yet back as a new incarnation
        self._describe, self._on_return, self._is_dead = describe, on_return, is_dead
        self._on_declared_dead = on_declared_dead
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._waiting_bytes = 0
        self._open = asyncio.Event()

    # -- the check -------------------------------------------------------------------------------

    def has_lease(self) -> bool:
        return self.lease.valid(monotonic())

    def guard(self, work: Callable[..., None], *args: Any) -> bool:
        """Do `work` now if the lease is valid and nothing waits before it; otherwise later, in order. False: later."""
        if not self._waiting and self.lease.valid(monotonic()):
            work(*args)
            return True
        self._open.clear()
        self.metrics.parked.inc()
        size = _frame_bytes(args)
        if not size or self._waiting_bytes + size <= MAX_WAITING_BYTES:
            self._waiting_bytes += size
            self._waiting.append((work, args))
        return False

    async def wait_for_lease(self) -> None:
        while not self.has_lease():
            self._open.clear()
            await self._open.wait()

    @property
    def steady(self) -> bool:
        """Whether this instance may declare others dead: one TTL after its first renewal since it lost Redis."""
        uninterrupted = self._reconnects == self.instances.redis.reconnects
        return uninterrupted and self.has_lease() and monotonic() >= self.steady_at

    # -- start -----------------------------------------------------------------------------------

    async def join(self, take_over: TakeOver) -> None:
        """Open the inbox and write presence. A dead predecessor of the same id is taken over first."""
        logged = False
        while (holder := await self.instances.open(self.instance, self.incarnation, self.group)) != "OK":
            alive = await self._living()
            if alive is not None:
                raise AlreadyRunning(
                    f"another instance with scheduler.phase2.instance_id = {self.instance!r} is alive "
                    f"(pid {alive.pid} on {alive.host}); give this one another id or stop that one"
                )
            if not logged:
                log.info("taking over from an earlier incarnation", instance=self.instance, holder=holder)
                logged = True
            result = await take_over(self.instance)
            if result is TakeoverResult.PARTIAL:
                await self.instances.inherit(self.instance, self.incarnation)
            elif result is TakeoverResult.NOT_OURS:
                await asyncio.sleep(POLL_S)
        await self.run_once()

    async def _living(self) -> Presence | None:
        """The living instance of our id, if there is one. The presence of a killed one exists, but is not renewed.

        A dead process does not act any more, so its lease need not expire: we delete its presence, unless it was
        written anew. In that case an earlier write of the dead process reached Redis late, and we read again.
        """
        left_ms = float("inf")
        while True:
            data, ttl_ms = await self.instances.presence_and_ttl(self.instance)
            found = self.instances.parse(data)
            if data is not None and found is not None and self._is_dead(found):
                await self.instances.drop_presence(self.instance, data)
                continue
            if found is None or ttl_ms > left_ms or ttl_ms == FOREVER:
                return found
            left_ms = ttl_ms
            await asyncio.sleep(POLL_S)

    # -- renewal ---------------------------------------------------------------------------------

    async def run_once(self) -> None:
        sent = monotonic()
        reconnects = self.instances.redis.reconnects
        # Redis may have been unavailable for less than our TTL and for more than the rest of another instance's.
        interrupted = reconnects != self._reconnects or not self.lease.valid(sent)
        # Checked before the write as well: our presence must not replace that of a successor.
        if (interrupted and await self.instances.holder(self.instance) != self.incarnation) or not await self._renew():
            await self._start_over()
            return
        if interrupted:
            await self._on_return()
            # Writing all that took time: the lease counts from a renewal after it.
            sent = monotonic()
            if not await self._renew():
                await self._start_over()
                return
            self.steady_at = monotonic() + self.ttl_s
        self._reconnects, self.starting_over = reconnects, False
        self.lease.renewed(sent)
        await self._resume()

    async def _renew(self) -> bool:
        return await self.instances.renew(self._describe(self.instance, self.incarnation), int(self.ttl_s * 1000))

    async def _resume(self) -> None:
        """Do what waited, in batches so that other tasks run in between; new work queues behind it."""
        while self._waiting and self.has_lease():
            for _ in range(min(RESUME_BATCH, len(self._waiting))):
                work, args = self._waiting.popleft()
                self._waiting_bytes -= _frame_bytes(args)
                try:
                    work(*args)
                except Exception:
                    log.exception("paused work failed")
            await asyncio.sleep(0)
        if not self._waiting:
            self._open.set()

    async def _start_over(self) -> None:
        """Others took over while our lease was expired: nothing that we had is ours any more."""
        if not self.starting_over:
            self.starting_over = True
            self.metrics.lease_lost.inc()
            log.warning("declared dead: closing every socket, to continue as a new incarnation", instance=self.instance)
        self._waiting.clear()
        self._waiting_bytes = 0
        self.lease = SelfLease(self.ttl_s)
        self.steady_at = float("inf")
        # The old incarnation must not seem to live on, least of all to us.
        await self.instances.withdraw_presence(self.instance, self.incarnation)
        self.incarnation = uuid4().hex
        try:
            await self._on_declared_dead()
        except AlreadyRunning as error:
            log.error("cannot come back", error=str(error))

    async def close(self) -> None:
        """A clean end: close the empty inbox and leave nothing to take over. Entries left in it are for others."""
        if await self.instances.close(self.instance, self.incarnation) == "OK":
            await self.instances.forget(self.instance, self.incarnation)
        else:
            await self.instances.withdraw_presence(self.instance, self.incarnation)


def _frame_bytes(args: tuple[Any, ...]) -> int:
    return sum(len(each) for each in args if isinstance(each, bytes))


# -- renewal ---------------------------------------------------------------------------------------
#
# Two small loops over keys: `Renewer` writes the owners of our nodes and sessions before their TTL expires, `Sweeper`
# removes nodes that have been offline for long.
#
# The renewer also writes owners that a Redis which lost its last writes has forgotten; never one that names another
# instance by now.


class Renewer:
    def __init__(
        self,
        owners: Owners,
        instance: str,
        nodes: Callable[[], Collection[str]],
        sessions: Callable[[], Collection[str]],
        named: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`named`: the nodes that showed a token."""
        self._owners, self._instance, self._nodes, self._sessions = owners, instance, nodes, sessions
        self._named = named

    async def run_once(self) -> None:
        await self._owners.renew(self._instance, list(self._nodes()), list(self._sessions()), self._named())


class Sweeper:
    def __init__(self, nodes: Nodes, stale_after_ms: int) -> None:
        self._nodes, self._stale_after_ms = nodes, stale_after_ms

    async def run_once(self) -> list[str]:
        gone = await self._nodes.forget(self._stale_after_ms)
        if gone:
            log.info("removed nodes that were offline for long", count=len(gone), nodes=gone[:8])
        return gone
