"""The chat users connected to this instance, and what other instances send to them."""

from collections.abc import Iterator
from time import monotonic

from dragoman.archive import NewMessage
from dragoman.domain.chat.delivery_state import SenderState
from dragoman.domain.chat.sent_messages import Notice, OpenRequests, Unsaved
from dragoman.domain.limits.rates import BytesPerDay
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Reason
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import ChatKick, ChatNotices, ChatPush, ChatResend, EarlyMessage, UserNotice
from dragoman.services.chat.credentials import Access
from dragoman.services.chat.inbound import ChatSocket, Inbound, Undelivered, now_ms
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics


class ChatUser:
    """One authenticated connection: its user, and what it is sent.

    What it sends is in `Outbound`, which refers to its user. The user does not refer to it, so that both are freed with
    the connection.
    """

    def __init__(
        self, access: Access, socket: ChatSocket, owner: str, archive: Undelivered, bytes_per_day: int
    ) -> None:
        self.id, self.socket, self.owner = access.uid, socket, owner
        self.inbound = Inbound(access.uid, socket, archive)
        self.sender = SenderState()
        self.requests = OpenRequests()
        self.unsaved = Unsaved()
        self.bytes_per_day = BytesPerDay(bytes_per_day)
        self.notices_sent = set[bytes]()  # of those that waited in Redis, which may still have them
        self._access = access
        self._session_checked_at = monotonic()
        self._verified = False
        self._notices_due = False
        self._frames_before_ping: int | None = None
        self._ts = 0  # of the latest frame about a message it sent
        self._unread_s = self._paused_at = 0.0

    # -- its session -----------------------------------------------------------------------------

    @property
    def expires_s(self) -> float:
        """Wall clock, as its token says."""
        return self._access.exp

    @property
    def token(self) -> str:
        """The name by which its token can be revoked."""
        return self._access.token

    @property
    def session_version(self) -> int:
        return self._access.sv

    @property
    def verified(self) -> bool:
        """Whether Redis has its owner key and knows its session version: not while Redis is unavailable."""
        return self._verified

    def set_verified(self) -> None:
        self._verified = True

    def reauthenticate(self, access: Access) -> None:
        """A newer token of the same user; its session version is checked with the next frame."""
        self._access, self._session_checked_at = access, 0.0

    def session_checked(self) -> None:
        self._session_checked_at = monotonic()

    def is_session_check_due(self, interval_s: float) -> bool:
        return monotonic() - self._session_checked_at >= interval_s

    @property
    def notices_due(self) -> bool:
        """Whether notices that waited for it in Redis may be there still."""
        return self._notices_due

    def set_notices_due(self, due: bool) -> None:
        self._notices_due = due

    def ping(self) -> None:
        """`answered` says whether it is still there."""
        self._frames_before_ping = self.socket.frames
        self.socket.ping()

    @property
    def pinged(self) -> bool:
        return self._frames_before_ping is not None

    def answered(self) -> bool:
        """Whether a frame has come since the ping; once."""
        if self.socket.frames == self._frames_before_ping:
            return False
        self._frames_before_ping = None
        return True

    def end(self, reason: Reason, code: Close) -> None:
        """Send the reason, and close."""
        self.error(reason)
        self.socket.close(code, reason)

    # -- frames about messages it sent -----------------------------------------------------------

    def send(self, frame: bytes) -> None:
        self.inbound.send(frame)

    def stamp(self) -> int:
        """The `ts` of a frame about a message it sent: never below that of an earlier one, whatever the clock does."""
        self._ts = max(self._ts, now_ms())
        return self._ts

    def error(self, reason: Reason, client_msg_id: str | None = None, server_msg_id: int | None = None) -> None:
        self.send(wire.error(reason, self.stamp(), client_msg_id, server_msg_id))

    def accepted(self, row: NewMessage, id: int, *, duplicate: bool = False) -> None:
        """ACK accepted, and the `saved` that came before it."""
        self._ack(AckType.ACCEPTED, row, id, duplicate)
        saved = self.requests.accepted(row.client_msg_id, duplicate=duplicate)
        if saved is not None:
            self._send_stamped(saved, duplicate=duplicate)

    def accepted_and_saved(self, row: NewMessage, id: int, *, duplicate: bool = False) -> None:
        """Both, for a message that is a row."""
        self._ack(AckType.ACCEPTED, row, id, duplicate)
        self.saved(row, id, duplicate=duplicate)

    def saved(self, row: NewMessage, id: int, *, duplicate: bool = False) -> None:
        self._ack(AckType.SAVED, row, id, duplicate)
        self.requests.saved(row.client_msg_id, id)

    def notified(self, frame: bytes, ended: int, saved: str = "") -> None:
        """What became of a message it sent; `ended` is its serverMsgId, if it is not on its way any more.

        `saved` is the clientMsgId, if that is what the frame says.
        """
        if ended:
            self.unsaved.ended(ended, monotonic())
        notice = self.requests.notified(saved, ended, frame) if saved else Notice.WRITE
        if notice in (Notice.WRITE, Notice.WRITE_DUPLICATE):
            self._send_stamped(frame, duplicate=notice is Notice.WRITE_DUPLICATE)

    def _ack(self, kind: AckType, row: NewMessage, id: int, duplicate: bool) -> None:
        self.send(wire.ack(kind, row.from_user, row.client_msg_id, id, self.stamp(), row.body, duplicate=duplicate))

    def _send_stamped(self, frame: bytes, *, duplicate: bool = False) -> None:
        """A frame made earlier, or by another instance's clock: its `ts` is that of sending."""
        self.send(wire.stamped(frame, self.stamp(), duplicate=duplicate))

    # -- reading ---------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._paused_at = monotonic()
        self.socket.pause_reading()

    def resume_reading(self) -> None:
        self._unread_s += monotonic() - self._paused_at
        self.socket.resume_reading()

    def take_unread_s(self) -> float:
        """How long it was not read since this was last asked."""
        unread_s, self._unread_s = self._unread_s, 0.0
        return unread_s

    def ping_if_idle(self, ping_idle_s: float) -> None:
        """The gateway closes a connection that answers nothing for longer."""
        if monotonic() - self.inbound.sent_at >= ping_idle_s:
            self.send(wire.ping(now_ms()))


