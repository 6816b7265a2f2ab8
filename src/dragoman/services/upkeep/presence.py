"""The instance keeps saying that it lives, and stops acting when it can no longer be sure that others believe it.

    renew ok, lease valid          ─▶ act
    no renewal within the TTL      ─▶ park: frames, entries and timers wait in order
    renewed, inbox still ours      ─▶ write again what we own, then do what was parked
    the inbox is not ours any more ─▶ close every socket (come back), go on as a new incarnation

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
from dragoman.services.upkeep.burial import Burial
from dragoman.store.instances import DROP_IF, MARK, MARK_BURIAL, Instances, Presence

log = structlog.get_logger(__name__)

# What waits is bounded by the frames in it: clients were told to pause. What carries none, such as the end of a
# socket, is always kept.
MAX_PARKED_BYTES = 256 * 1024 * 1024
RESUME_BATCH = 100
LOOK_S = 0.05
FOREVER = -1

Bury = Callable[[str], Awaitable[Burial]]


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
        is_dead: Callable[[Presence], bool] = lambda presence: False,
    ) -> None:
        """`is_dead`: whether the process that wrote a presence is known to have ended, before that presence lapses."""
        self.instances, self.metrics = instances, metrics
        self.instance, self.ttl_s, self.group = instance, ttl_s, group
        self.incarnation = uuid4().hex
        self.lease = SelfLease(ttl_s)
        self.steady_at = float("inf")  # from then on we may call others dead
        self._reconnects = -1  # of Redis, when we last renewed
        self._lost = False  # buried, and not yet back as a new incarnation
        self._describe, self._on_return, self._on_buried, self._is_dead = describe, on_return, on_buried, is_dead
        self._parked: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._parked_bytes = 0
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
        size = _frame_bytes(args)
        if not size or self._parked_bytes + size <= MAX_PARKED_BYTES:
            self._parked_bytes += size
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

    # -- beginning -------------------------------------------------------------------------------

    async def enter(self, bury: Bury) -> None:
        """Open the inbox and say that we live. A dead predecessor of the same id is buried first."""
        told = False
        while (holder := await self.instances.open(self.instance, self.incarnation, self.group)) != "OK":
            alive = await self._living()
            if alive is not None:
                raise AlreadyRunning(
                    f"another instance with scheduler.phase2.instance_id = {self.instance!r} is alive "
                    f"(pid {alive.pid} on {alive.host}); give this one another id or stop that one"
                )
            if not told:
                log.info("burying what an earlier life left", instance=self.instance, holder=holder)
                told = True
            burial = await bury(self.instance)
            if burial is Burial.LEFT:
                await self._inherit()
            elif burial is Burial.NOT_OURS:
                await asyncio.sleep(LOOK_S)
        await self.run_once()

    async def _living(self) -> Presence | None:
        """Whoever lives under our name. The presence of one that was killed a moment ago stands, but is not renewed.

        A dead process does not act any more, so its lease need not run out: we take its presence away, unless it was
        written anew. Then an earlier write of it has only now reached Redis, and we look again.
        """
        redis, key, left_ms = self.instances.redis, self.instances.keys.presence(self.instance), float("inf")
        while True:
            data, ttl_ms = await asyncio.gather(redis.call("GET", key), redis.call("PTTL", key))
            found = self.instances.parse(data)
            if found is not None and self._is_dead(found):
                await DROP_IF(redis, held=key, value=data)
                continue
            if found is None or ttl_ms > left_ms or ttl_ms == FOREVER:
                return found
            left_ms = ttl_ms
            await asyncio.sleep(LOOK_S)

    async def _inherit(self) -> None:
        """Take over the inbox of our predecessor with what must stay in it."""
        holder = await self.instances.holder(self.instance)
        opened = self.instances.keys.open(self.instance)
        if holder is not None and holder.startswith(MARK):
            await MARK_BURIAL(self.instances.redis, opened=opened, incarnation=holder, mark=self.incarnation)

    # -- renewal ---------------------------------------------------------------------------------

    async def run_once(self) -> None:
        sent = monotonic()
        reconnects = self.instances.redis.reconnects
        # Redis may have been away for less than our TTL and for more than what was left of somebody else's.
        away = reconnects != self._reconnects or not self.lease.valid(sent)
        # Looked at before we write as well: our word must not stand where a successor's does.
        if (away and await self.instances.holder(self.instance) != self.incarnation) or not await self._renew():
            await self._start_over()
            return
        if away:
            await self._on_return()
            # Writing all that took its time: the lease counts from a renewal after it.
            sent = monotonic()
            if not await self._renew():
                await self._start_over()
                return
            self.steady_at = monotonic() + self.ttl_s
        self._reconnects, self._lost = reconnects, False
        self.lease.renewed(sent)
        await self._resume()

    async def _renew(self) -> bool:
        presence = self._describe(self.instance, self.incarnation)
        # Named again each time: an undertaker may have taken our name off the list after we had come back.
        named = self.instances.redis.call("SADD", self.instances.keys.instances, self.instance)
        renewed, _ = await asyncio.gather(self.instances.renew(presence, int(self.ttl_s * 1000)), named)
        return renewed

    async def _resume(self) -> None:
        """Do what was parked, letting others in between; what comes meanwhile goes behind it."""
        while self._parked and self.may_act():
            for _ in range(min(RESUME_BATCH, len(self._parked))):
                work, args = self._parked.popleft()
                self._parked_bytes -= _frame_bytes(args)
                try:
                    work(*args)
                except Exception:
                    log.exception("parked work failed")
            await asyncio.sleep(0)
        if not self._parked:
            self._open.set()

    async def _start_over(self) -> None:
        """Others buried us while we were away: nothing we hold is ours any more."""
        if not self._lost:
            self._lost = True
            self.metrics.buried.inc()
            log.warning(
                "buried while away: closing every socket, to go on as a new incarnation", instance=self.instance
            )
        self._parked.clear()
        self._parked_bytes = 0
        self.lease = SelfLease(self.ttl_s)
        self.steady_at = float("inf")
        # The life that is over must not seem to go on, least of all to us.
        await self._withdraw()
        self.incarnation = uuid4().hex
        try:
            await self._on_buried()
        except AlreadyRunning as error:
            log.error("cannot come back", error=str(error))

    async def _withdraw(self) -> None:
        """Take our presence back, and nobody else's."""
        key = self.instances.keys.presence(self.instance)
        data = await self.instances.redis.call("GET", key)
        if data is not None and self.incarnation.encode() in data:
            await DROP_IF(self.instances.redis, held=key, value=data)

    async def leave(self) -> None:
        """A clean end: close the emptied inbox and leave nothing to be buried; what is left in it is for others."""
        if await self.instances.close(self.instance, self.incarnation) == "OK":
            await self.instances.forget(self.instance, self.incarnation)
        else:
            await self._withdraw()


def _frame_bytes(args: tuple[Any, ...]) -> int:
    return sum(len(each) for each in args if isinstance(each, bytes))
