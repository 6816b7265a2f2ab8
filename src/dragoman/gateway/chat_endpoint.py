"""/ws: chat. Decodes once, minds who may speak, hands on what was said; no policy."""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from time import monotonic, time

from dragoman.domain.chat.rules import comes_later
from dragoman.domain.limits.frames import ChatFrameLimit
from dragoman.gateway.authentication import Principal
from dragoman.gateway.connection import Connection
from dragoman.gateway.handshake import Reject, Request
from dragoman.gateway.open_connections import AuthenticatedConnections, PreSession
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Frame, FrameType, Reason
from dragoman.protocol.codes import Close
from dragoman.services.chat.admission import Admission
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.chat.outbound import Outbound
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.tokens import BadToken, Tokens
from dragoman.services.loops import Tasks

PATH = "/ws"
MOST_WAITING = 64  # frames of a connection that is being let in; then it is not read until it is


class State(Enum):
    NEW = auto()
    COMING_IN = auto()
    OPEN = auto()
    OVER = auto()


def handshake_token(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return query.get("token") or query.get("accessToken")


class TokenCheck:
    """An Authorizer: a token in the handshake is optional, but a bad one is refused there."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def __call__(self, request: Request) -> Reject | None:
        token = handshake_token(request.headers, request.query)
        if request.path != PATH or token is None:
            return None
        try:
            self._tokens.read_access(token, time())
        except BadToken:
            return Reject(401, "invalid_access_token", plain=True)
        return None


def decoded(data: bytes) -> Frame | Reason:
    """What a client sent, or why it cannot be read."""
    try:
        return wire.decode_frame(data)
    except wire.Refused as refused:
        return refused.reason


class ChatEndpoint:
    def __init__(
        self,
        admission: Admission,
        receipts: Receipts,
        tasks: Tasks,
        pre_session: PreSession,
        frame_limit: ChatFrameLimit,
        draining: Callable[[], bool],
        authenticated: AuthenticatedConnections,
    ) -> None:
        self._authenticated = authenticated
        self._admission, self._receipts, self._tasks, self._pre_session = admission, receipts, tasks, pre_session
        self._frame_limit, self._draining = frame_limit, draining
        self._state = State.NEW
        self._user: ChatUser | None = None
        self._outbound: Outbound | None = None
        self._waiting: list[bytes] = []

    # -- what the socket does --------------------------------------------------------------------

    def opened(self, conn: Connection) -> None:
        if self._draining():
            conn.close(Close.SHUTDOWN, "the server is going down")
            return
        self._pre_session.add(conn, Close.UNAUTHORIZED, Reason.AUTH_TIMEOUT, wire.error(Reason.AUTH_TIMEOUT, now_ms()))
        token = handshake_token(conn.headers, conn.query)
        if token is not None:
            self._come_in(conn, token)

    def text(self, conn: Connection, data: bytes) -> None:
        if self._user is not None and (unread_s := self._user.take_unread_s()):
            self._frame_limit.add_unread(unread_s)
        if self._state is State.OVER:
            return
        frame = None if self._state is State.COMING_IN else decoded(data)
        if not self._admits(conn, frame):
            self._end(conn, Reason.TOO_MANY_REQUESTS, Close.RATE)
        elif frame is not None:
            self._hear(conn, frame)
        else:
            self._waiting.append(data)
            if len(self._waiting) == MOST_WAITING:
                conn.pause_reading()

    def _admits(self, conn: Connection, frame: Frame | Reason | None) -> bool:
        """Count a frame. Receipts are free, as many as the messages that were pushed to this connection allow."""
        is_receipt = isinstance(frame, Frame) and frame.type == FrameType.ACK
        if is_receipt and self._user is not None and self._user.inbound.ack_credit.take():
            conn.refund()
            return True
        return self._frame_limit.admit(monotonic())

    def binary(self, conn: Connection, data: bytes) -> None:
        if self._frame_limit.admit(monotonic()):
            self._violated(conn, Reason.BAD_JSON)
        else:
            self._end(conn, Reason.TOO_MANY_REQUESTS, Close.RATE)

    def closed(self, conn: Connection) -> None:
        self._state = State.OVER
        self._waiting.clear()
        self._pre_session.remove(conn)
        self._authenticated.discard(conn)
        if self._user is not None:
            self._tasks.spawn(self._admission.disconnected(self._user), "chat-leave")

    # -- coming in -------------------------------------------------------------------------------

    def _come_in(self, conn: Connection, token: str | None) -> None:
        self._state = State.COMING_IN
        self._tasks.spawn(self._admit(conn, token), "chat-admission")

    async def _admit(self, conn: Connection, token: str | None) -> None:
        found = await self._admission.admit(conn, token)
        self._pre_session.remove(conn)
        if isinstance(found, Reason):
            self._state = State.OVER
            conn.send(wire.auth_fail(found, now_ms()))
            conn.close(Close.UNAUTHORIZED, found)
            return
        self._user, self._outbound = found, self._admission.outbound(found)
        if self._state is State.OVER:  # it left in the meantime
            await self._admission.disconnected(found)
            return
        self._state = State.OPEN
        self._remember(conn, found)
        waiting, self._waiting = self._waiting, []
        if len(waiting) >= MOST_WAITING:
            conn.resume_reading()
        for data in waiting:
            if self._state is State.OPEN:
                self._hear(conn, decoded(data))

    def _remember(self, conn: Connection, user: ChatUser) -> None:
        """It ends when its token or its user is revoked."""
        principal = Principal("client", str(user.id), chat_user=True, token=user.token)
        self._authenticated.add(conn, principal, self._revoked)

    def _revoked(self, conn: Connection) -> None:
        self._end(conn, Reason.SESSION_INVALID, Close.UNAUTHORIZED)

    # -- what the client says --------------------------------------------------------------------

    def _hear(self, conn: Connection, frame: Frame | Reason) -> None:
        if isinstance(frame, Reason):
            self._violated(conn, frame)
        elif self._user is None:
            self._before(conn, frame)
        else:
            self._handle(conn, self._user, frame)

    def _before(self, conn: Connection, frame: Frame) -> None:
        match frame.type:
            case FrameType.AUTH:
                self._come_in(conn, frame.token)
            case FrameType.PING:
                conn.send(wire.pong(now_ms()))
            case FrameType.PONG:
                pass
            case _:
                self._end(conn, Reason.UNAUTHORIZED, Close.UNAUTHORIZED)

    def _handle(self, conn: Connection, user: ChatUser, frame: Frame) -> None:
        if frame.type == FrameType.REAUTH:
            self._reauth(conn, user, frame)
            return
        if time() >= user.expires_s:
            self._end(conn, Reason.TOKEN_EXPIRED, Close.UNAUTHORIZED)
            return
        self._admission.check_session(user)
        match frame.type:
            case FrameType.SINGLE_CHAT:
                assert self._outbound is not None, "it came with the user"
                self._outbound.take(frame)
            case FrameType.ACK:
                self._receipts.given(user, frame)
            case FrameType.PING:
                user.send(wire.pong(now_ms()))
            case FrameType.PONG:
                pass
            case FrameType.AUTH:
                self._reauth(conn, user, frame)
            case _ if comes_later(frame.type):
                user.error(Reason.NOT_IMPLEMENTED, frame.clientMsgId)
            case _:
                self._violated(conn, Reason.NOT_IMPLEMENTED)

    def _reauth(self, conn: Connection, user: ChatUser, frame: Frame) -> None:
        reason = self._admission.reauth(user, frame.token)
        if reason is Reason.REAUTH_UID_MISMATCH:
            self._end(conn, reason, Close.UNAUTHORIZED)
        elif reason is not None:
            conn.send(wire.auth_fail(reason, now_ms()))
            self._over(conn, Close.UNAUTHORIZED, reason)
        else:
            self._remember(conn, user)
            user.send(wire.auth_ok(user.id, now_ms()))

    # -- what is wrong ---------------------------------------------------------------------------

    def _violated(self, conn: Connection, reason: Reason) -> None:
        conn.send(wire.error(reason, now_ms()))
        if self._frame_limit.violate(monotonic()):
            self._over(conn, Close.BAD_MESSAGE, reason)

    def _end(self, conn: Connection, reason: Reason, code: Close) -> None:
        conn.send(wire.error(reason, now_ms()))
        self._over(conn, code, reason)

    def _over(self, conn: Connection, code: Close, reason: Reason) -> None:
        self._state = State.OVER
        conn.close(code, reason)
