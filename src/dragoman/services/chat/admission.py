"""Lets a user in: token, session version, the one connection it may have, and what waited for it.

With Redis away a valid token is enough. Session version and owner are then looked at as soon as it is back; until
then nobody knows whether the user has messages on their way, so it cannot send past them.

Whoever becomes reachable looks into the archive after that, and what is pushed to it meanwhile waits: with its AUTH,
and as well when Redis hears of it later, or hears again of one that it forgot. Otherwise what was saved while nobody
knew where to push it would be overtaken.
"""

import asyncio
from collections.abc import Coroutine
from time import monotonic, time
from typing import Any, TypeVar

import structlog

from dragoman.domain.limits.bytes_a_day import BytesADay
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Reason
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import ChatKick
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.courier import Courier
from dragoman.services.chat.desk import Desk
from dragoman.services.chat.inbound import ChatSocket
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.mailroom import Mail
from dragoman.services.chat.outbound import Outbound
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.tokens import BadToken, Tokens
from dragoman.services.chat.user import ChatUser
from dragoman.services.loops import ReadFirstTimeout, Tasks, answers
from dragoman.store.chat.shards import Shards
from dragoman.store.chat.users import Users
from dragoman.store.errors import StoreError
from dragoman.store.slices import in_slices

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_AGAIN_S = 3.0  # at a user's session version


