"""Brings frames to chat users wherever they are connected: to a socket here at once, elsewhere by inbox.

Whose socket is where is asked of Redis just before, also for users connected here: one that has just connected
elsewhere must not miss a message that goes to its old socket. With Redis away, whoever is here is reached.

What is pushed and what is told differ in what happens when it cannot arrive: a message is sent again from the archive,
so a push is dropped, and a receiver that missed one is told to look there, before anything newer reaches it; a word to
a sender that is connected is tried again until it is told, and bad news for one that is not waits for its next AUTH.

Who missed something is known in two ways: `behind`, by instance, because its inbox was full; `missed`, because Redis
was away, and could say neither where the user is nor whether the message got there.

An instance that was told to let its users look there has to have heard it (`reminders`) before anything newer may be
pushed by others: it may be the one who pushes, and does not wait for its own inbox.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

import structlog
from msgspec import Raw

from dragoman.archive import Stored
from dragoman.protocol.peer import ChatCatchUp, ChatPush, ChatTell, InboxMessage, OnePush, OneTell, encode_peer, kind_of
from dragoman.services.chat.inbound import frame_of
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.metrics import Metrics
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.inbox import Inboxes, Push

log = structlog.get_logger(__name__)

ENTRY_BYTES = 512 * 1024
HEED_S = 0.3  # how long one waits for another instance to work what it was handed
LOOK_S = 0.01
SLICE = 500  # users looked for at a time
MOST_UNTOLD = 10_000  # past that the first are forgotten: their senders ask after a while


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
    """A word for a sender. `ended`: the serverMsgId of a message that is not on its way any more; 0 for others.

    `keep`: if it is not connected, it hears it at its next AUTH. `saved`: the clientMsgId, if the frame says saved.
    """

    user: int
    frame: bytes
    ended: int = 0
    keep: bool = False
    saved: str = ""


class NotHeeded(StoreError):
    """Redis does its work; an instance that was told to let its users look into the archive has not done so yet."""


class Courier:
    def __init__(self, instance: str, here: LocalUsers, users: Users, inboxes: Inboxes, metrics: Metrics) -> None:
        self.instance, self.here, self.users, self.inboxes, self.metrics = instance, here, users, inboxes, metrics
        self._behind: dict[str, set[int]] = {}
        self._missed: set[int] = set()
        self._answers = True  # whether Redis did when it was last asked where somebody is
        self._untold: deque[Tell] = deque(maxlen=MOST_UNTOLD)  # for want of Redis, or of room; good news all of it
        self._telling: dict[str, asyncio.Lock] = {}  # by instance: one at a time says who is behind there
        self._reminders: dict[str, str] = {}  # by instance: the entry that tells its users to look, until it is worked

    async def owners(self, receivers: Iterable[int]) -> dict[int, str]:
        """`instance|connection` of those that are connected, as far as can be known."""
        asked = list(dict.fromkeys(receivers))
        try:
            return await self.look_up(asked)
        except StoreError:
            return self.owners_here(asked)

    def owners_here(self, receivers: Sequence[int]) -> dict[int, str]:
        """The same without Redis: who is here may have moved on, who is not may be anywhere."""
        self._answers = False
        self._missed.update(receivers)
        return self._here_of(receivers)

    async def look_up(self, users: Sequence[int]) -> dict[int, str]:
        """The same as Redis knows it; raises StoreError."""
        found = await self.users.owners(users)
        self._answers = True
        return {user: owner for user, owner in zip(users, found, strict=True) if owner}

    def _here_of(self, users: Sequence[int]) -> dict[int, str]:
        return {user: owner for user in users if (owner := self.here.owner(user))}

    # -- messages --------------------------------------------------------------------------------

    async def push(self, deliveries: Sequence[Delivery], owners: Mapping[int, str]) -> set[int]:
        """To receivers, in this order. Answers the ids of messages that, as far as we know, reached no socket."""
        # Those of this push alone, and not while Redis is away: a message must not cost what everybody missed.
        if self._answers and (late := self._missed.intersection(owners)):
            await self._try_to_find(late)
        away, unreached = dict[str, list[Delivery]](), set[int]()
        for one in deliveries:
            instance = owners.get(one.user, "").partition("|")[0]
            if instance == self.instance:
                self._look_first(one.user)
                if not self.here.push(one.user, one.id, one.sender, one.frame):
                    unreached.add(one.id)
            elif instance and one.user not in self._missed:
                away.setdefault(instance, []).append(one)
            else:
                unreached.add(one.id)
        for instance, theirs in away.items():
            unreached |= await self._push_away(instance, theirs)
        return unreached

    def _look_first(self, user: int) -> None:
        """Who is here and may have missed something gets that before this: another instance may have saved a message
        for it, and lost Redis before it could bring it here."""
        here = self.here.get(user) if user in self._missed else None
        if here is not None:
            self.here.on_catch_up(here)

    async def _push_away(self, instance: str, deliveries: list[Delivery]) -> set[int]:
        left = list(deliveries)
        if await self._caught_up(instance):
            for part in _parts(deliveries):
                message = ChatPush([OnePush(one.user, one.id, one.sender, Raw(one.frame)) for one in part])
                verdict = await self.hand(instance, message)
                if verdict is Push.GONE:  # and so are their sockets
                    return {one.id for one in left}
                if verdict is not Push.OK:
                    self._note(instance, verdict, {one.user for one in left})
                    break
                left = left[len(part) :]
        else:
            self._behind.setdefault(instance, set()).update(one.user for one in left)
        return {one.id for one in left}

    def _note(self, instance: str, verdict: Push | None, users: set[int]) -> None:
        if verdict is None:
            self._missed |= users
        else:
            self._behind.setdefault(instance, set()).update(users)

    # -- who missed something --------------------------------------------------------------------

    def owe(self, user: int) -> None:
        """It may have missed something that somebody else could not bring."""
        self._missed.add(user)

    def is_behind(self, user: int) -> bool:
        """Whether the user may have missed something because Redis was away."""
        return user in self._missed

    @property
    def owes_anybody(self) -> bool:
        """Whether somebody may have missed something, and does not know it yet."""
        return bool(self._missed or self._behind or self._reminders)

    async def make_up(self, users: Iterable[int]) -> None:
        """Let these look into the archive before anything newer reaches them; raises StoreError.

        When it returns they do: whoever pushes to them from now on comes behind that.
        """
        asked = set(users)
        owed = self._missed & asked
        await self._find(owed)
        await self._remind_instances()
        if not self._missed.isdisjoint(owed):
            raise RedisAway("receivers could not be told that they missed something")
        for instance, behind in self._behind.items():
            if not behind.isdisjoint(asked):
                raise NotHeeded(f"{instance} has no room to be told that its users missed something")
        if self._reminders:  # where they are by now: who has moved on has looked there
            await self._until_heeded({one.partition("|")[0] for one in (await self.look_up(sorted(asked))).values()})

    async def _find(self, missed: Collection[int]) -> None:
        """Who is here looks into the archive, of others it is known now which instance has to be told."""
        for user, owner in (await self.look_up(sorted(missed)) if missed else {}).items():
            instance = owner.partition("|")[0]
            if instance != self.instance:
                self._behind.setdefault(instance, set()).add(user)
            elif (here := self.here.get(user)) is not None:
                self.here.on_catch_up(here)
        self._missed.difference_update(missed)

    async def _try_to_find(self, missed: Collection[int]) -> bool:
        try:
            await self._find(missed)
        except StoreError as error:
            log.debug("who missed messages is not known yet", users=len(self._missed), error=str(error))
            return False
        return True

    async def _until_heeded(self, by: Collection[str]) -> None:
        """Until these instances have worked their reminders; one that is not worked stays for the next who asks."""
        give_up_at = monotonic() + HEED_S
        for instance, id in [(one, self._reminders[one]) for one in by if one in self._reminders]:
            while await self.inboxes.get(instance, id) is not None:
                if monotonic() >= give_up_at:
                    raise NotHeeded(f"{instance} has not worked what its inbox holds")
                await asyncio.sleep(LOOK_S)
            if self._reminders.get(instance) == id:
                del self._reminders[instance]

    async def _remind_instances(self) -> None:
        for instance in list(self._behind):
            await self._caught_up(instance)

    async def _caught_up(self, instance: str) -> bool:
        """Whether nobody there has missed anything, or all of them know by now."""
        async with self._telling.setdefault(instance, asyncio.Lock()):  # who comes meanwhile has to know how it ends
            behind = self._behind.pop(instance, None)
            if behind is None:
                return True
            try:
                verdict, id = await self._put(instance, ChatCatchUp(sorted(behind)))
            except BaseException:  # nobody waited for the answer
                self._behind.setdefault(instance, set()).update(behind)
                raise
            if verdict is Push.OK:
                self._reminders[instance] = id
            elif verdict is Push.GONE:
                self._telling.pop(instance, None)
            else:
                self._note(instance, verdict, behind)
                return False
            return True

    async def remind(self) -> None:
        """Try again to tell receivers that they missed something, and senders what they were not told."""
        missed = sorted(self._missed)
        for first in range(0, len(missed), SLICE):
            if not await self._try_to_find(missed[first : first + SLICE]):
                break
            await self._remind_instances()
        await self._remind_instances()
        await self._tell_again()
        try:
            await self._until_heeded(list(self._reminders))
        except StoreError as error:
            log.debug("not everybody has heard that it missed something", error=str(error))

    # -- words to senders ------------------------------------------------------------------------

    async def tell(self, tells: Sequence[Tell], owners: Mapping[int, str] | None = None) -> None:
        """To senders, in this order. With Redis away StoreError is raised when bad news would be lost."""
        known = True
        if owners is None:
            asked = list(dict.fromkeys(one.user for one in tells))
            try:
                owners = await self.look_up(asked)
            except StoreError:
                owners, known = self._here_of(asked), False
        away: dict[str, list[Tell]] = {}
        for one in tells:
            instance = owners.get(one.user, "").partition("|")[0]
            user = self.here.get(one.user) if instance == self.instance else None
            if user is not None:
                user.told(one.frame, one.ended, one.saved)
            elif instance and instance != self.instance:
                away.setdefault(instance, []).append(one)
            elif one.keep:
                await self.users.leave_word(one.user, one.frame)
            elif not known:
                self._untold.append(one)
        for instance, theirs in away.items():
            await self._tell_away(instance, theirs)

    async def _tell_away(self, instance: str, tells: list[Tell]) -> None:
        for part in _parts(tells):
            message = ChatTell([OneTell(one.user, one.ended, Raw(one.frame), one.keep, one.saved) for one in part])
            verdict = await self.hand(instance, message)
            if verdict is Push.OK:
                continue
            for one in part:
                if one.keep:
                    await self.users.leave_word(one.user, one.frame)
                elif verdict is not Push.GONE:  # then it comes in elsewhere, and asks
                    self._untold.append(one)

    async def _tell_again(self) -> None:
        untold = list(self._untold)
        self._untold.clear()
        if untold:
            await self.tell(untold)

    async def hand(self, instance: str, message: InboxMessage) -> Push | None:
        """To the inbox of another instance; None: Redis is away, or was before it could say whether it is there."""
        return (await self._put(instance, message))[0]

    async def _put(self, instance: str, message: InboxMessage) -> tuple[Push | None, str]:
        """The same, and the id of the entry."""
        try:
            verdict, id = await self.inboxes.put(instance, kind_of(message), encode_peer(message))
        except StoreError as error:
            log.warning("could not reach an inbox", to=instance, kind=kind_of(message), error=str(error), limited=True)
            self.metrics.chat_deliver_fail.inc()
            return None, ""
        self.metrics.pushed.labels(verdict).inc()
        if verdict is not Push.OK:
            self.metrics.chat_deliver_fail.inc()
        return verdict, id


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
