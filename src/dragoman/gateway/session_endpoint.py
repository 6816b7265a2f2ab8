"""/ws/session, the endpoint of speech clients: decodes messages and passes them to their session; no policy."""

from collections.abc import Callable
from time import monotonic, time

import structlog
from msgspec import structs

from dragoman.domain.limits.connections import is_loopback
from dragoman.domain.limits.sessions import MAX_WAIT_S, UTTERANCE, Holder
from dragoman.gateway.authentication import Authenticator, Principal, Unauthorized, token_of
from dragoman.gateway.connection import Connection
from dragoman.gateway.open_connections import AuthenticatedConnections, PreSession
from dragoman.protocol import session as wire
from dragoman.protocol.audio import decode_base64, full_timestamp, parse_frame
from dragoman.protocol.codec import decode_client, encode
from dragoman.protocol.codes import BackpressureAction, Close, ErrorCode, ProtocolError
from dragoman.protocol.fields import keep
from dragoman.protocol.rooms import RoomCommand
from dragoman.services.loops import Tasks
from dragoman.services.rooms.commands import RoomCommands
from dragoman.services.speech.resumption import Resumption
from dragoman.services.speech.session import PAUSE_INTERVAL_S, Session
from dragoman.services.speech.sessions import InstanceFull, Sessions
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

RESUME_AFTER_MS = 2000
INSTANCE_FULL = "too many sessions; connect again later"
NOBODY = Holder("", anonymous=True)
TOO_MUCH_WORK = "the connections of this client send too much; connect again later"


