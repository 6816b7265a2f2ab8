"""Brings frames to chat users wherever they are connected: to a socket here at once, elsewhere by inbox.

Whose socket is where is asked of Redis just before, also for users connected here: one that has just connected
elsewhere must not miss a message that goes to its old socket. With Redis away, whoever is here is reached.

What is pushed and what is told differ in what happens when it cannot arrive: a message is sent again from the archive,
so a push is dropped, and a receiver whose inbox was full is told to look there, before anything newer reaches it; a
word to a sender is asked for again by the sender, unless it is bad news, which waits for the next AUTH.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
from msgspec import Raw

from dragoman.archive import Stored
from dragoman.protocol.peer import ChatCatchUp, ChatPush, ChatTell, InboxMessage, OnePush, OneTell, encode_peer, kind_of
from dragoman.services.chat.inbound import frame_of
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.metrics import Metrics
from dragoman.store.chat.users import Users
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Inboxes, Push

log = structlog.get_logger(__name__)

ENTRY_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for its receiver."""

    user: int
    id: int
    sender: int
    frame: bytes

    @classmethod
    def of(cls, row: Stored) -> "Delivery":
        return cls(row.to_user, row.id, row.from_user, frame_of(row))


@dataclass(frozen=True, slots=True)
class Tell:
    """A word for a sender. `keep`: if it is not connected, it hears it at its next AUTH."""

    user: int
    frame: bytes
    settled: int = 0
    keep: bool = False


class Courier:
    def __init__(self, instance: str, here: LocalUsers, users: Users, inboxes: Inboxes, metrics: Metrics) -> None:
        self.instance, self.here, self.users, self.inboxes, self.metrics = instance, here, users, inboxes, metrics
        self._behind: dict[str, set[int]] = {}  # by instance: who missed something because the inbox was full

    async def owners(self, users: Iterable[int]) -> dict[int, str]:
        """`instance|connection` of those who are connected."""
        asked = list(dict.fromkeys(users))
        try:
            found = await self.users.owners(asked)
        except StoreError:
            found = [self.here.owner(user) for user in asked]
        return {user: owner for user, owner in zip(asked, found, strict=True) if owner}

    # -- messages --------------------------------------------------------------------------------

    async def push(self, deliveries: Sequence[Delivery], owners: Mapping[int, str]) -> None:
        """To receivers, in this order; who is not among the owners gets nothing."""
        away: dict[str, list[Delivery]] = {}
        for one in deliveries:
            owner = owners.get(one.user)
            if owner is None:
                continue
            instance = owner.partition("|")[0]
            if instance == self.instance:
                user = self.here.get(one.user)
                if user is not None:
                    user.inbound.push(one.id, one.sender, one.frame)
            else:
                away.setdefault(instance, []).append(one)
        for instance, theirs in away.items():
            await self._push_away(instance, theirs)

    async def _push_away(self, instance: str, deliveries: list[Delivery]) -> None:
        if not await self._caught_up(instance):
            self._behind[instance].update(one.user for one in deliveries)
            return
        for part in _parts(deliveries):
            message = ChatPush([OnePush(one.user, one.id, one.sender, Raw(one.frame)) for one in part])
            if await self.hand(instance, message) is Push.FULL:
                self._behind.setdefault(instance, set()).update(one.user for one in deliveries)
                return

    async def _caught_up(self, instance: str) -> bool:
        """Whether nobody there has missed anything, or all of them know by now."""
        behind = self._behind.get(instance)
        if behind is None:
            return True
        if await self.hand(instance, ChatCatchUp(sorted(behind))) is Push.FULL:
            return False
        del self._behind[instance]
        return True

    async def remind(self) -> None:
        """Try again to tell receivers that they missed something."""
        for instance in list(self._behind):
            await self._caught_up(instance)

    # -- words to senders ------------------------------------------------------------------------

    async def tell(self, tells: Sequence[Tell]) -> None:
        """To senders, in this order."""
        owners = await self.owners(one.user for one in tells)
        away: dict[str, list[Tell]] = {}
        for one in tells:
            instance = owners.get(one.user, "").partition("|")[0]
            user = self.here.get(one.user) if instance == self.instance else None
            if user is not None:
                user.told(one.frame, one.settled)
            elif instance and instance != self.instance:
                away.setdefault(instance, []).append(one)
            elif one.keep:
                await self.users.leave_word(one.user, one.frame)
        for instance, theirs in away.items():
            await self._tell_away(instance, theirs)

    async def _tell_away(self, instance: str, tells: list[Tell]) -> None:
        for part in _parts(tells):
            message = ChatTell([OneTell(one.user, one.settled, Raw(one.frame)) for one in part])
            if await self.hand(instance, message) is not Push.OK:
                for one in part:
                    if one.keep:
                        await self.users.leave_word(one.user, one.frame)

    async def hand(self, instance: str, message: InboxMessage) -> Push:
        """To the inbox of another instance."""
        try:
            verdict = await self.inboxes.push(instance, kind_of(message), encode_peer(message))
        except StoreError as error:
            log.warning("could not reach an inbox", to=instance, kind=kind_of(message), error=str(error))
            self.metrics.chat_deliver_fail.inc()
            return Push.GONE
        self.metrics.pushed.labels(verdict).inc()
        if verdict is not Push.OK:
            self.metrics.chat_deliver_fail.inc()
        return verdict


Item = TypeVar("Item", Delivery, Tell)


def _parts(all: Sequence[Item]) -> Iterator[list[Item]]:
    """Such that each fits an inbox entry with room to spare."""
    part, size = list[Item](), 0
    for one in all:
        if part and size + len(one.frame) > ENTRY_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one.frame) + 64
    if part:
        yield part
