"""AUTH: token, session version, the one connection a user may have, and its undelivered messages.

While Redis is unavailable a valid token is enough. Session version and owner are checked when Redis is back; until then
it is not known whether the user has unsaved messages, so it cannot send past them.

A user gets a resend after its owner key is written to Redis, and pushes wait for it: with its AUTH, and also when Redis
gets the key later or had lost it. Otherwise messages that were saved while it could not be located would be overtaken.
"""

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic, time
from typing import Any, TypeVar

import structlog

from dragoman.domain.chat.message_ids import IdMaker
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Reason
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import ChatKick, ChatOwnerCheck
from dragoman.services.chat.credentials import BadToken, Tokens
from dragoman.services.chat.delivery import Delivery
from dragoman.services.chat.inbound import AutomaticTranslation, ChatSocket, Undelivered, now_ms
from dragoman.services.chat.local_users import ChatUser, LocalUsers
from dragoman.services.chat.outbound import Outbound, Verify
from dragoman.services.chat.receipts import Receipts
from dragoman.services.loops import ReadFirstTimeout, Tasks, answers
from dragoman.store.chat.shards import Shards
from dragoman.store.chat.users import Users
from dragoman.store.errors import StoreError
from dragoman.store.inbox import PushReply
from dragoman.store.interface import in_slices

log = structlog.get_logger(__name__)

T = TypeVar("T")

SESSION_CHECK_S = 3.0
SESSION_GATHER_S = 0.1  # those that are due within it are looked up together