class SessionEndpoint:
    def __init__(
        self,
        sessions: Sessions,
        resumption: Resumption,
        rooms: RoomCommands,
        tasks: Tasks,
        authenticator: Authenticator,
        guard: Callable[..., bool],
        draining: Callable[[], bool],
        pre_session: PreSession,
        authenticated: AuthenticatedConnections,
    ) -> None:
        self._opened: list[Session] = []  # by this connection
        self._sessions, self._authenticator, self._guard, self._draining = sessions, authenticator, guard, draining
        self._resumption, self._rooms, self._tasks = resumption, rooms, tasks
        self._pre_session, self._authenticated = pre_session, authenticated
        self._session: Session | None = None
        self._principal: Principal | None = None
        self._holder = NOBODY
        self._paused_at = float("-inf")

    # -- callbacks of the connection --------------------------------------------------------------

    def opened(self, conn: Connection) -> None:
        self._pre_session.add(conn, Close.IDLE, "no session was opened in time")

    def text(self, conn: Connection, data: bytes) -> None:
        if not self._guard(self._text, conn, data):
            self._pause(conn)
        self._slow_down(conn)

    def binary(self, conn: Connection, data: bytes) -> None:
        if not self._guard(self._binary, conn, data):
            self._pause(conn)
        self._slow_down(conn)

    def _slow_down(self, conn: Connection) -> None:
        """Handle the next message later if the connections of this client, all together, have made too much work."""
        if self._holder is NOBODY:
            self._holder = _holder(conn, Principal("client", "", anonymous=True))  # until its token is known
        wait_s = self._sessions.count_message(self._holder)
        if wait_s > MAX_WAIT_S:
            conn.close(Close.RATE, TOO_MUCH_WORK)
        elif wait_s:
            conn.hold(wait_s)

    def closed(self, conn: Connection) -> None:
        self._pre_session.remove(conn)
        self._authenticated.discard(conn)
        self._guard(self._sessions.socket_closed, conn)

    def _pause(self, conn: Connection) -> None:
        """Ask the client to pause: its messages wait until the instance has its lease again."""
        now = monotonic()
        if now - self._paused_at >= PAUSE_INTERVAL_S:
            self._paused_at = now
            message = wire.Backpressure(action=BackpressureAction.PAUSE, resume_after_ms=RESUME_AFTER_MS)
            conn.send(encode(message))
            for session in self._sessions.of_socket(conn):
                session.client_paused(RESUME_AFTER_MS)

    def _text(self, conn: Connection, data: bytes) -> None:
        try:
            self._handle(conn, decode_client(data), data)
        except ProtocolError as error:
            self._refuse(conn, error)

    def _binary(self, conn: Connection, data: bytes) -> None:
        try:
            frame = parse_frame(data)
            sent_at_ms = full_timestamp(frame.ts_low32, int(time() * 1000))
            self._get(conn, frame.session_id).chunk(frame.audio, frame.is_final, frame.seq, sent_at_ms)
        except ProtocolError as error:
            self._refuse(conn, error)

    def _refuse(self, conn: Connection, error: ProtocolError) -> None:
        trace_id = self._session.trace_id if self._session is not None else None
        conn.send(encode(wire.Error(code=error.code, message=error.message, trace_id=trace_id)))

    # -- messages --------------------------------------------------------------------------------

    def _handle(self, conn: Connection, message: wire.ClientMessage, data: bytes) -> None:
        match message:
            case wire.AudioChunk():
                audio = decode_base64(message.payload) if message.payload else b""
                session = self._get(conn, message.session_id)
                session.chunk(audio, message.is_final, message.seq, message.client_timestamp_ms)
            case wire.Utterance():
                self._utterance(conn, message, data)
            case wire.ClientHeartbeat():
                self._heartbeat(conn, message)
            case wire.TtsStarted():
                self._get(conn, message.session_id).tts_started()
            case wire.TtsPlayEnded():
                self._get(conn, message.session_id).tts_ended()
            case wire.SessionInit():
                self._init(conn, message)
            case wire.SessionClose():
                self._get(conn, message.session_id).close()
            case wire.SessionResume():
                self._resume(conn, message)
            case _:
                self._room(conn, message)

    def _room(self, conn: Connection, message: RoomCommand) -> None:
        """For the session that it names, or the one that this connection opened or resumed last."""
        named = getattr(message, "session_id", None)
        session = self._get(conn, named) if named is not None else self._session
        if session is None or session.socket is not conn:
            # A session that is being resumed has its socket before it is ours.
            session = next(iter(self._sessions.of_socket(conn)), None) if named is None else None
        if session is None or session.over:
            raise ProtocolError(ErrorCode.INVALID_SESSION, "Open a session first: rooms consist of sessions.")
        self._sessions.count_work(self._holder, self._rooms.work_of(session, message))
        self._rooms.take(session, conn, message)

    def _identify(self, conn: Connection, token: str | None = None) -> Principal | None:
        """The principal of the connection; None: it was closed, because a token is bad or names another principal."""
        if self._principal is not None and token is None:
            return self._principal
        try:
            found = self._authenticator.identify("client", token or token_of(conn.headers, conn.query))
            if self._principal is not None and found.owner != self._principal.owner:
                raise Unauthorized("the token belongs to another principal than the first one of this connection")
        except Unauthorized as error:
            conn.close(Close.UNAUTHORIZED, str(error))
            return None
        self._principal, self._holder = found, _holder(conn, found)
        self._authenticated.add(conn, found)
        return found

    def _get(self, conn: Connection, session_id: str) -> Session:
        session = self._session
        if session is not None and session.id == session_id and session.socket is conn and not session.over:
            return session
        principal = self._identify(conn)
        return self._sessions.get(session_id, principal.owner if principal is not None else "")

    def _utterance(self, conn: Connection, message: wire.Utterance, data: bytes) -> None:
        """A gateway may open a connection for each utterance of a session that another connection opened."""
        principal = self._identify(conn)
        if principal is None:
            return
        if self._sessions.find(message.session_id) is None:
            self._sessions.forwarder.forward(conn, message, principal.owner, principal.tenant, data)
            self._sessions.count_work(self._holder, UTTERANCE)
        else:
            self._sessions.get(message.session_id, principal.owner).utterance(message, conn)
        self._pre_session.remove(conn)

    def _heartbeat(self, conn: Connection, message: wire.ClientHeartbeat) -> None:
        session = self._get(conn, message.session_id)
        if message.last_seq is not None and session.outbox is not None:
            session.outbox.free(message.last_seq)
        now_ms = int(time() * 1000)
        session.send(wire.ServerHeartbeat(session_id=message.session_id, timestamp=now_ms))

    def _init(self, conn: Connection, message: wire.SessionInit) -> None:
        if self._draining():
            conn.close(Close.SHUTDOWN, "this instance is shutting down; connect again")
            return
        principal = self._identify(conn, message.token)
        if principal is None:
            return
        self._sessions.count_work(self._holder, UTTERANCE)
        if message.audio_format not in (None, "opus", "pcm16"):
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, "Field `audio_format`: use opus or pcm16.")
        if message.vad not in (None, wire.VAD_SERVER):
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, "Field `vad`: use server, or leave it out.")
        self._pre_session.remove(conn)
        self._opened = [session for session in self._opened if not session.over]
        self._sessions.admit_on_connection(len(self._opened))
        # The session keeps the message: without the token, and without the buffer that `features` points into.
        kept = structs.replace(message, token=None, features=keep(message.features))
        try:
            self._session = self._sessions.open(conn, kept, self._holder)
        except InstanceFull:
            conn.close(Close.OVERLOADED, INSTANCE_FULL)
            return
        self._opened.append(self._session)

    def _resume(self, conn: Connection, message: wire.SessionResume) -> None:
        if self._draining():
            conn.close(Close.SHUTDOWN, "this instance is shutting down; connect again")
            return
        principal = self._identify(conn, message.token)
        if principal is not None:
            self._pre_session.remove(conn)
            self._sessions.count_work(self._holder, UTTERANCE)
            self._tasks.spawn(self._resumed(conn, message, self._holder), "resume")

    async def _resumed(self, conn: Connection, message: wire.SessionResume, holder: Holder) -> None:
        try:
            self._session = await self._resumption.resume(conn, message, holder)
        except ProtocolError as error:
            self._refuse(conn, error)
        except InstanceFull:
            conn.close(Close.OVERLOADED, INSTANCE_FULL)
        except StoreError:
            conn.close(Close.OVERLOADED, "Redis is away; connect again")
        # It may have closed before the session had it; then nothing else notifies the session.
        if conn.closed:
            self._sessions.socket_closed(conn)


def _holder(conn: Connection, principal: Principal) -> Holder:
    """Loopback addresses do not count: a proxy there connects for everybody."""
    address = conn.peer[0]
    counted = "" if is_loopback(address) else address
    return Holder(principal.owner, counted, principal.anonymous, principal.gateway, principal.room_claim)
