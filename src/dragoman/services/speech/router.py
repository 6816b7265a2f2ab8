"""From instance to instance: what is for a socket here is written at once, the rest goes to its owner's inbox.

An owner counts only while it reads its inbox: GONE means re-resolve once. What then still has nowhere to go
is answered to whoever sent it, by a rule for each kind of message.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic

import structlog

from dragoman.protocol.peer import (
    Assign,
    Bounced,
    CancelJob,
    ChatCatchUp,
    ChatKick,
    ChatPush,
    ChatTell,
    FromNode,
    InboxMessage,
    JobEnded,
    JobMoved,
    UtteranceFor,
    encode_peer,
    kind_of,
)
from dragoman.services.metrics import Metrics
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Inboxes, Push
from dragoman.store.jobs import Jobs
from dragoman.store.owners import Owners

log = structlog.get_logger(__name__)

ROOM_PATIENCE_S = 2.0
ROOM_PAUSE_S = 0.05


class NoRoom(Exception):
    """An inbox stayed full for longer than we wait."""


class Router:
    def __init__(self, instance: str, inboxes: Inboxes, owners: Owners, jobs: Jobs, metrics: Metrics) -> None:
        self.instance, self.inboxes, self.owners, self.jobs, self.metrics = instance, inboxes, owners, jobs, metrics
        self.deliver_here: Callable[[InboxMessage], Awaitable[None]]  # set by the instance, which knows all handlers
        self.rehome_chat: Callable[[ChatPush | ChatTell | ChatKick | ChatCatchUp], Awaitable[None]]  # likewise

    async def push(self, instance: str, message: InboxMessage, trace_id: str = "") -> Push:
        """To one instance; our own needs no Redis."""
        if instance == self.instance:
            await self.deliver_here(message)
            return Push.OK
        verdict = await self.inboxes.push(instance, kind_of(message), encode_peer(message), trace_id)
        self.metrics.pushed.labels(verdict).inc()
        return verdict

    async def to_node(self, owner: str, message: Assign | CancelJob) -> Push:
        """To whoever holds the node's socket: as far as we know, else as far as Redis knows."""
        verdict = await self.push(owner, message)
        if verdict is not Push.GONE:
            return verdict
        found = await self.owners.node_owner(message.node_id)
        return await self.push(found, message) if found is not None and found != owner else Push.GONE

    async def to_driver(self, driver: str, message: FromNode | Bounced) -> Push:
        """To the instance that drives the job. If it died, whoever adopted the job is named in the job itself."""
        verdict = await self.push(driver, message)
        return verdict if verdict is not Push.GONE else await self.to_adopter(driver, message)

    async def to_adopter(self, former: str, message: FromNode | Bounced) -> Push:
        """To whom the job itself names as its driver, if that is not `former` any more."""
        job = await self.jobs.get(message.job_id)
        adopter = job.get("driver") if job is not None else None
        return await self.push(adopter, message) if adopter is not None and adopter != former else Push.GONE

    async def bounce(self, message: Assign, patience_s: float = 0.0) -> None:
        """Tell an assignment's driver that it did not reach its node. Raises NoRoom: then it has to be tried again."""
        bounced = Bounced(message.node_id, message.epoch, message.job_id, message.attempt)
        await self.insist(message.driver, lambda: self.to_driver(message.driver, bounced), patience_s)

    async def insist(self, instance: str, push: Callable[[], Awaitable[Push]], patience_s: float) -> Push:
        """Push while there is no room, or no Redis. Raises NoRoom or what Redis said last."""
        give_up_at = monotonic() + patience_s
        while True:
            try:
                verdict = await push()
                if verdict is not Push.FULL:
                    return verdict
                if monotonic() >= give_up_at:
                    raise NoRoom(f"the inbox of {instance} is full")
            except StoreError:
                if monotonic() >= give_up_at:
                    raise
            await asyncio.sleep(ROOM_PAUSE_S)

    async def rehome(self, message: InboxMessage) -> None:
        """An entry of a dead instance's inbox: to where it belongs now. Raises NoRoom for what it cannot take."""
        match message:
            case Assign():
                owner = await self.owners.node_owner(message.node_id)
                if owner is not None and await self.push(owner, message) is Push.OK:
                    return
                await self.bounce(message, ROOM_PATIENCE_S)
            case CancelJob():
                owner = await self.owners.node_owner(message.node_id)
                if owner is not None:
                    await self.insist(owner, partial(self.push, owner, message), ROOM_PATIENCE_S)
            case FromNode() | Bounced():
                job = await self.jobs.get(message.job_id)
                await self._to_driver_of(message, job.get("driver") if job is not None else None)
            case JobEnded() | JobMoved() | UtteranceFor():
                owner = await self.owners.session_owner(message.session_id)
                if owner is not None and await self.push(owner, message) is Push.OK:
                    return
                # Nobody has the session now: here it is parked, or answered that it is gone.
                await self.deliver_here(message)
            case ChatPush() | ChatTell() | ChatKick() | ChatCatchUp():
                await self.rehome_chat(message)
            case _:
                log.info("dropped with its instance", kind=kind_of(message))

    async def _to_driver_of(self, message: FromNode | Bounced, driver: str | None) -> None:
        """If nobody drives the job we may be watching it."""
        verdict = Push.GONE
        if driver is not None:
            verdict = await self.insist(driver, lambda: self.push(driver, message), ROOM_PATIENCE_S)
        if verdict is not Push.OK:
            await self.deliver_here(message)
