"""One instance's upkeep on a real Redis, for tests: recorders stand where speech would be.

Nothing runs by itself: tests call `run_once`. A member dies when its presence goes; nothing else of it does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dragoman.instance.services import Stores
from dragoman.protocol.peer import Announcement, FromNode, InboxMessage, encode_peer, kind_of
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.routing.inbox_reader import InboxReader, Reclaimer
from dragoman.services.routing.router import Announcer
from dragoman.services.upkeep.presence import InstancePresence
from dragoman.services.upkeep.takeover import Takeover
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Presence

Join = Callable[..., Awaitable["Member"]]
TTL_S = 30.0


def said(job: str, node: str = "n", frame: bytes = b"{}") -> FromNode:
    """Some message for an inbox, told from others by its job."""
    return FromNode(node, 1, job, [msgspec.Raw(frame)])


def jobs(messages: list[InboxMessage]) -> list[str]:
    return [message.job_id for message in messages if isinstance(message, FromNode)]


class Member:
    def __init__(self, name: str, stores: Stores, *, ttl_s: float = TTL_S, lock_ms: int = 5000) -> None:
        self.dead: set[str] = set()  # incarnations whose process is known to have ended
        self.name, self.stores = name, stores
        self.metrics, self.tasks = Metrics(), Tasks()
        self.handled: list[InboxMessage] = []
        self.rehomed: list[InboxMessage] = []
        self.adopted: list[str] = []
        self.sessions_over: list[str] = []
        self.told: list[Announcement] = []
        self.returns = self.deaths = 0
        self.sure = True  # whether it may call others dead
        self.failing: Exception | None = None  # what handling raises
        inboxes, instances = stores.inboxes, stores.instances
        self.presence = InstancePresence(
            instances,
            self.metrics,
            instance=name,
            ttl_s=ttl_s,
            group=inboxes.settings.group,
            describe=lambda instance, incarnation: Presence(instance, incarnation, host="here", pid=7),
            on_return=self._returned,
            on_declared_dead=self._declared_dead,
            is_dead=lambda presence: presence.incarnation in self.dead,
        )
        self.announcer = Announcer(stores.redis, stores.keys, self.tasks)
        self.announcer.subscribe(self.told.append)
        self.reader = InboxReader(inboxes, self.presence, self.metrics, self._handle, count=10, block_ms=1)
        self.reclaimer = Reclaimer(
            inboxes, self.presence, self.reader, self.metrics, min_idle_ms=0, max_deliveries=2, count=10
        )
        self.takeover = Takeover(
            name, instances, inboxes, stores.owners, stores.nodes, stores.jobs, stores.turns, self.announcer,
            self.metrics, lock_ms=lock_ms, steady=lambda: self.sure, rehome=self._rehome, adopt=self._adopt,
            leave_behind=stores.sessions.grant_grace, session_over=self._session_over,
        )  # fmt: skip

    async def enter(self) -> "Member":
        await self.presence.join(self.takeover.take_over)
        return self

    async def die(self) -> None:
        """As after a kill -9 and one TTL."""
        await self.stores.redis.call("DEL", self.stores.keys.presence(self.name))

    def pause(self) -> None:
        """As a process that was stopped for longer than its lease."""
        self.presence.lease.expires_at = float("-inf")

    async def close(self) -> None:
        await self.reader.close()
        await self.tasks.cancel()

    # -- the inbox -------------------------------------------------------------------------------

    async def push(self, message: InboxMessage) -> PushReply:
        return await self.stores.inboxes.push(self.name, kind_of(message), encode_peer(message), "trace")

    async def push_raw(self, *fields: Any) -> str:
        """An entry as nobody of ours would write it, counted as if somebody had."""
        keys = self.stores.keys
        id = await self.stores.redis.call("XADD", keys.inbox(self.name), "*", *fields)
        await self.stores.redis.call("HINCRBY", keys.counts(self.name), "added", 1)
        return str(id.decode())

    async def balanced(self) -> bool:
        """added = done + pending + dead letters."""
        return (await self.stores.inboxes.counts(self.name)).balanced

    # -- recorders -------------------------------------------------------------------------------

    async def _handle(self, message: InboxMessage) -> None:
        if self.failing is not None:
            raise self.failing
        self.handled.append(message)

    async def _rehome(self, message: InboxMessage) -> None:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        self.rehomed.append(message)

    async def _adopt(self, job: str, dead: str) -> None:
        self.adopted.append(job)
        await self.stores.jobs.undriven(dead, job)

    async def _session_over(self, session: str) -> None:
        self.sessions_over.append(session)

    async def _returned(self) -> None:
        self.returns += 1

    async def _declared_dead(self) -> None:
        self.deaths += 1
        await self.enter()

    def count(self, metric: str) -> float:
        return self.metrics.registry.get_sample_value(metric) or 0.0
