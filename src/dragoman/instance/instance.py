"""One instance: begins, serves, is away and comes back, drains, ends."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import structlog

from dragoman import __version__
from dragoman.config import Config
from dragoman.domain.durability import DurabilityClass, Judgement
from dragoman.gateway.auditing import Auditor
from dragoman.gateway.http import Backstage
from dragoman.instance.doors import Doors
from dragoman.instance.redis_check import CannotStart, check_redis, connected, unsafe
from dragoman.instance.same_host import machine, start_ticks
from dragoman.instance.services import Services
from dragoman.instance.stores import Stores
from dragoman.protocol.codes import Close
from dragoman.services.routing.handlers import NoHandler
from dragoman.services.upkeep.presence import AlreadyRunning
from dragoman.store.errors import StoreError
from dragoman.store.instances import Presence
from dragoman.store.redis import Redis

log = structlog.get_logger(__name__)

LEAVE_PATIENCE_S = 2.0
SUBSCRIBE_PATIENCE_S = 1.0


def instance_name(configured: str, number: int, workers: int) -> str:
    if configured == "auto":
        return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
    return f"{configured}-{number}" if workers > 1 else configured


class Instance:
    """Begin with `await Instance.start(...)`, end with `drain()` and `stop()`."""

    def __init__(
        self,
        config: Config,
        redis: Redis,
        durability: Judgement,
        number: int,
        connect: Callable[[], Awaitable[Redis]],
    ) -> None:
        self.config, self.redis, self._judgement = config, redis, durability
        self.name = instance_name(config.scheduler.phase2.instance_id, number, config.server.workers)
        self.started_ms = int(time.time() * 1000)
        self._machine, self._start_ticks = machine(), start_ticks(os.getpid())
        self.ready = self.draining = False
        self.admin_port = config.server.admin_port + number if config.server.admin_port else 0
        self.stores = Stores(config, redis)
        self.services = Services(
            config, self.name, self.stores, describe=self._describe, on_declared_dead=self._declared_dead,
            on_drain=self._drain_in_background, on_switches_changed=self._tell_durability,
            on_wrong_archive=self._end_process, connect=connect,
        )  # fmt: skip
        self._told_durability: DurabilityClass | None = None
        self._drain: asyncio.Task[None] | None = None
        self.doors = Doors(config, self.services, lambda: self.draining)
        self._loops: list[asyncio.Task[None]] = []

    # -- beginning -------------------------------------------------------------------------------

    @classmethod
    async def start(cls, config: Config, redis_url: str | None = None, number: int = 1) -> "Instance":
        """Connect, check Redis, open the inbox, listen. Raises CannotStart with one sentence."""
        for warning in unsafe(config):
            log.warning(warning)
        redis = await connected(config, redis_url)
        try:
            durability = await check_redis(redis)
        except BaseException:
            await redis.close()
            raise
        self = cls(config, redis, durability, number, lambda: connected(config, redis_url))
        try:
            await self._begin()
        except (AlreadyRunning, NoHandler) as error:
            await self.stop()
            raise CannotStart(str(error)) from None
        except BaseException:
            await self.stop()
            raise
        return self

    async def _begin(self) -> None:
        services = self.services
        services.handlers.require_all()
        # Before a takeover of our earlier incarnation: whether its jobs can go on depends on the nodes we know.
        await services.view.run_once()
        await services.revocations.run_once()  # before anybody can connect
        await services.chat.begin()
        await self._enter()
        self._loops += [asyncio.create_task(loop, name=name) for name, loop in services.loops(self.config).items()]
        await self._hear_announcements()
        stage = Backstage(
            self.name,
            services.metrics.registry,
            services.report,
            services.letters,
            self.stores.jobs,
            self.stats,
            self.why_not_ready,
            Auditor(self.stores.audit, self.name),
        )
        await self.doors.open(stage, self.admin_port)
        self.ready = True
        self._tell_durability()
        log.info("instance ready", instance=self.name, port=self.doors.listener.port, durability=self.durability)

    async def _hear_announcements(self) -> None:
        """What is announced before we listen is missed: look once more when we do, without waiting for it long."""
        try:
            async with asyncio.timeout(SUBSCRIBE_PATIENCE_S):
                await self.services.announcer.subscriber.subscribed.wait()
        except TimeoutError:
            log.warning("not listening to announcements yet; nodes elsewhere are known a moment later")
        await self.services.view.run_once()

    @property
    def durability(self) -> DurabilityClass:
        """What *accepted* is worth now: waiting for replicas is a switch."""
        return self._judgement.confirmed_by(self.services.chat.switches.current.wait_replicas)

    def _tell_durability(self) -> None:
        if self.durability is self._told_durability:
            return
        if self._told_durability is not None:
            log.warning("accepted has another durability now", before=self._told_durability, now=self.durability)
        self._told_durability = self.durability
        for each in DurabilityClass:
            self.services.metrics.durability.labels(each).set(each is self.durability)

    # -- being away ------------------------------------------------------------------------------

    def _describe(self, instance: str, incarnation: str) -> Presence:
        return Presence(
            instance=instance,
            incarnation=incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            machine=self._machine,
            start_ticks=self._start_ticks,
            port=self.config.server.port,
            admin_port=self.admin_port,
            version=__version__,
            started_ms=self.started_ms,
            durability=self.durability,
            sessions=len(self.services.sessions),
            nodes=len(self.services.local_nodes),
            jobs=len(self.services.dispatcher),
            draining=self.draining,
            save_lag=self._save_lag(),
        )

    def _save_lag(self) -> tuple[int, ...]:
        buckets = self.services.metrics.chat_save_lag.buckets
        return tuple(buckets) if any(buckets) else ()

    async def _declared_dead(self) -> None:
        """Nothing we held is ours: close every socket, come back as a new incarnation."""
        services = self.services
        services.dispatcher.abandon_all()
        services.sessions.drop_all(Close.LEASE_LOST)
        services.local_nodes.close_all(Close.LEASE_LOST)
        await services.chat.close_all()
        await self._enter()

    async def _enter(self) -> None:
        await self.services.presence.enter(self.services.takeover.take_over)
        await self.services.orphans.index()

    def _end_process(self) -> None:
        """As if told to. The supervisor starts it again, and the start is refused with a sentence."""
        os.kill(os.getpid(), signal.SIGTERM)

    # -- what can be seen ------------------------------------------------------------------------

    def why_not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        if not self.ready:
            return "starting"
        if not self.redis.connected:
            return "Redis is away"
        return None if self.services.presence.has_lease() else "the lease of this instance has run out"

    def stats(self) -> dict[str, Any]:
        services, counters = self.services, self.doors.listener.counters
        return {
            "instance": self.name,
            "version": __version__,
            "started_ms": self.started_ms,
            "durability": self.durability,
            "lease_s": round(services.presence.lease.expires_at - time.monotonic(), 3),
            "sessions": len(services.sessions),
            "nodes_here": len(services.local_nodes),
            "nodes_known": len(services.view.fleet),
            "jobs": len(services.dispatcher),
            "orphans": len(services.orphans),
            "chat_users": len(services.chat.local),
            "chat_shards": services.chat.assigner.owned,
            "connections": len(self.doors.listener.connections),
            "heads": len(self.doors.listener.registry.heads),
            "leaving": len(self.doors.listener.registry.leaving),
            "tasks": len(asyncio.all_tasks()),
            "frames_in": counters.frames_in,
            "frames_out": counters.frames_out,
            "bytes_in": counters.bytes_in,
            "bytes_out": counters.bytes_out,
        }

    # -- ending ----------------------------------------------------------------------------------

    async def drain(self) -> None:
        """No new sessions; those that can resume go elsewhere at once; what runs may finish, also on our nodes for
        other instances. Called again, it waits for the same drain."""
        if self._drain is None:
            # At once, not when the task begins: no job may be made from this moment on.
            self.draining = True
            self.services.sessions.hold()
            self._drain = asyncio.create_task(self._drain_once(), name="drain")
        await self._drain

    def _drain_in_background(self) -> None:
        self.services.tasks.spawn(self.drain(), "drain")

    async def _drain_once(self) -> None:
        until = time.monotonic() + self.config.server.drain_s
        log.info("draining", jobs=len(self.services.dispatcher), sessions=len(self.services.sessions))
        await self.doors.listener.stop_accepting()
        await self._say_that_we_leave()
        await self._give_up_shards()
        self.services.sessions.send_elsewhere()
        await self.services.dispatcher.drained(until - time.monotonic())
        # After our own jobs, which may need our nodes: those are sent elsewhere as they become idle.
        if not await self.services.local_nodes.finish(until - time.monotonic()):
            log.warning("jobs of other instances are cut off: the drain is over", drain_s=self.config.server.drain_s)

    async def _say_that_we_leave(self) -> None:
        """Before we let go of anything: others only take what is not the share of somebody who stays."""
        try:
            async with asyncio.timeout(LEAVE_PATIENCE_S):
                await self.services.presence.run_once()
        except (StoreError, TimeoutError):
            log.warning("could not say that this instance leaves")

    async def _give_up_shards(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_PATIENCE_S):
                await self.services.chat.drain()
        except (StoreError, TimeoutError):
            log.warning("could not give up the chat shards; others take them when their leases lapse")

    async def stop(self) -> None:
        """Send every client elsewhere. If Redis answers, nothing is left for others to take over."""
        self.ready = False
        await self._give_up_shards()
        try:
            async with asyncio.timeout(LEAVE_PATIENCE_S):
                await self.services.sessions.hand_over()
        except (StoreError, TimeoutError):
            log.warning("could not hand sessions over; they end when their grace is over")
        await self.doors.close(Close.SHUTDOWN)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        try:
            async with asyncio.timeout(LEAVE_PATIENCE_S):
                await self._leave()
        except (StoreError, TimeoutError):
            log.warning("could not sign off from Redis; another instance will take over from this one")
        await self.services.tasks.cancel()
        await self.services.reader.close()
        await self.services.chat.close()
        await self.redis.close()

    async def _leave(self) -> None:
        """What closing sockets wrote in the background is written before our name goes."""
        await self.services.tasks.settled()
        await self.services.chat.release_worker()
        await self.services.presence.close()
