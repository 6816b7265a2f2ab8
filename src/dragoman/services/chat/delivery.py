"""Pushes messages to receivers and notices to senders, wherever they are connected: to a local socket at once, to
another instance through its inbox.

Redis is asked where a user is just before each push, also for local users: one that has just connected elsewhere must
not miss a message that goes to its old socket. While Redis is unavailable, local users are reached.

A push and a notice differ if they cannot arrive. A message is resent from the archive, so its push is dropped, and the
receiver is made to read the archive before anything newer reaches it (`DeliveryState` decides what that takes). A
notice to a connected sender is repeated until it is sent; an ERROR for a sender that is not connected waits in Redis
for its next AUTH.

An instance that was asked for a resend must have handled the request before others may push anything newer: it may be
the one that pushes, and does not wait for its own inbox.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

import structlog
from msgspec import Raw

from dragoman.archive import Stored
from dragoman.domain.chat.delivery_state import DeliveryState
from dragoman.protocol.peer import (
    ChatNotices,
    ChatPush,
    ChatResend,
    InboxMessage,
    UserNotice,
    UserPush,
    encode_peer,
    kind_of,
)
from dragoman.services.chat.inbound import frame_of
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.inbox import Inboxes, PushReply

log = structlog.get_logger(__name__)

ENTRY_BYTES = 512 * 1024
REQUEST_TIMEOUT_S = 0.3  # how long one waits for another instance to handle a resend request
POLL_S = 0.01
SLICE = 500  # users looked up at a time
MAX_PENDING_NOTICES = 10_000  # past that the oldest are dropped: their senders ask after a while


@dataclass(frozen=True, slots=True)
class MessagePush:
    """A message for its receiver."""

    user: int
    id: int
    sender: int
    frame: bytes

    @classmethod
    def of(cls, row: Stored) -> "MessagePush":
        return cls(row.to_user, row.id, row.from_user, frame_of(row))


@dataclass(frozen=True, slots=True)
class SenderNotice:
    """A frame for a sender. `ended`: the serverMsgId of a message that is saved, or never will be; 0 for others.

    `keep`: a sender that is not connected gets it with its next AUTH. `saved`: the clientMsgId of an ACK saved.
    """

    user: int
    frame: bytes
    ended: int = 0
    keep: bool = False
    saved: str = ""


Item = TypeVar("Item", MessagePush, SenderNotice)
Answer = TypeVar("Answer")


class Together(Generic[Item, Answer]):
    """What comes in one turn of the loop, or while an entry is on its way to an inbox, shares the next entry, in its
    order. Each caller gets the answer to all of it."""

    def __init__(self, send: Callable[[str, list[Item]], Awaitable[Answer]], tasks: Tasks) -> None:
        self._send: Callable[[str, list[Item]], Awaitable[Answer]] = send
        self._tasks = tasks
        self._waiting: dict[str, list[tuple[list[Item], asyncio.Future[Answer]]]] = {}  # by instance

    async def put(self, instance: str, items: list[Item]) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(instance)
        if waiting is not None:
            waiting.append((items, answer))
        else:
            self._waiting[instance] = [(items, answer)]
            self._tasks.spawn(self._send_waiting(instance), "chat-push")
        return await answer

    async def _send_waiting(self, instance: str) -> None:
        try:
            while taken := self._waiting[instance]:
                self._waiting[instance] = []
                await self._send_together(instance, taken)
        finally:
            for _, answer in self._waiting.pop(instance):
                answer.cancel()

    async def _send_together(self, instance: str, taken: "list[tuple[list[Item], asyncio.Future[Answer]]]") -> None:
        try:
            sent = await self._send(instance, [one for items, _ in taken for one in items])
        except Exception as error:
            for _, answer in taken:
                if not answer.done():
                    answer.set_exception(error)
        except BaseException:
            for _, answer in taken:
                answer.cancel()
            raise
        else:
            for _, answer in taken:
                if not answer.done():
                    answer.set_result(sent)


class ResendNotBegun(StoreError):
    """Redis works; an instance that was asked for a resend has not handled the request yet."""


class Delivery:
    def __init__(
        self, instance: str, local: LocalUsers, users: Users, inboxes: Inboxes, metrics: Metrics, tasks: Tasks
    ) -> None:
        self.instance, self.local, self.users, self.inboxes, self.metrics = instance, local, users, inboxes, metrics
        self._state = DeliveryState(instance)
        self._redis_answers = True  # when it was last asked where a user is
        self._pending_notices: deque[SenderNotice] = deque(maxlen=MAX_PENDING_NOTICES)
        self._tasks = tasks
        self._pushes = Together[MessagePush, set[int]](self._push_remote, tasks)
        self._notices = Together[SenderNotice, None](self._notify_remote, tasks)
        self._asking: dict[str, asyncio.Lock] = {}  # by instance: one resend request at a time

    async def owners(self, receivers: Iterable[int]) -> dict[int, str]:
        """`instance|connection` of those that are connected, as far as can be known."""
        asked = list(dict.fromkeys(receivers))
        try:
            return await self.look_up(asked)
        except StoreError:
            return self.local_owners(asked)

    def local_owners(self, receivers: Sequence[int]) -> dict[int, str]:
        """The same without Redis: a local user may have moved, and any other may be anywhere."""
        self._redis_answers = False
        self._state.not_located(receivers)
        return self._owners_here(receivers)

    async def look_up(self, users: Sequence[int]) -> dict[int, str]:
        """The same as Redis knows it; raises StoreError."""
        found = await self.users.owners(users)
        self._redis_answers = True
        return {user: owner for user, owner in zip(users, found, strict=True) if owner}

    def _owners_here(self, users: Sequence[int]) -> dict[int, str]:
        return {user: owner for user in users if (owner := self.local.owner(user))}

    # -- messages --------------------------------------------------------------------------------

    async def push(
        self, pushes: Sequence[MessagePush], owners: Mapping[int, str], *, in_line: bool = False
    ) -> set[int]:
        """To receivers, in this order. Returns the ids of messages that, as far as is known, reached no socket.

        `in_line`: earlier ones of these senders may be in the inbox of this instance, so local receivers get them
        through it as well, unless Redis is unavailable.
        """
        # Only those of this push, and not while Redis is unavailable: a message must not pay for what others missed.
        if self._redis_answers and (unlocated := self._state.unlocated(owners)):
            await self._try_to_locate(unlocated)
        remote, unreached = dict[str, list[MessagePush]](), set[int]()
        for one in pushes:
            instance = owners.get(one.user, "").partition("|")[0]
            if instance == self.instance and not (in_line and self._redis_answers):
                # Another instance may have saved a message for it, and lost Redis before it could push it here.
                if self._state.is_unlocated(one.user):
                    self.local.resend(one.user)
                if not self.local.push(one.user, one.id, one.sender, one.frame):
                    unreached.add(one.id)
            elif instance and not self._state.is_unlocated(one.user):
                remote.setdefault(instance, []).append(one)
            else:
                unreached.add(one.id)
        for instance, theirs in remote.items():
            unreached |= await self._pushes.put(instance, theirs) & {one.id for one in theirs}
        return unreached

    async def _push_remote(self, instance: str, pushes: list[MessagePush]) -> set[int]:
        left = list(pushes)
        if await self._ask_for_resend(instance):
            for part in _parts(pushes):
                message = ChatPush([UserPush(one.user, one.id, one.sender, Raw(one.frame)) for one in part])
                verdict = await self.put(instance, message)
                if verdict is PushReply.GONE:  # and so are their sockets
                    return {one.id for one in left}
                if verdict is not PushReply.OK:
                    self._failed(instance, verdict, {one.user for one in left})
                    break
                left = left[len(part) :]
        else:
            self._state.not_pushed(instance, {one.user for one in left})
        return {one.id for one in left}

    def _failed(self, instance: str, verdict: PushReply | None, users: Collection[int]) -> None:
        if verdict is None:
            self._state.not_located(users)
        else:
            self._state.not_pushed(instance, users)

    # -- resends ---------------------------------------------------------------------------------

    def request_resend(self, user: int) -> None:
        """It may have missed something that another instance could not push."""
        self._state.not_located((user,))

    def is_unlocated(self, user: int) -> bool:
        """Whether the user may have missed something because Redis was unavailable."""
        return self._state.is_unlocated(user)

    def is_resend_due(self, users: Collection[int]) -> bool:
        """Whether one of these may have missed something, and its instance does not know it yet."""
        return bool(self._state.unlocated(users) or self._state.unasked(users))

    @property
    def resends_pending(self) -> bool:
        """Whether a receiver may have missed something, and does not know it yet."""
        return self._state.pending

    async def resend_first(self, users: Iterable[int]) -> None:
        """Make these read the archive before anything newer reaches them; raises StoreError.

        When it returns they do: whatever is pushed to them from now on comes after the resend.
        """
        asked = set(users)
        unlocated = self._state.unlocated(asked)
        await self._locate(unlocated)
        await self._ask_instances()
        if self._state.unlocated(unlocated):
            raise RedisAway("receivers that missed messages could not be asked to read the archive")
        if instance := self._state.unasked(asked):
            raise ResendNotBegun(f"the inbox of {instance} has no room for a resend request")
        if self._state.requests_to():  # one that has moved since has had its resend there
            owners = await self.look_up(sorted(asked))
            await self._until_handled({owner.partition("|")[0] for owner in owners.values()})

    async def _locate(self, users: Sequence[int]) -> None:
        """Local ones begin their resend; of others it is known which instance must be asked."""
        owners = await self.look_up(users) if users else {}
        for user in self._state.located(users, owners):
            self.local.resend(user)

    async def _try_to_locate(self, users: Sequence[int]) -> bool:
        try:
            await self._locate(users)
        except StoreError as error:
            log.debug("receivers that missed messages are not located yet", error=str(error))
            return False
        return True

    async def _until_handled(self, instances: Collection[str] | None = None) -> None:
        """Until these instances, or all, have handled their requests; one that is not handled stays pending."""
        deadline = monotonic() + REQUEST_TIMEOUT_S
        for instance, entry in self._state.requests_to(instances):
            while await self.inboxes.get(instance, entry) is not None:
                if monotonic() >= deadline:
                    raise ResendNotBegun(f"{instance} has not handled the resend request in its inbox")
                await asyncio.sleep(POLL_S)
            self._state.acknowledged(instance, entry)

    async def _ask_instances(self) -> None:
        for instance in self._state.instances_to_ask():
            await self._ask_for_resend(instance)

    async def _ask_for_resend(self, instance: str) -> bool:
        """Whether no user there has missed anything, or the instance is asked for their resend now."""
        async with self._asking.setdefault(instance, asyncio.Lock()):  # the next one has to know how this one ends
            users = self._state.take_remote(instance)
            if not users:
                return True
            try:
                verdict, entry = await self._put(instance, ChatResend(users))
            except BaseException:  # cancelled before the answer
                self._state.not_pushed(instance, users)
                raise
            if verdict is PushReply.OK:
                self._state.requested(instance, entry, users)
            elif verdict is PushReply.GONE:
                self._asking.pop(instance, None)
            else:
                self._failed(instance, verdict, users)
                return False
            return True

    async def run_once(self) -> None:
        """Retry the resends and notices that could not be sent."""
        unlocated = self._state.unlocated()
        for first in range(0, len(unlocated), SLICE):
            if not await self._try_to_locate(unlocated[first : first + SLICE]):
                break
            await self._ask_instances()
        await self._ask_instances()
        await self._notify_again()
        try:
            await self._until_handled()
        except StoreError as error:
            log.debug("not every resend has begun", error=str(error))

    # -- notices to senders ----------------------------------------------------------------------

    async def notify(self, notices: Sequence[SenderNotice], owners: Mapping[int, str] | None = None) -> None:
        """To senders, in this order. Raises StoreError if Redis is unavailable and an ERROR would be lost."""
        known = True
        if owners is None:
            asked = list(dict.fromkeys(one.user for one in notices))
            try:
                owners = await self.look_up(asked)
            except StoreError:
                owners, known = self._owners_here(asked), False
        remote: dict[str, list[SenderNotice]] = {}
        for one in notices:
            instance, _, connection = owners.get(one.user, "").partition("|")
            user = self.local.get(one.user) if instance == self.instance else None
            if user is not None:
                user.notified(one.frame, one.ended, one.saved)
            elif instance and instance != self.instance:
                remote.setdefault(instance, []).append(one)
            elif one.keep:
                await self.users.keep_notice(one.user, one.frame)
            elif not known or (connection and self.local.admitting(int(connection))):
                self._pending_notices.append(one)
        for instance, theirs in remote.items():
            await self._notices.put(instance, theirs)

    async def _notify_remote(self, instance: str, notices: list[SenderNotice]) -> None:
        for part in _parts(notices):
            message = ChatNotices(
                [UserNotice(one.user, one.ended, Raw(one.frame), one.keep, one.saved) for one in part]
            )
            verdict = await self.put(instance, message)
            if verdict is PushReply.OK:
                continue
            for one in part:
                if one.keep:
                    await self.users.keep_notice(one.user, one.frame)
                elif verdict is not PushReply.GONE:  # then it connects elsewhere, and asks
                    self._pending_notices.append(one)

    async def _notify_again(self) -> None:
        pending = list(self._pending_notices)
        self._pending_notices.clear()
        if pending:
            await self.notify(pending)

    async def put(self, instance: str, message: InboxMessage) -> PushReply | None:
        """To the inbox of another instance; None: Redis is unavailable, so the outcome is not known."""
        return (await self._put(instance, message))[0]

    async def _put(self, instance: str, message: InboxMessage) -> tuple[PushReply | None, str]:
        """The same, and the id of the entry."""
        try:
            verdict, id = await self.inboxes.put(instance, kind_of(message), encode_peer(message))
        except StoreError as error:
            log.warning("could not reach an inbox", to=instance, kind=kind_of(message), error=str(error), limited=True)
            self.metrics.chat_deliver_fail.inc()
            return None, ""
        self.metrics.pushed.labels(verdict).inc()
        if verdict is not PushReply.OK:
            self.metrics.chat_deliver_fail.inc()
        return verdict, id


def _parts(all: Sequence[Item]) -> Iterator[list[Item]]:
    """Each fits an inbox entry with room to spare."""
    part, size = list[Item](), 0
    for one in all:
        if part and size + len(one.frame) > ENTRY_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one.frame) + 64
    if part:
        yield part