class Admission:
    def __init__(
        self,
        instance: str,
        tokens: Tokens,
        users: Users,
        here: LocalUsers,
        shards: Shards,
        mail: Mail,
        courier: Courier,
        receipts: Receipts,
        desk: Desk,
        tasks: Tasks,
    ) -> None:
        self.instance, self.tokens, self._users, self._here, self._shards = instance, tokens, users, here, shards
        self._mail, self._courier, self._desk, self._tasks = mail, courier, desk, tasks
        self._receipts = receipts

    async def admit(self, socket: ChatSocket, token: str | None) -> ChatUser | Reason:
        """The user at this socket, told AUTH_OK and all that waited; or why it may not come in."""
        if not token:
            return Reason.MISSING_TOKEN
        try:
            access = self.tokens.read_access(token, time())
        except BadToken:
            return Reason.INVALID_TOKEN
        owner = f"{self.instance}|{socket.id}"
        user = ChatUser(access.uid, socket, owner, self._mail, expires_s=access.exp, session_version=access.sv)
        user.bytes_a_day = BytesADay(self._shards.bytes_a_day)
        before = ""
        self._here.expect(user)
        try:
            async with ReadFirstTimeout(self._desk.accept_timeout_s):
                if not await self._valid(user):
                    return Reason.SESSION_INVALID
                if not socket.closed:
                    before = await self._own(user)
        except (StoreError, TimeoutError) as error:
            log.warning("a user comes in on its token alone", user=user.id, error=str(error), limited=True)
            user.moved()  # for all we know
        finally:
            self._here.expect_no_more(user)
        if socket.closed:  # perhaps because it has a successor, which knows of nobody before it
            await self._end_former(user, before)
            await self.leave(user)
            return Reason.AUTH_TIMEOUT
        # Nothing is awaited since it owns the user: of two that come in here at once, the later owner enters later.
        self._here.enter(user)
        user.say(wire.auth_ok(user.id, now_ms()))
        if user.verified:
            self._tasks.spawn(self._arrived(user, before), "chat-arrival")
        self._tasks.spawn(user.inbound.begin(), "chat-catch-up")
        return user

    async def _valid(self, user: ChatUser) -> bool:
        newest = user.unsaved.newest
        version, unsaved, last_id, spent = await answers(
            asyncio.ensure_future(self._users.session_version(user.id)),
            asyncio.ensure_future(self._shards.unsaved(user.id)),
            asyncio.ensure_future(self._shards.last_id(user.id)),
            asyncio.ensure_future(self._shards.spent(user.id)),
        )
        used, left_s = spent
        user.bytes_a_day.learned(used, left_s, monotonic())
        self._desk.ids.rise(last_id)  # what it sends here has higher ids than what it sent elsewhere
        user.unsaved.counted(unsaved, newest)
        user.looked_at = monotonic()
        return bool(user.session_version >= version)

    async def _own(self, user: ChatUser) -> str:
        """From now on it is reached here; answers where it was before."""
        before = await self._made_known(user, self._users.swap_owner(user.id, user.owner))
        user.verified = True
        if before and before.partition("|")[0] != self.instance:
            user.moved()  # that instance did not see it leave, or could not say so
        return before

    async def _made_known(self, user: ChatUser, writing: Coroutine[Any, Any, T]) -> T:
        """Redis is told where it is; what is pushed waits from before that until it has looked into the archive after.

        Also when we stop waiting: what was sent to Redis may be done yet. And when it failed: Redis may have done it.
        """
        user.inbound.hold()
        task = asyncio.ensure_future(writing)
        task.add_done_callback(lambda _: self._tasks.spawn(user.inbound.begin(), "chat-catch-up"))
        return await asyncio.shield(task)

    async def _arrived(self, user: ChatUser, before: str) -> None:
        """End its other connection, wherever that is, and tell it what became of its messages while it was away."""
        await self._end_former(user, before)
        await self._bring_news(user)

    async def _bring_news(self, user: ChatUser) -> None:
        """Redis keeps words until they were told; should it not answer, or we not wait, `run_once` begins again."""
        due = True
        try:
            words = await self._users.words(user.id)
            for word in words:
                if word not in user.words_told:
                    user.words_told.add(word)
                    user.say(word)
            if words:
                await self._users.drop_words(user.id, words)
            await self._receipts.apply_early(user.id)  # which an instance died with
            due = False
        finally:
            user.news_due = due

    async def _end_former(self, user: ChatUser, before: str) -> None:
        instance, _, connection = before.rpartition("|")
        if not instance or before == user.owner:
            return
        kick = ChatKick(user.id, int(connection))
        if instance == self.instance:
            self._here.kicked(kick)
        else:
            await self._courier.hand(instance, kick)

    def reauth(self, user: ChatUser, token: str | None) -> Reason | None:
        """A newer token of the same user; None: it is good."""
        if not token:
            return Reason.MISSING_TOKEN
        try:
            access = self.tokens.read_access(token, time())
        except BadToken:
            return Reason.INVALID_TOKEN
        if access.uid != user.id:
            return Reason.REAUTH_UID_MISMATCH
        user.expires_s, user.session_version, user.looked_at = access.exp, access.sv, 0.0
        return None

    def outbound(self, user: ChatUser) -> Outbound:
        """For what it sends; one a connection."""
        return Outbound(self._desk, user, self._verify)

    async def leave(self, user: ChatUser) -> None:
        """The socket is closed: the owner's name goes, unless a newer connection has put its own there.

        It stays, and lapses, while somebody may have missed something that was sent here: wherever the user goes on, it
        is seen by that name that it was here, and those it writes to look into the archive first.
        """
        self._here.leave(user)
        if not self._courier.owes_anybody:
            await self._users.leave(user.id, user.owner)

    # -- again and again -------------------------------------------------------------------------

    def look_again(self, user: ChatUser) -> None:
        """With a frame of it, and not too often: is its token still one of the latest login?"""
        now = monotonic()
        if now - user.looked_at >= LOOK_AGAIN_S:
            user.looked_at = now
            self._tasks.spawn(self._look(user), "chat-session-version")

    async def _look(self, user: ChatUser) -> None:
        if user.session_version < await self._users.session_version(user.id):
            user.end(Reason.SESSION_INVALID, Close.UNAUTHORIZED)

    async def run_once(self) -> None:
        """Make up for what could not be asked while Redis was away."""
        for user in self._here:
            if not user.verified:
                await self._verify_if_there(user)
            elif user.news_due:
                await self._bring_news(user)

    async def _verify_if_there(self, user: ChatUser) -> None:
        """It has to answer first, now that Redis does: the user of a connection that is dead, and not known to be, may
        have come in elsewhere since, and would be thrown out there."""
        if user.frames_when_pinged is None:
            if await self._still_valid(user):
                user.frames_when_pinged = user.socket.frames
                user.socket.ping()
        elif user.socket.frames != user.frames_when_pinged:
            user.frames_when_pinged = None
            await self._verify(user)

    async def _still_valid(self, user: ChatUser) -> bool:
        if not await self._valid(user):
            user.end(Reason.SESSION_INVALID, Close.UNAUTHORIZED)
        return not user.socket.closed

    async def _verify(self, user: ChatUser) -> None:
        if await self._still_valid(user):
            before = await self._own(user)
            await (self._arrived(user, before) if self._here.get(user.id) is user else self.leave(user))

    async def renew(self) -> None:
        """Owner keys, before they lapse. Who has a newer connection elsewhere is told, should that word have missed."""
        owned = {user.id: user for user in self._here if user.verified}
        elsewhere, forgotten = await self._users.renew((user.id, user.owner) for user in owned.values())
        for id in elsewhere:
            self._replaced(owned[id])
        await in_slices(forgotten, lambda id: self._own_again(owned[id]))

    async def _own_again(self, user: ChatUser) -> None:
        if self._here.get(user.id) is not user:  # it has left, and taken its name away
            return
        if not await self._made_known(user, self._users.own_again(user.id, user.owner)):
            self._replaced(user)

    def _replaced(self, user: ChatUser) -> None:
        if self._here.leave(user):
            user.end(Reason.KICKED, Close.REPLACED)
