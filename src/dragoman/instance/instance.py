"""One instance: starts, serves, rejoins after it lost its lease, drains, stops."""

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
from dragoman.domain.durability import Assessment, DurabilityClass
from dragoman.gateway.operator_api import Auditor, HttpContext
from dragoman.instance.ports import Ports
from dragoman.instance.process import machine, start_ticks
from dragoman.instance.redis_check import CannotStart, check_redis, connected, unsafe
from dragoman.instance.services import Services, Stores
from dragoman.protocol.codes import Close
from dragoman.services.routing.router import NoHandler
from dragoman.services.upkeep.presence import AlreadyRunning
from dragoman.store.errors import StoreError
from dragoman.store.instances import Presence
from dragoman.store.redis import Redis

log = structlog.get_logger(__name__)

REDIS_TIMEOUT_S = 2.0  # of each step of the end that needs Redis
SUBSCRIBE_TIMEOUT_S = 1.0


def instance_name(configured: str, number: int, workers: int) -> str:
    if configured == "auto":
        return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
    return f"{configured}-{number}" if workers > 1 else configured


class Instance:
    """Start with `await Instance.start(...)`, end with `drain()` and `stop()`."""

    def __init__(
        self,
        config: Config,
        redis: Redis,
        assessment: Assessment,
        number: int,
        connect: Callable[[], Awaitable[Redis]],
    ) -> None:
        self.config, self.redis, self._assessment = config, redis, assessment
        self.name = instance_name(config.scheduler.phase2.instance_id, number, config.server.workers)
        self.started_ms = int(time.time() * 1000)
        self._machine, self._start_ticks = machine(), start_ticks(os.getpid())
        self.ready = self.draining = False
        self.admin_port = config.server.admin_port + number if config.server.admin_port else 0
        self.stores = Stores(config, redis)
        self.services = Services(
            config, self.name, self.stores, describe=self._describe, on_declared_dead=self._declared_dead,
            on_drain=self._drain_in_background, on_switches_changed=self._report_durability,
            on_wrong_archive=self._end_process, connect=connect,
        )  # fmt: skip
        self._reported_durability: DurabilityClass | None = None
        self._drain: asyncio.Task[None] | None = None
        self.ports = Ports(config, self.services, lambda: self.draining)
        self._loops: list[asyncio.Task[None]] = []

    # -- starting -------------------------------------------------------------------------------

    @classmethod
    async def start(cls, config: Config, redis_url: str | None = None, number: int = 1) -> "Instance":
        """Connect, check Redis, open the inbox, listen. Raises CannotStart."""
        for warning in unsafe(config):
            log.warning(warning)
        redis = await connected(config, redis_url)
        try:
            assessment = await check_redis(redis)
        except BaseException:
            await redis.close()
            raise
        self = cls(config, redis, assessment, number, lambda: connected(config, redis_url))
        try:
            await self._start()
        except (AlreadyRunning, NoHandler) as error:
            await self.stop()
            raise CannotStart(str(error)) from None
        except BaseException:
            await self.stop()
            raise
        return self

    async def _start(self) -> None:
        services = self.services
        services.handlers.require_all()
        # Before this instance takes over its own earlier incarnation: the jobs of nodes it does not know fail.
        await services.view.run_once()
        await services.revocations.run_once()  # before the port is open
        await services.chat.begin()
        await self._join()
        self._loops += [asyncio.create_task(loop, name=name) for name, loop in services.loops(self.config).items()]
        await self._wait_for_subscription()
        context = HttpContext(
            self.name,
            services.metrics.registry,
            services.report,
            services.letters,
            self.stores.jobs,
            self.stats,
            self.why_not_ready,
            Auditor(self.stores.audit, self.name),
        )
        await self.ports.open(context, self.admin_port)
        self.ready = True
        self._report_durability()
        log.info("instance ready", instance=self.name, port=self.ports.listener.port, durability=self.durability)

    async def _wait_for_subscription(self) -> None:
        """Refresh the fleet view once announcements arrive: earlier ones were missed."""
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                await self.services.announcer.subscriber.subscribed.wait()
        except TimeoutError:
            log.warning("not subscribed to announcements yet; remote nodes are known later")
        await self.services.view.run_once()

    @property
    def durability(self) -> DurabilityClass:
        """What *accepted* guarantees now: waiting for replicas is a feature switch."""
        return self._assessment.confirmed_by(self.services.chat.switches.current.wait_replicas)

    def _report_durability(self) -> None:
        if self.durability is self._reported_durability:
            return
        if self._reported_durability is not None:
            log.warning("durability of accepted changed", before=self._reported_durability, now=self.durability)
        self._reported_durability = self.durability
        for each in DurabilityClass:
            self.services.metrics.durability.labels(each).set(each is self.durability)

    # -- presence --------------------------------------------------------------------------------

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
        """Other instances own everything now: close every socket and join as a new incarnation."""
        services = self.services
        services.dispatcher.abandon_all()
        services.sessions.drop_all(Close.LEASE_LOST)
        services.local_nodes.close_all(Close.LEASE_LOST)
        await services.chat.close_all()
        await self._join()

    async def _join(self) -> None:
        await self.services.presence.join(self.services.takeover.take_over)
        await self.services.orphans.index()

    def _end_process(self) -> None:
        """The supervisor starts the process again; the start fails and says why."""
        os.kill(os.getpid(), signal.SIGTERM)

    # -- status ----------------------------------------------------------------------------------

    def why_not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        if not self.ready:
            return "starting"
        if not self.redis.connected:
            return "Redis is unavailable"
        return None if self.services.presence.has_lease() else "the lease of this instance has expired"

    def stats(self) -> dict[str, Any]:
        services, counters = self.services, self.ports.listener.counters
        return {
            "instance": self.name,
            "version": __version__,
            "started_ms": self.started_ms,
            "durability": self.durability,
            "lease_s": round(services.presence.lease.expires_at - time.monotonic(), 3),
            "sessions": len(services.sessions),
            "local_nodes": len(services.local_nodes),
            "nodes_known": len(services.view.fleet),
            "jobs": len(services.dispatcher),
            "orphans": len(services.orphans),
            "chat_users": len(services.chat.local),
            "chat_shards": services.chat.assigner.owned,
            "connections": len(self.ports.listener.connections),
            "awaiting_head": len(self.ports.listener.registry.awaiting_head),
            "closing": len(self.ports.listener.registry.closing),
            "tasks": len(asyncio.all_tasks()),
            "frames_in": counters.frames_in,
            "frames_out": counters.frames_out,
            "bytes_in": counters.bytes_in,
            "bytes_out": counters.bytes_out,
        }

    # -- ending ----------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Accept no new sessions, and let running jobs finish, including those of other instances on local nodes.

        Sessions that can resume are closed at once. A second call waits for the same drain.
        """
        if self._drain is None:
            # Before the task starts: no job may be created from now on.
            self.draining = True
            self.services.sessions.stop_accepting()
            self._drain = asyncio.create_task(self._drain_once(), name="drain")
        await self._drain

    def _drain_in_background(self) -> None:
        self.services.tasks.spawn(self.drain(), "drain")

    async def _drain_once(self) -> None:
        until = time.monotonic() + self.config.server.drain_s
        log.info("draining", jobs=len(self.services.dispatcher), sessions=len(self.services.sessions))
        await self.ports.listener.stop_accepting()
        await self._publish_draining()
        await self._release_shards()
        self.services.sessions.drain()
        await self.services.dispatcher.drained(until - time.monotonic())
        # After the jobs of this instance, which may need its nodes. Each node is closed as soon as it is idle.
        if not await self.services.local_nodes.finish(until - time.monotonic()):
            log.warning(
                "drain timed out: jobs of other instances still run on local nodes", drain_s=self.config.server.drain_s
            )

    async def _publish_draining(self) -> None:
        """Before anything is released: other instances then count this one out when they share the shards."""
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                await self.services.presence.run_once()
        except (StoreError, TimeoutError):
            log.warning("draining not published")

    async def _release_shards(self) -> None:
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                await self.services.chat.drain()
        except (StoreError, TimeoutError):
            log.warning("chat shards not released; other instances take them when the leases expire")

    async def stop(self) -> None:
        """Close every connection. If Redis answers, nothing is left for other instances to take over."""
        self.ready = False
        await self._release_shards()
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                await self.services.sessions.hand_over()
        except (StoreError, TimeoutError):
            log.warning("sessions not handed over; they end after their grace period")
        await self.ports.close(Close.SHUTDOWN)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                await self._deregister()
        except (StoreError, TimeoutError):
            log.warning("not deregistered; another instance will take over")
        await self.services.tasks.cancel()
        await self.services.reader.close()
        await self.services.chat.close()
        await self.redis.close()

    async def _deregister(self) -> None:
        """After the background writes of closed sockets."""
        await self.services.tasks.settled()
        await self.services.chat.release_worker()
        await self.services.presence.close()
