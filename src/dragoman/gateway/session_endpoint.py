"""/ws/session: clients. Decodes once, hands to the session, answers what is wrong; no policy."""

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from dragoman.gateway.connection import Connection
from dragoman.gateway.principal import Doorkeeper, Principal, Unauthorized, token_of
from dragoman.protocol import session as wire
from dragoman.protocol.audio import decode_base64, parse_frame
from dragoman.protocol.codec import decode_client, encode
from dragoman.protocol.codes import BackpressureAction, Close, ErrorCode
from dragoman.protocol.errors import ProtocolError
from dragoman.services.speech.session import BACKPRESSURE_PAUSE_S, Session
from dragoman.services.speech.sessions import Sessions

log = structlog.get_logger(__name__)

RESUME_AFTER_MS = 2000
NOT_YET = "Rooms are not served yet."


class SessionEndpoint:
    def __init__(
        self,
        sessions: Sessions,
        doorkeeper: Doorkeeper,
        guard: Callable[..., bool],
        draining: Callable[[], bool],
        *,
        pre_session_s: float,
    ) -> None:
        self._sessions, self._doorkeeper, self._guard, self._draining = sessions, doorkeeper, guard, draining
        self._pre_session_s = pre_session_s
        self._session: Session | None = None
        self._principal: Principal | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._paused_at = float("-inf")

    # -- what the socket does --------------------------------------------------------------------

    def opened(self, conn: Connection) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._pre_session_s, conn.close, Close.IDLE, "no session was opened")

    def text(self, conn: Connection, data: bytes) -> None:
        if not self._guard(self._text, conn, data):
            self._pause(conn)

    def binary(self, conn: Connection, data: bytes) -> None:
        if not self._guard(self._binary, conn, data):
            self._pause(conn)

    def closed(self, conn: Connection) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._guard(self._sessions.socket_closed, conn)

    def _pause(self, conn: Connection) -> None:
        """What was said waits for our lease: ask the client to wait as well."""
        now = monotonic()
        if now - self._paused_at >= BACKPRESSURE_PAUSE_S:
            self._paused_at = now
            message = wire.Backpressure(action=BackpressureAction.PAUSE, resume_after_ms=RESUME_AFTER_MS)
            conn.send(encode(message))

    def _text(self, conn: Connection, data: bytes) -> None:
        try:
            self._handle(conn, decode_client(data))
        except ProtocolError as error:
            self._refuse(conn, error)

    def _binary(self, conn: Connection, data: bytes) -> None:
        try:
            frame = parse_frame(data)
            self._sessions.get(frame.session_id).chunk(frame.audio, frame.is_final, frame.seq)
        except ProtocolError as error:
            self._refuse(conn, error)

    def _refuse(self, conn: Connection, error: ProtocolError) -> None:
        trace_id = self._session.trace_id if self._session is not None else None
        conn.send(encode(wire.Error(code=error.code, message=error.message, trace_id=trace_id)))

    # -- what the client says --------------------------------------------------------------------

    def _handle(self, conn: Connection, message: wire.ClientMessage) -> None:
        match message:
            case wire.AudioChunk():
                audio = decode_base64(message.payload) if message.payload else b""
                self._sessions.get(message.session_id).chunk(audio, message.is_final, message.seq)
            case wire.Utterance():
                self._sessions.get(message.session_id).utterance(message, conn)
            case wire.ClientHeartbeat():
                self._sessions.get(message.session_id)
                conn.send(encode(wire.ServerHeartbeat(session_id=message.session_id, timestamp=message.timestamp)))
            case wire.TtsStarted():
                self._sessions.get(message.session_id).tts_started()
            case wire.TtsPlayEnded():
                self._sessions.get(message.session_id).tts_ended()
            case wire.SessionInit():
                self._init(conn, message)
            case wire.SessionClose():
                self._sessions.get(message.session_id).close()
            case wire.SessionResume():
                raise ProtocolError(ErrorCode.INVALID_SESSION, "The session cannot be resumed; open a new one.")
            case wire.RoomCreate() | wire.RoomJoin() | wire.RoomLeave() | wire.RoomRawVoicePreference():
                conn.send(encode(wire.RoomError(code=ErrorCode.UNSUPPORTED_FEATURE, message=NOT_YET)))
            case wire.WebrtcOffer() | wire.WebrtcAnswer() | wire.WebrtcIce():
                raise ProtocolError(ErrorCode.UNSUPPORTED_FEATURE, NOT_YET)

    def _init(self, conn: Connection, message: wire.SessionInit) -> None:
        if self._draining():
            conn.close(Close.SHUTDOWN, "this instance is shutting down; connect again")
            return
        if self._principal is None:
            try:
                token = message.token or token_of(conn.headers, conn.query)
                self._principal = self._doorkeeper.identify("client", token)
            except Unauthorized as error:
                conn.close(Close.UNAUTHORIZED, str(error))
                return
        if message.audio_format not in (None, "opus", "pcm16"):
            raise ProtocolError(ErrorCode.INVALID_MESSAGE, "Field `audio_format`: use opus or pcm16.")
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._session = self._sessions.open(conn, message)