class LocalUsers:
    def __init__(self, metrics: Metrics, tasks: Tasks, ping_idle_s: float) -> None:
        self.metrics, self._tasks, self._ping_idle_s = metrics, tasks, ping_idle_s
        self._users: dict[int, ChatUser] = {}
        self._expected: dict[int, ChatUser] = {}  # by connection: other instances may know of it before we do

    def __len__(self) -> int:
        return len(self._users)

    def __iter__(self) -> Iterator[ChatUser]:
        return iter(list(self._users.values()))

    def get(self, user: int) -> ChatUser | None:
        return self._users.get(user)

    def owner(self, user: int) -> str:
        found = self._users.get(user)
        return found.owner if found is not None else ""

    def expect(self, user: ChatUser) -> None:
        """It is about to be added: a later connection of the user, on another instance, can end it already."""
        self._expected[user.socket.id] = user

    def admitting(self, connection: int) -> ChatUser | None:
        """The user of a connection that is about to be added."""
        return self._expected.get(connection)

    def expect_no_more(self, user: ChatUser) -> None:
        self._expected.pop(user.socket.id, None)

    def add(self, user: ChatUser) -> None:
        """The newest connection of a user is the only one."""
        before = self._users.get(user.id)
        self._users[user.id] = user
        self.metrics.chat_users.set(len(self._users))
        if before is not None:
            before.end(Reason.KICKED, Close.REPLACED)

    def remove(self, user: ChatUser) -> bool:
        """False: a newer connection has taken its place."""
        if self._users.get(user.id) is not user:
            return False
        del self._users[user.id]
        self.metrics.chat_users.set(len(self._users))
        return True

    def close_all(self, code: int) -> None:
        """Also those that are about to be added."""
        for user in (*self, *self._expected.values()):
            user.socket.close(code)

    async def ping_idle(self) -> None:
        for user in self:
            user.ping_if_idle(self._ping_idle_s)

    # -- messages and resends --------------------------------------------------------------------

    def push(self, user: int, id: int, sender: int, frame: bytes) -> bool:
        """Also to one that is expected: Redis may name it as the owner already. False: the user is not here."""
        found = [one for one in self._expected.values() if one.id == user] if self._expected else []
        if user in self._users:
            found.append(self._users[user])
        for one in found:
            one.inbound.push(id, sender, frame)
        return bool(found)

    def push_early(self, one: EarlyMessage) -> str:
        """A message that is not saved yet, to this connection alone: a newer one may have missed earlier messages.

        Returns `instance|connection`; '' if it was not written.
        """
        user = self._users.get(one.user)
        if user is None or user.socket.id != one.connection:
            return ""
        return user.owner if user.inbound.push_early(one.id, one.sender, bytes(one.frame), one.after) else ""

    def resend(self, user: int) -> None:
        """It missed something: what is pushed from now on waits until it was sent what is undelivered."""
        found = self._users.get(user)
        if found is not None:
            found.inbound.pause()
            self._tasks.spawn(found.inbound.resume(), "chat-resend")

    # -- from other instances --------------------------------------------------------------------

    def on_push(self, message: ChatPush) -> None:
        for one in message.pushes:
            self.push(one.user, one.id, one.sender, bytes(one.frame))

    def on_notices(self, message: ChatNotices) -> list[UserNotice]:
        """Returns those for users that are not here any more."""
        remote = list[UserNotice]()
        for one in message.notices:
            user = self._users.get(one.user)
            if user is not None:
                user.notified(bytes(one.frame), one.ended, one.saved)
            else:
                remote.append(one)
        return remote

    def on_kick(self, message: ChatKick) -> None:
        user = self._expected.get(message.connection) or self._users.get(message.user)
        if user is not None and (user.id, user.socket.id) == (message.user, message.connection):
            self.remove(user)
            user.end(Reason.KICKED, Close.REPLACED)

    def on_resend_request(self, message: ChatResend) -> None:
        for user in message.users:
            self.resend(user)
