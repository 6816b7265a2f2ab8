"""Deliver-first: the instance that accepted a message pushes it to its receiver, before it is saved.

    accepted ─▶ the receiver's connection, here or on another instance ─▶ the instance that saves it is informed

Nothing of this is kept anywhere: an early push goes to another instance as an announcement, and may be lost. What the
save stage is not informed of it pushes after its commit, and the receiver's connection drops what it has. The order of
the sender holds, because a message is pushed early only if all unsaved messages to its receiver were pushed to the same
connection (`Unsaved.may_push`), and written there only if the one before it was (`ConnectionState.may_push_early`).
"""

import asyncio
from time import monotonic

from msgspec import Raw

from dragoman.archive import NewMessage
from dragoman.protocol import chat as wire
from dragoman.protocol.peer import Announcement, EarlyMessage, EarlyPushes, PushedEarly
from dragoman.services.chat.delivery import Delivery
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.store.errors import StoreError

GATHER_S = 0.01  # of what the save stages are informed of: they read a busy shard less often
MAX_KNOWN = 20_000  # past that the oldest are forgotten, and pushed again when they are saved


class PushedMessages:
    """The connections to which messages were pushed before they are saved, for the instance that saves them."""

    def __init__(self, instance: str, announcer: Announcer) -> None:
        self._instance, self._announcer = instance, announcer
        self._holders: dict[int, str] = {}
        self._known: dict[int, str] = {}
        self._gathered: dict[str, list[tuple[int, str]]] = {}
        announcer.subscribe(self._on_announcement)

    def set_holders(self, holders: dict[int, str]) -> None:
        """The instance that works each shard, as far as is known."""
        self._holders = holders

    def add(self, shard: int, id: int, owner: str) -> None:
        holder = self._holders.get(shard, self._instance)
        if holder == self._instance:
            self._remember(id, owner)
            return
        gathered = self._gathered.setdefault(holder, [])
        gathered.append((id, owner))
        if len(gathered) == 1:
            asyncio.get_running_loop().call_later(GATHER_S, self._send, holder)

    def take(self, id: int) -> str:
        """`instance|connection`, or ''; once."""
        return self._known.pop(id, "")

    def _send(self, holder: str) -> None:
        self._announcer.announce_to(holder, PushedEarly(self._gathered.pop(holder)))

    def _on_announcement(self, message: Announcement) -> None:
        if isinstance(message, PushedEarly):
            for id, owner in message.messages:
                self._remember(id, owner)

    def _remember(self, id: int, owner: str) -> None:
        self._known[id] = owner
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]


class EarlyPush:
    def __init__(self, delivery: Delivery, pushed: PushedMessages, announcer: Announcer, metrics: Metrics) -> None:
        self._delivery, self._pushed, self._announcer, self._metrics = delivery, pushed, announcer, metrics
        self._gathered: dict[str, list[EarlyMessage]] = {}  # of this turn of the loop, by instance
        announcer.subscribe(self._on_announcement)

    def look_up(self, receiver: int) -> "asyncio.Future[bytes | None]":
        """Begun with the accept, so that both leave in one write."""
        return self._delivery.users.owner(receiver)

    async def push(
        self, user: ChatUser, row: NewMessage, shard: int, looked_up: "asyncio.Future[bytes | None]"
    ) -> None:
        """A message of this user that was accepted just now."""
        began = monotonic()
        try:
            owner = (await looked_up or b"").decode()
        except StoreError:
            owner = ""
        receiver, unsaved = row.to_user, user.unsaved
        may_push = unsaved.may_push(receiver, owner) and not self._delivery.is_resend_due([receiver])
        message = _early_message(row, owner, shard, unsaved.last_to(receiver, began)) if may_push else None
        unsaved.accepted(row.id, receiver, owner if may_push else "")
        if message is not None and not self._push(message, owner):
            unsaved.not_pushed(receiver)
        self._metrics.chat_deliver.observe(monotonic() - began)

    def _push(self, message: EarlyMessage, owner: str) -> bool:
        """False: its receiver is on this instance, and has not got it."""
        instance = owner.partition("|")[0]
        if instance == self._delivery.instance:
            return self._write(message)
        gathered = self._gathered.setdefault(instance, [])
        gathered.append(message)
        if len(gathered) == 1:
            asyncio.get_running_loop().call_soon(self._send, instance)
        return True

    def _write(self, message: EarlyMessage) -> bool:
        owner = self._delivery.local.push_early(message)
        if owner:
            self._pushed.add(message.shard, message.id, owner)
        return bool(owner)

    def _send(self, instance: str) -> None:
        self._announcer.announce_to(instance, EarlyPushes(self._gathered.pop(instance)))

    def _on_announcement(self, announcement: Announcement) -> None:
        if isinstance(announcement, EarlyPushes):
            for message in announcement.messages:
                self._write(message)


def _early_message(row: NewMessage, owner: str, shard: int, after: int) -> EarlyMessage:
    frame = wire.chat(
        row.from_user, row.to_user, row.client_msg_id, row.id, row.msg_type, row.body, row.created_ms, lang=row.lang
    )
    connection = int(owner.rpartition("|")[2])
    return EarlyMessage(row.to_user, connection, row.id, row.from_user, shard, after, Raw(frame))
