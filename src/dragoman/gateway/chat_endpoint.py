"""/ws, the endpoint of chat: decodes frames, authenticates the client, passes messages and receipts on; no policy."""

from collections.abc import Callable
from enum import Enum, auto
from time import monotonic, time

from dragoman.domain.chat.rules import is_planned
from dragoman.domain.limits.frames import ChatFrameLimit
from dragoman.gateway.authentication import Principal, chat_token_of
from dragoman.gateway.connection import Connection
from dragoman.gateway.handshake import Reject, Request
from dragoman.gateway.open_connections import AuthenticatedConnections, PreSession
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import Frame, FrameType, Reason
from dragoman.protocol.codes import Close
from dragoman.services.chat.admission import Admission
from dragoman.services.chat.credentials import BadToken, Tokens
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.chat.outbound import Outbound
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.translations import Translations
from dragoman.services.loops import Tasks

PATH = "/ws"
MAX_EARLY_FRAMES = 64  # of a connection that is being authenticated; then it is not read until that is done


class State(Enum):
    NEW = auto()
    AUTHENTICATING = auto()
    OPEN = auto()
    CLOSED = auto()


class TokenCheck:
    """An `Authorizer`: a token in the handshake is optional, but a bad one is refused."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def __call__(self, request: Request) -> Reject | None:
        token = chat_token_of(request.headers, request.query)
        if request.path != PATH or token is None:
            return None
        try:
            self._tokens.read_access(token, time())
        except BadToken:
            return Reject(401, "invalid_access_token", plain=True)
        return None


def decode(data: bytes) -> Frame | Reason:
    """The frame of a client, or why it cannot be read."""
    try:
        return wire.decode_frame(data)
    except wire.Refused as refused:
        return refused.reason


class ChatEndpoint:
    def __init__(
        self,
        admission: Admission,
        receipts: Receipts,
        translations: Translations,
        tasks: Tasks,
        pre_session: PreSession,
        frame_limit: ChatFrameLimit,
        draining: Callable[[], bool],
        starting_over: Callable[[], bool],
        authenticated: AuthenticatedConnections,
    ) -> None:
        self._authenticated = authenticated
        self._admission, self._receipts, self._tasks, self._pre_session = admission, receipts, tasks, pre_session
        self._translations = translations
        self._frame_limit, self._draining, self._starting_over = frame_limit, draining, starting_over
        self._state = State.NEW
        self._user: ChatUser | None = None
        self._outbound: Outbound | None = None
        self._early_frames: list[bytes] = []

    # -- callbacks of the connection --------------------------------------------------------------

    def opened(self, conn: Connection) -> None:
        if self._draining():
            conn.close(Close.SHUTDOWN, "the server is shutting down; connect again")
            return
        self._pre_session.add(conn, Close.UNAUTHORIZED, Reason.AUTH_TIMEOUT, wire.error(Reason.AUTH_TIMEOUT, now_ms()))
        token = chat_token_of(conn.headers, conn.query)
        if token is not None:
            self._authenticate(conn, token)

    def text(self, conn: Connection, data: bytes) -> None:
        if self._user is not None and (unread_s := self._user.take_unread_s()):
            self._frame_limit.add_unread(unread_s)
        if self._state is State.CLOSED:
            return
        frame = None if self._state is State.AUTHENTICATING else decode(data)
        if not self._admits(conn, frame):
            self._close_with_error(conn, Reason.TOO_MANY_REQUESTS, Close.RATE)
        elif frame is not None:
            self._handle(conn, frame)
        else:
            self._early_frames.append(data)
            if len(self._early_frames) == MAX_EARLY_FRAMES:
                conn.pause_reading()

    def _admits(self, conn: Connection, frame: Frame | Reason | None) -> bool:
        """Count a frame. A receipt is free if a message that was pushed to this connection covers it."""
        is_receipt = isinstance(frame, Frame) and frame.type == FrameType.ACK
        if is_receipt and self._user is not None and self._user.inbound.ack_credit.take():
            conn.refund()
            return True
        return self._frame_limit.admit(monotonic())

    def binary(self, conn: Connection, data: bytes) -> None:
        if self._frame_limit.admit(monotonic()):
            self._count_violation(conn, Reason.BAD_JSON)
        else:
            self._close_with_error(conn, Reason.TOO_MANY_REQUESTS, Close.RATE)

    def closed(self, conn: Connection) -> None:
        self._state = State.CLOSED
        self._early_frames.clear()
        self._pre_session.remove(conn)
        self._authenticated.discard(conn)
        if self._user is not None:
            self._tasks.spawn(self._admission.disconnected(self._user), "chat-leave")

    # -- authentication --------------------------------------------------------------------------

    def _authenticate(self, conn: Connection, token: str | None, translate: str | None = None) -> None:
        if self._starting_over():  # its inbox is taken over: what is sent to a user here would not arrive
            conn.close(Close.LEASE_LOST, "the server starts over; connect again")
            return
        self._state = State.AUTHENTICATING
        self._tasks.spawn(self._admit(conn, token, translate), "chat-admission")

    async def _admit(self, conn: Connection, token: str | None, translate: str | None) -> None:
        found = await self._admission.admit(conn, token, translate)
        self._pre_session.remove(conn)
        if isinstance(found, Reason):
            self._state = State.CLOSED
            conn.send(wire.auth_fail(found, now_ms()))
            conn.close(Close.UNAUTHORIZED, found)
            return
        self._user, self._outbound = found, self._admission.outbound(found)
        if self._state is State.CLOSED:  # it disconnected in the meantime
            await self._admission.disconnected(found)
            return
        self._state = State.OPEN
        self._close_when_revoked(conn, found)
        early, self._early_frames = self._early_frames, []
        if len(early) >= MAX_EARLY_FRAMES:
            conn.resume_reading()
        for data in early:
            if self._state is State.OPEN:
                self._handle(conn, decode(data))

    def _close_when_revoked(self, conn: Connection, user: ChatUser) -> None:
        principal = Principal("client", str(user.id), chat_user=True, token=user.token)
        self._authenticated.add(conn, principal, self._revoked)

    def _revoked(self, conn: Connection) -> None:
        self._close_with_error(conn, Reason.SESSION_INVALID, Close.UNAUTHORIZED)

    # -- frames ----------------------------------------------------------------------------------

    def _handle(self, conn: Connection, frame: Frame | Reason) -> None:
        if isinstance(frame, Reason):
            self._count_violation(conn, frame)
        elif self._user is None:
            self._handle_unauthenticated(conn, frame)
        else:
            self._handle_authenticated(conn, self._user, frame)

    def _handle_unauthenticated(self, conn: Connection, frame: Frame) -> None:
        match frame.type:
            case FrameType.AUTH:
                self._authenticate(conn, frame.token, frame.translate)
            case FrameType.PING:
                conn.send(wire.pong(now_ms()))
            case FrameType.PONG:
                pass
            case _:
                self._close_with_error(conn, Reason.UNAUTHORIZED, Close.UNAUTHORIZED)

    def _handle_authenticated(self, conn: Connection, user: ChatUser, frame: Frame) -> None:
        if frame.type == FrameType.REAUTH:
            self._reauth(conn, user, frame)
            return
        if time() >= user.expires_s:
            self._close_with_error(conn, Reason.TOKEN_EXPIRED, Close.UNAUTHORIZED)
            return
        self._admission.check_session(user)
        match frame.type:
            case FrameType.SINGLE_CHAT:
                assert self._outbound is not None, "it is set together with the user"
                self._outbound.take(frame)
            case FrameType.ACK:
                self._receipts.receive(user, frame)
            case FrameType.TRANSLATE:
                self._translations.receive(user, frame)
            case FrameType.PING:
                user.send(wire.pong(now_ms()))
            case FrameType.PONG:
                pass
            case FrameType.AUTH:
                self._reauth(conn, user, frame)
            case _ if is_planned(frame.type):
                user.error(Reason.NOT_IMPLEMENTED, frame.clientMsgId)
            case _:
                self._count_violation(conn, Reason.NOT_IMPLEMENTED)

    def _reauth(self, conn: Connection, user: ChatUser, frame: Frame) -> None:
        reason = self._admission.reauth(user, frame.token)
        if reason is Reason.REAUTH_UID_MISMATCH:
            self._close_with_error(conn, reason, Close.UNAUTHORIZED)
        elif reason is not None:
            conn.send(wire.auth_fail(reason, now_ms()))
            self._close(conn, Close.UNAUTHORIZED, reason)
        else:
            self._close_when_revoked(conn, user)
            self._admission.welcome(user, frame.translate)

    # -- errors ----------------------------------------------------------------------------------

    def _count_violation(self, conn: Connection, reason: Reason) -> None:
        conn.send(wire.error(reason, now_ms()))
        if self._frame_limit.violate(monotonic()):
            self._close(conn, Close.BAD_MESSAGE, reason)

    def _close_with_error(self, conn: Connection, reason: Reason, code: Close) -> None:
        conn.send(wire.error(reason, now_ms()))
        self._close(conn, code, reason)

    def _close(self, conn: Connection, code: Close, reason: Reason) -> None:
        self._state = State.CLOSED
        conn.close(code, reason)
