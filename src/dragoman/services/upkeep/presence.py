"""The instance keeps saying that it lives, and stops acting when it can no longer be sure that others believe it.

    renew ok, lease valid          ─▶ act
    no renewal within the TTL      ─▶ park: frames, entries and timers wait in order
    renewed, inbox still ours      ─▶ write again what we own, then do what was parked
    renewed, but we were buried    ─▶ close every socket (come back), go on as a new incarnation

What had passed the check before the lease ran out does no harm: every script compares attempt, node or
epoch. Time is monotonic and counted from when a renewal was *sent*, so we stop before others may begin.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any
from uuid import uuid4

import structlog

from dragoman.domain.lease import SelfLease
from dragoman.services.metrics import Metrics
from dragoman.store.instances import Instances, Presence

log = structlog.get_logger(__name__)

MAX_PARKED = 100_000


class AlreadyRunning(Exception):
    """Another living instance has this id."""


class PresenceKeeper:
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
        on_buried: Callable[[], Awaitable[None]],
    ) -> None:
        self.instances, self.metrics = instances, metrics
        self.instance, self.ttl_s, self.group = instance, ttl_s, group
        self.incarnation = uuid4().hex
        self.lease = SelfLease(ttl_s)
        self.steady_at = float("inf")  # from then on we may call others dead
        self._reconnects = -1  # of Redis, when we last renewed
        self._describe, self._on_return, self._on_buried = describe, on_return, on_buried
        self._parked: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._open = asyncio.Event()

    # -- the check -------------------------------------------------------------------------------

    def may_act(self) -> bool:
        return self.lease.valid(monotonic())

    def guard(self, work: Callable[..., None], *args: Any) -> bool:
        """Do `work` now if the lease holds and nothing waits before it; otherwise in order, later. False: it waits."""
        if not self._parked and self.lease.valid(monotonic()):
            work(*args)
            return True
        self._open.clear()
        self.metrics.parked.inc()
        if len(self._parked) < MAX_PARKED:
            self._parked.append((work, args))
        return False

    async def wait_may_act(self) -> None:
        while not self.may_act():
            self._open.clear()
            await self._open.wait()

    @property
    def steady(self) -> bool:
        """Whether we may call others dead: one TTL after our first renewal since we were away."""
        uninterrupted = self._reconnects == self.instances.redis.reconnects
        return uninterrupted and self.may_act() and monotonic() >= self.steady_at

    # -- renewal ---------------------------------------------------------------------------------

    async def enter(self, bury: Callable[[str], Awaitable[bool]]) -> None:
        """Open the inbox and say that we live. A dead predecessor of the same id is buried first."""
        while (holder := await self.instances.open(self.instance, self.incarnation, self.group)) != "OK":
            alive = await self.instances.presence(self.instance)
            if alive is not None and alive.incarnation != self.incarnation:
                raise AlreadyRunning(
                    f"another instance with scheduler.phase2.instance_id = {self.instance!r} is alive "
                    f"(pid {alive.pid} on {alive.host}); give this one another id or stop that one"
                )
            log.info("burying what an earlier life left", instance=self.instance, holder=holder)
            if not await bury(self.instance):
                await asyncio.sleep(0.05)
        await self.run_once()

    async def run_once(self) -> None:
        now = monotonic()
        reconnects = self.instances.redis.reconnects
        # Redis may have been away for less than our TTL and for more than what was left of somebody else's.
        away = reconnects != self._reconnects or not self.lease.valid(now)
        presence = self._describe(self.instance, self.incarnation)
        if not await self.instances.renew(presence, int(self.ttl_s * 1000)):
            await self._start_over()
            return
        self.lease.renewed(now)
        self._reconnects = reconnects
        if away:
            self.steady_at = monotonic() + self.ttl_s
            await self._on_return()
        self._resume()

    def _resume(self) -> None:
        while self._parked and self.may_act():
            work, args = self._parked.popleft()
            try:
                work(*args)
            except Exception:
                log.exception("parked work failed")
        if not self._parked:
            self._open.set()

    async def _start_over(self) -> None:
        """Others buried us while we were away: nothing we hold is ours any more."""
        log.warning("buried while away: closing every socket and going on as a new incarnation", instance=self.instance)
        self.metrics.buried.inc()
        self._parked.clear()
        self.lease = SelfLease(self.ttl_s)
        self.steady_at = float("inf")
        self.incarnation = uuid4().hex
        await self._on_buried()

    async def leave(self) -> None:
        """A clean end: close the emptied inbox and leave nothing to be buried."""
        if await self.instances.close(self.instance, self.incarnation) == "OK":
            await self.instances.forget(self.instance, self.incarnation)