class Admission:
    def __init__(
        self,
        instance: str,
        tokens: Tokens,
        users: Users,
        local: LocalUsers,
        shards: Shards,
        undelivered: Undelivered,
        delivery: Delivery,
        receipts: Receipts,
        ids: IdMaker,
        tasks: Tasks,
        make_outbound: Callable[[ChatUser, Verify], Outbound],
        *,
        timeout_s: float,
        automatic: Callable[[str], AutomaticTranslation] | None = None,
    ) -> None:
        """`automatic`: what translates messages into a language, for a connection that wants it."""
        self.instance, self.tokens, self._users, self._local, self._shards = instance, tokens, users, local, shards
        self._undelivered, self._delivery, self._ids, self._tasks = undelivered, delivery, ids, tasks
        self._receipts, self._make_outbound, self._timeout_s = receipts, make_outbound, timeout_s
        self._automatic = automatic
        self._unchecked: list[ChatUser] = []

    async def admit(self, socket: ChatSocket, token: str | None, translate: str | None = None) -> ChatUser | Reason:
        """The user at this socket, after AUTH_OK; or the reason of the refusal. `translate`: the language in which it
        wants messages."""
        if not token:
            return Reason.MISSING_TOKEN
        try:
            access = self.tokens.read_access(token, time())
        except BadToken:
            return Reason.INVALID_TOKEN
        owner = f"{self.instance}|{socket.id}"
        user = ChatUser(access, socket, owner, self._undelivered, self._shards.bytes_per_day)
        before = ""
        self._local.expect(user)
        try:
            async with ReadFirstTimeout(self._timeout_s):
                if not await self._valid(user):
                    return Reason.SESSION_INVALID
                if not socket.closed:
                    before = await self._own(user)
        except (StoreError, TimeoutError) as error:
            log.warning("a user is admitted by its token alone", user=user.id, error=str(error), limited=True)
            user.sender.moved()  # it may have
        finally:
            self._local.expect_no_more(user)
        if socket.closed:
            await self._undo_own(user, before)
            return Reason.AUTH_TIMEOUT
        # Nothing is awaited since it owns the user: of two connections at once, the later owner is added later.
        self._local.add(user)
        self.welcome(user, translate)
        if user.verified:
            self._tasks.spawn(self._arrived(user, before), "chat-arrival")
        self._tasks.spawn(user.inbound.resume(), "chat-resend")
        return user

    def welcome(self, user: ChatUser, translate: str | None) -> None:
        """AUTH_OK. '' for what is no language: the connection is open, and the language as it was."""
        user.send(wire.auth_ok(user.id, now_ms(), translate))
        if translate and self._automatic is not None:
            user.inbound.translate_by(self._automatic(translate))
        elif translate == "":
            user.error(Reason.MISSING_LANG)

    async def _valid(self, user: ChatUser) -> bool:
        newest = user.unsaved.newest
        version, unsaved, last_id, spent = await answers(
            asyncio.ensure_future(self._users.session_version(user.id)),
            asyncio.ensure_future(self._shards.unsaved(user.id)),
            asyncio.ensure_future(self._shards.last_id(user.id)),
            asyncio.ensure_future(self._shards.spent(user.id)),
        )
        used, left_s = spent
        user.bytes_per_day.learned(used, left_s, monotonic())
        self._ids.rise(last_id)  # what it sends here has higher ids than what it sent elsewhere
        user.unsaved.counted(unsaved, newest, monotonic())
        user.session_checked()
        return bool(user.session_version >= version)

    async def _own(self, user: ChatUser) -> str:
        """Write its owner key; returns the one before."""
        before = await self._with_resend(user, self._users.swap_owner(user.id, user.owner))
        user.set_verified()
        if before and before.partition("|")[0] != self.instance:
            user.sender.moved()  # that instance did not see it leave, or could not delete its key
        return before

    async def _with_resend(self, user: ChatUser, writing: Coroutine[Any, Any, T]) -> T:
        """Write its owner key; pushes wait from before that until the resend after it.

        Also if the caller stops waiting or the write fails: Redis may have done it.
        """
        user.inbound.pause()
        task = asyncio.ensure_future(writing)
        task.add_done_callback(lambda _: self._tasks.spawn(user.inbound.resume(), "chat-resend"))
        return await asyncio.shield(task)

    async def _arrived(self, user: ChatUser, before: str) -> None:
        """End its former connection, on any instance, and send the notices that waited for it."""
        await self._end_former(user, before)
        await self._send_notices(user)

    async def _send_notices(self, user: ChatUser) -> None:
        """Redis keeps notices until they were sent; if it does not answer, `run_once` begins again."""
        due = True
        try:
            notices = await self._users.notices(user.id)
            for notice in notices:
                if notice not in user.notices_sent:
                    user.notices_sent.add(notice)
                    user.send(notice)
            if notices:
                await self._users.drop_notices(user.id, notices)
            await self._receipts.apply_early(user.id)  # those that an instance parked and died
            due = False
        finally:
            user.set_notices_due(due)

    async def _end_former(self, user: ChatUser, before: str) -> None:
        instance, _, connection = before.rpartition("|")
        if not instance or before == user.owner:
            return
        kick = ChatKick(user.id, int(connection))
        if instance == self.instance:
            self._local.on_kick(kick)
        else:
            await self._delivery.put(instance, kick)

    async def _undo_own(self, user: ChatUser, before: str) -> None:
        """The connection closed while Redis wrote its owner key, with AUTH or later.

        The former owner gets the key back: the client may have reconnected to it while our write was under way, so
        "former" does not mean older. But if a newer connection owns the user by now, it replaced this one and does not
        know of the former one.
        """
        if before and await self._users.restore_owner(user.id, user.owner, before):
            self._delivery.request_resend(user.id)  # a push may have gone to the closed socket
        else:
            await self._end_former(user, before)
        await self.disconnected(user)

    def reauth(self, user: ChatUser, token: str | None) -> Reason | None:
        """A newer token of the same user; None: it is valid."""
        if not token:
            return Reason.MISSING_TOKEN
        try:
            access = self.tokens.read_access(token, time())
        except BadToken:
            return Reason.INVALID_TOKEN
        if access.uid != user.id:
            return Reason.REAUTH_UID_MISMATCH
        user.reauthenticate(access)
        return None

    def outbound(self, user: ChatUser) -> Outbound:
        """For the messages it sends; one a connection."""
        return self._make_outbound(user, self._verify)

    async def disconnected(self, user: ChatUser) -> None:
        """The socket is closed: delete the owner key, unless a newer connection has written its own.

        While a resend is pending the key stays until it expires: by that key the next instance sees that the user was
        here, and makes those it writes to read the archive first.
        """
        self._local.remove(user)
        if not self._delivery.resends_pending:
            await self._users.disown(user.id, user.owner)

    # -- while it is connected -------------------------------------------------------------------

    def check_session(self, user: ChatUser) -> None:
        """With a frame of it, at most every SESSION_CHECK_S: is its token still one of the latest login?"""
        if user.is_session_check_due(SESSION_CHECK_S):
            user.session_checked()
            self._unchecked.append(user)
            if len(self._unchecked) == 1:
                self._tasks.spawn(self._check_sessions(), "chat-session-version")

    async def _check_sessions(self) -> None:
        await asyncio.sleep(SESSION_GATHER_S)
        users, self._unchecked = self._unchecked, []
        versions = await self._users.session_versions([user.id for user in users])
        for user, version in zip(users, versions, strict=True):
            if user.session_version < version:
                user.end(Reason.SESSION_INVALID, Close.UNAUTHORIZED)

    async def run_once(self) -> None:
        """Do what could not be done while Redis was unavailable."""
        due = [user for user in self._local if user.notices_due or not user.verified]
        await in_slices(due, lambda user: self._send_notices(user) if user.verified else self._verify_if_there(user))

    async def _verify_if_there(self, user: ChatUser) -> None:
        """It has to answer a ping first: the user of a dead connection may have connected elsewhere since, and would be
        disconnected there."""
        if not user.pinged:
            if await self._still_valid(user):
                user.ping()
        elif user.answered():
            await self._verify(user)

    async def _still_valid(self, user: ChatUser) -> bool:
        if not await self._valid(user):
            user.end(Reason.SESSION_INVALID, Close.UNAUTHORIZED)
        return not user.socket.closed

    async def _verify(self, user: ChatUser) -> None:
        if await self._still_valid(user):
            before = await self._own(user)
            connected = self._local.get(user.id) is user
            await (self._arrived(user, before) if connected else self._undo_own(user, before))

    async def renew(self) -> None:
        """Renew the owner keys."""
        await in_slices((user for user in self._local if user.verified), self._renew)

    async def _renew(self, user: ChatUser) -> None:
        match await self._users.renew(user.id, user.owner):
            case "OTHER":
                (other,) = await self._users.owners([user.id])
                await self._check_other_owner(user, other)
            case "NONE":
                await self._own_again(user)

    async def _own_again(self, user: ChatUser) -> None:
        """If another connection writes the key first, the next renewal finds that."""
        if self._local.get(user.id) is user:  # else it is disconnected, and its key deleted
            await self._with_resend(user, self._users.own_again(user.id, user.owner))

    async def _check_other_owner(self, user: ChatUser, other: str) -> None:
        """The key names another connection. Either that one is newer, and the kick for ours was lost; or it is closed,
        and Redis executed the write of its key late. Only its instance knows."""
        instance, _, connection = other.rpartition("|")
        if not instance or other == user.owner:
            return
        check = ChatOwnerCheck(user.id, int(connection), user.owner)
        if instance == self.instance:
            await self.on_owner_check(check)
        elif await self._delivery.put(instance, check) is PushReply.GONE:
            await self._users.disown(user.id, other)
            await self._own_again(user)

    async def on_owner_check(self, check: ChatOwnerCheck) -> None:
        """Without that connection its key is deleted, and the connection that asked owns the user again."""
        user = self._local.admitting(check.connection) or self._local.get(check.user)
        if user is not None and (user.id, user.socket.id) == (check.user, check.connection) and not user.socket.closed:
            await self._end_former(user, check.owner)
        else:
            await self._users.disown(check.user, f"{self.instance}|{check.connection}")
