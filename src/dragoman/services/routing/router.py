"""Sends a message to another instance: to its inbox, or directly to the handler if the instance is this one.

The owner of a node, a job or a session is looked up again if its inbox is gone. A message that still has no
destination is answered to its sender, by a rule for each kind of message.

Every kind of inbox message has two functions. `handle` runs on the instance that the message is for; `rehome` runs on
the instance that takes over the inbox of a dead one, and sends the message where it belongs now. An instance starts
only if every kind has both. A message without a handler raises, so its entry stays pending and is never acknowledged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar, get_args

import structlog

from dragoman.protocol.peer import (
    Announcement,
    AssignJob,
    Bounced,
    CancelJob,
    ForwardedUtterance,
    FromNode,
    InboxMessage,
    JobEnded,
    JobMoved,
    Peer,
    decode_announcement,
    encode_peer,
    kind_of,
)
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Inboxes, PushReply
from dragoman.store.instances import Owners, channel_of
from dragoman.store.jobs import Jobs
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis, Subscriber

INBOX_KINDS: tuple[type[Peer], ...] = get_args(InboxMessage)
M = TypeVar("M", bound=Peer)

log = structlog.get_logger(__name__)


class NoHandler(Exception):
    """A kind of inbox message has no handler."""


class _Handler(NamedTuple):
    handle: Callable[[Any], Awaitable[None] | None]
    rehome: Callable[[Any], Awaitable[None] | None]


class Handlers:
    def __init__(self, kinds: Iterable[type[Peer]] = INBOX_KINDS) -> None:
        self._kinds = tuple(kinds)
        self._handlers: dict[type[Peer], _Handler] = {}

    def register(
        self,
        kind: type[M],
        handle: Callable[[M], Awaitable[None] | None],
        *,
        rehome: Callable[[M], Awaitable[None] | None],
    ) -> None:
        """A later registration of the same kind replaces the earlier one."""
        self._handlers[kind] = _Handler(handle, rehome)

    def require_all(self) -> None:
        """Raises NoHandler if a kind has no handler."""
        missing = [kind.__name__ for kind in self._kinds if kind not in self._handlers]
        if missing:
            raise NoHandler(f"no handler for these kinds of inbox message: {', '.join(missing)}")

    async def handle(self, message: InboxMessage) -> None:
        pending = self._of(message).handle(message)
        if pending is not None:
            await pending

    def handle_at_once(self, message: InboxMessage) -> None:
        """Of a kind whose handler awaits nothing."""
        pending = self._of(message).handle(message)
        assert pending is None, f"the handler of {kind_of(message)} awaits something"

    async def rehome(self, message: InboxMessage) -> None:
        pending = self._of(message).rehome(message)
        if pending is not None:
            await pending

    def _of(self, message: InboxMessage) -> _Handler:
        try:
            return self._handlers[type(message)]
        except KeyError:
            raise NoHandler(f"no handler for {kind_of(message)}") from None


def drop_silently(message: InboxMessage) -> None:
    """The `rehome` of messages that nothing waits for."""


def drop(message: InboxMessage) -> None:
    """The `rehome` of messages that mean something only to the instance that died."""
    log.info("dropped with its instance", kind=kind_of(message))


FULL_INBOX_TIMEOUT_S = 2.0
RETRY_PAUSE_S = 0.05


class InboxFull(Exception):
    """An inbox stayed full until the time-out."""


class Router:
    def __init__(
        self, instance: str, handlers: Handlers, inboxes: Inboxes, owners: Owners, jobs: Jobs, metrics: Metrics
    ) -> None:
        self.instance, self.inboxes, self.owners, self.jobs, self.metrics = instance, inboxes, owners, jobs, metrics
        self._handlers = handlers

    async def push(self, instance: str, message: InboxMessage, trace_id: str = "") -> PushReply:
        """To one instance; a message to this instance needs no Redis."""
        if instance == self.instance:
            await self._handlers.handle(message)
            return PushReply.OK
        verdict = await self.inboxes.push(instance, kind_of(message), encode_peer(message), trace_id)
        self.metrics.pushed.labels(verdict).inc()
        return verdict

    def offer(self, instance: str, message: InboxMessage, share: float) -> "asyncio.Future[PushReply | None] | None":
        """To one instance, a message that may be lost: it is refused if the inbox is fuller than `share`. Started; the
        caller does not wait. None: it was for this instance, and is handled. None as the answer: Redis gave none."""
        if instance == self.instance:
            self._handlers.handle_at_once(message)
            return None
        answered: asyncio.Future[PushReply | None] = asyncio.get_running_loop().create_future()
        try:
            asked = self.inboxes.offer(instance, kind_of(message), encode_peer(message), share)
        except StoreError:
            answered.set_result(None)
            return answered
        asked.add_done_callback(partial(self._offered, answered))
        return answered

    def _offered(self, answered: "asyncio.Future[PushReply | None]", asked: "asyncio.Future[bytes]") -> None:
        verdict = self.inboxes.verdict_of(asked)
        if verdict is not None:
            self.metrics.pushed.labels(verdict).inc()
        if not answered.done():
            answered.set_result(verdict)

    async def to_node(self, owner: str, message: AssignJob | CancelJob) -> PushReply:
        """To the owner of the node's socket: `owner`, and if its inbox is gone, the owner that Redis names."""
        verdict = await self.push(owner, message)
        if verdict is not PushReply.GONE:
            return verdict
        found = await self.owners.node_owner(message.node_id)
        return await self.push(found, message) if found is not None and found != owner else PushReply.GONE

    async def to_driver(self, driver: str, message: FromNode | Bounced) -> PushReply:
        """To the driver of the job. If it died, the job's record names the instance that adopted the job."""
        verdict = await self.push(driver, message)
        return verdict if verdict is not PushReply.GONE else await self.to_adopter(driver, message)

    async def to_adopter(self, former: str, message: FromNode | Bounced) -> PushReply:
        """To the driver in the job's record, unless that is still `former`."""
        job = await self.jobs.get(message.job_id)
        adopter = job.get("driver") if job is not None else None
        return await self.push(adopter, message) if adopter is not None and adopter != former else PushReply.GONE

    async def bounce(self, message: AssignJob, timeout_s: float = 0.0) -> None:
        """Notify an assignment's driver that it did not reach its node. Raises InboxFull: try again."""
        bounced = Bounced(message.node_id, message.epoch, message.job_id, message.attempt)
        await self.push_until(message.driver, lambda: self.to_driver(message.driver, bounced), timeout_s)

    async def push_until(self, instance: str, push: Callable[[], Awaitable[PushReply]], timeout_s: float) -> PushReply:
        """Repeat `push` while the inbox is full or Redis is unavailable. Raises InboxFull or Redis's last error."""

        async def step() -> PushReply:
            verdict = await push()
            if verdict is PushReply.FULL:
                raise InboxFull(f"the inbox of {instance} is full")
            return verdict

        return await retry(step, until=monotonic() + timeout_s, pause_s=RETRY_PAUSE_S, on=(StoreError, InboxFull))

    # -- entries of a dead instance's inbox: each raises InboxFull if its destination is full ---------

    async def rehome_assign(self, message: AssignJob) -> None:
        owner = await self.owners.node_owner(message.node_id)
        if owner is None or await self.push(owner, message) is not PushReply.OK:
            await self.bounce(message, FULL_INBOX_TIMEOUT_S)

    async def rehome_cancel(self, message: CancelJob) -> None:
        owner = await self.owners.node_owner(message.node_id)
        if owner is not None:
            await self.push_until(owner, partial(self.push, owner, message), FULL_INBOX_TIMEOUT_S)

    async def rehome_to_driver(self, message: FromNode | Bounced) -> None:
        job = await self.jobs.get(message.job_id)
        driver = job.get("driver") if job is not None else None
        verdict = PushReply.GONE
        if driver is not None:
            verdict = await self.push_until(driver, partial(self.push, driver, message), FULL_INBOX_TIMEOUT_S)
        if verdict is not PushReply.OK:
            await self._handlers.handle(message)  # no instance drives the job: we may watch it as an orphan

    async def rehome_to_session(self, message: JobEnded | JobMoved | ForwardedUtterance) -> None:
        owner = await self.owners.session_owner(message.session_id)
        if owner is None or await self.push(owner, message) is not PushReply.OK:
            # No instance owns the session: our handler parks the result, or answers that the session is gone.
            await self._handlers.handle(message)


class Announcer:
    """Publishes hints to all instances and passes theirs to the subscribers. Nothing relies on them.

    A missed announcement costs time, not correctness: the fleet view is refreshed from the keys, waiting jobs try again
    when a reservation may have expired, cool-downs are read when a node connects again.
    """

    def __init__(self, redis: Redis, keys: Keys, tasks: Tasks, instance: str | None = None) -> None:
        self._redis, self._keys, self._channel, self._tasks = redis, keys, keys.announcements, tasks
        self._listeners: list[Callable[[Announcement], None]] = []
        own = (channel_of(keys, instance),) if instance is not None else ()
        self.subscriber = Subscriber(redis, self._channel, self._received, *own)

    def subscribe(self, listener: Callable[[Announcement], None]) -> None:
        self._listeners.append(listener)

    def announce(self, message: Announcement) -> None:
        """To all instances. The subscribers of this instance get it at once, without Redis."""
        self._dispatch(message)
        self._tasks.spawn(self._redis.publish(self._channel, encode_peer(message)), "announce")

    def announce_to(self, instance: str, message: Announcement) -> None:
        """To one other instance."""
        channel = channel_of(self._keys, instance)
        self._tasks.spawn(self._redis.publish(channel, encode_peer(message)), "announce")

    async def run(self) -> None:
        await self.subscriber.run()

    def _received(self, data: bytes) -> None:
        message = decode_announcement(data)
        if message is not None:
            self._dispatch(message)

    def _dispatch(self, message: Announcement) -> None:
        for listener in self._listeners:
            try:
                listener(message)
            except Exception:
                log.exception("announcement failed", message=type(message).__name__)
