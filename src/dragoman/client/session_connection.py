"""Keeps a session connected: opens it, resumes it after a lost connection, resends what the server did not get.

    connect → session_init → ack → ready … → lost → connect → session_resume → ack → resend → ready …

One task runs `run`; messages of the server are handled in the callback of the socket. `ready` is set while audio can be
sent, and when the session is over, so that no sender waits for ever.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.client.events import (
    EventQueue,
    Rejected,
    Renewed,
    SessionClosed,
    SessionError,
    SessionLost,
    Throttled,
    Unreachable,
)
from dragoman.client.pacing import Throttle
from dragoman.client.session_state import Chunk, SessionState
from dragoman.connection import Backoff, ClientWebSocket, ConnectionRefused, Connector, Frame, ServerUnreachable
from dragoman.protocol import codec
from dragoman.protocol.codes import ErrorCode, ProtocolError
from dragoman.protocol.fields import Message
from dragoman.protocol.session import (
    Error,
    ServerMessage,
    SessionCloseAck,
    SessionInit,
    SessionInitAck,
    SessionResume,
    TtsPlayEnded,
    TtsStarted,
    Utterance,
)

log = logging.getLogger("dragoman.client")

OnLost = Literal["raise", "new"]


@dataclass(frozen=True, slots=True)
class Timing:
    """The timeouts and intervals of a session, in seconds."""

    connect_s: float = 10.0  # to connect, and to complete the handshake
    answer_s: float = 10.0  # for the answer to session_init and session_resume
    heartbeat_s: float = 5.0
    reconnect_s: float = 60.0  # how long to try to reconnect after a lost connection
    cut_s: float = 2.5  # how long the server may take to mention the utterance after a cut
    settle_s: float = 8.0  # `wait_answered` gives up if nothing is received for so long
    close_s: float = 10.0  # for the last results and session_close_ack; the server grants results 5 s
    backoff_first_s: float = 0.25  # upper bound of the first delay before a reconnect; doubles each time
    backoff_longest_s: float = 5.0
    backoff_steady_s: float = 5.0  # a connection that lasts so long resets the delay

    def backoff(self) -> Backoff:
        return Backoff(self.backoff_first_s, self.backoff_longest_s, self.backoff_steady_s)


class SessionConnection:
    def __init__(
        self,
        opening: SessionInit,
        connector: Connector,
        events: EventQueue,
        throttle: Throttle,
        timing: Timing,
        on_lost: OnLost,
    ) -> None:
        self.state = SessionState(opening)
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()  # an event was received, or the session is over
        self.over = False
        self.error: Exception | None = None
        self.closing: str | None = None
        self._connector = connector
        self._playing: TtsStarted | None = None
        self._events = events
        self._throttle = throttle
        self._timing = timing
        self._on_lost = on_lost
        self._socket: ClientWebSocket | None = None
        self._answer: asyncio.Future[SessionInitAck | Error] | None = None
        self._old_id = ""  # of a lost session, until a new one replaces it

    # ------------------------------------------------------------ life

    @property
    def socket(self) -> ClientWebSocket | None:
        """The connection that the session is open on; None while it reconnects, and when it is over."""
        return self._socket if self.ready.is_set() and not self.over else None

    async def run(self) -> None:
        """Stay connected until the session is over; `error` is then what ended it."""
        try:
            while not self.over:
                socket = await self._connector.connect(self._on_message)
                await self._use(socket)
                if not self.over:
                    self._connector.lost(socket.closed.result())
        except ServerUnreachable as error:
            self.end(Unreachable(str(error)))
        except ConnectionRefused as error:
            self.end(SessionError(error.name, str(error)))
        except Exception as error:
            self.end(error)

    def close(self, reason: str) -> None:
        """Ask the server to end the session; its ack ends it here."""
        if self.closing is None:
            self.closing = reason
            self.send(self.state.close(reason))

    def end(self, error: Exception | None = None) -> None:
        if not self.over:
            self.over, self.error = True, error
            self._events.end(error)
        self.ready.set()
        self.changed.set()
        if self._socket is not None:
            self._socket.start_closing()

    def abandon(self, why: str) -> None:
        """End the session although utterances are unanswered: they fail."""
        if not self.over:
            for failed in self.state.fail_unanswered(why):
                self._events.put(failed)
        self.end()

    async def reopen(self, opening: SessionInit) -> None:
        """Replace a session to which nothing was sent by one with other parameters."""
        self.send(self.state.close("reopened"))
        self.ready.clear()
        self.state = SessionState(opening)
        socket = self._socket
        if socket is None:
            return  # the next connection opens it
        try:
            if await self._open_session(socket):
                self.ready.set()
            else:
                socket.abort()  # the next connection tries again
        except SessionError as error:
            self.end(error)
            raise

    # ------------------------------------------------------------ sending

    async def wait_until_sendable(self) -> None:
        """Wait until audio may be sent: the session is open, the throttle allows it, the socket accepts it."""
        while True:
            await self.ready.wait()
            if self.over or self.closing is not None:
                raise self.error or SessionClosed()
            if self._socket is not None and await self._has_room(self._socket):
                return

    def send_audio(self, what: Chunk | Utterance) -> None:
        """If the connection was just lost, it is resent after the resume."""
        self._throttle.sent(time.monotonic(), empty_final=isinstance(what, Chunk) and not what.audio)
        if self._socket is not None:
            self._socket.send(self.state.frame(what))

    def send(self, message: Message) -> None:
        """Dropped if the session is not connected."""
        if self._socket is not None and self.ready.is_set():
            self._socket.send(Frame(codec.encode(message)))

    def tts_started(self, message: TtsStarted) -> None:
        """Sent now, and after every resume until `tts_play_ended`."""
        self._playing = message
        self.send(message)

    def tts_play_ended(self, message: TtsPlayEnded) -> None:
        self._playing = None
        self.send(message)

    async def _has_room(self, socket: ClientWebSocket) -> bool:
        """True at once; or False after a wait, and then the caller checks everything again."""
        wait_s = self._throttle.wait_s(time.monotonic())
        if socket.closed.done():
            # Until `ready` is cleared: audio sent to a dead connection is kept, and could exceed what we can keep.
            await asyncio.sleep(0)
        elif wait_s > 0:
            await asyncio.wait({socket.closed}, timeout=wait_s)
        elif not socket.writable.is_set():
            await socket.writable.wait()
        else:
            return True
        return False

    # ------------------------------------------------------------ a connection

    async def _use(self, socket: ClientWebSocket) -> None:
        """From session_init or session_resume to the end of the connection. Closes the connection if cancelled."""
        self._socket = socket
        try:
            if await self._open_session(socket):
                self._connector.opened()
                await self._resend(socket)
                await self._send_heartbeats(socket)
        finally:
            if not self.over:
                self.ready.clear()
            self._socket = None
            await socket.close()

    async def _open_session(self, socket: ClientWebSocket) -> bool:
        """Open or resume the session. False: not on this connection. Raises SessionError."""
        while not self.over:
            hello = self.state.hello()
            resuming = isinstance(hello, SessionResume)
            if self.state.session_id and not resuming:
                self._lost("the connection was lost, and the server does not resume sessions")
                continue
            answer = await self._ask(socket, hello)
            if not isinstance(answer, Error):
                return answer is not None
            if not resuming:
                raise SessionError(answer.code, answer.message)
            if answer.code != ErrorCode.INVALID_SESSION:
                log.info("not resumed yet: %s %s", answer.code, answer.message)
                return False
            self._lost(answer.message)
        return False

    async def _ask(self, socket: ClientWebSocket, hello: Message) -> SessionInitAck | Error | None:
        answer = self._answer = asyncio.get_running_loop().create_future()
        socket.send(Frame(codec.encode(hello)))
        waits: set[asyncio.Future[Any]] = {answer, socket.closed}
        await asyncio.wait(waits, timeout=self._timing.answer_s, return_when=asyncio.FIRST_COMPLETED)
        if self._answer is answer:
            self._answer = None
        return answer.result() if answer.done() else None

    def _lost(self, why: str) -> None:
        """The session cannot be resumed: raise, or go on with a new one, as `on_lost` says."""
        if self.closing is not None:
            self.abandon(why)  # it was to be closed anyway
        elif self._on_lost == "raise":
            raise SessionLost(why)
        else:
            log.warning("session %s is lost: %s", self.state.session_id, why)
            self._old_id, self._playing = self.state.session_id, None
            self.state = SessionState(self.state.opening)

    async def _resend(self, socket: ClientWebSocket) -> None:
        for what in self.state.to_resend():
            while not await self._has_room(socket):
                if socket.closed.done():
                    return
            self.send_audio(what)
        self.ready.set()
        if self._playing is not None:
            self.send(self._playing)
        if self.closing is not None:
            self.send(self.state.close(self.closing))

    async def _send_heartbeats(self, socket: ClientWebSocket) -> None:
        """For as long as the connection lasts. They acknowledge messages, which the server then no longer keeps."""
        while not (await asyncio.wait({socket.closed}, timeout=self._timing.heartbeat_s))[0]:
            self.send(self.state.heartbeat(unix_ms()))

    # ------------------------------------------------------------ receiving

    def _on_message(self, data: bytes) -> None:
        try:
            message = codec.decode_server(data)
        except ProtocolError as error:
            log.warning("ignored an invalid message of the server: %s", error.message)
            return
        if self._answer is not None and not self._answer.done() and isinstance(message, SessionInitAck | Error):
            # Applied here and not in the waiting task: the messages after the ack may come in the same read.
            self._answer.set_result(self._opened(message) if isinstance(message, SessionInitAck) else message)
        else:
            self._handle(message)

    def _opened(self, ack: SessionInitAck) -> SessionInitAck | Error:
        if self.state.can_resume and ack.session_id != self.state.session_id:
            return Error(code=ErrorCode.INVALID_SESSION, message="the server opened another session")
        resumed = self.state.opened(ack)
        if resumed is not None:
            self._events.put(resumed)
        elif self._old_id:
            self._events.put(Renewed(self.state.session_id, self._old_id))
            self._old_id = ""
        return ack

    def _handle(self, message: ServerMessage) -> None:
        if isinstance(message, SessionCloseAck) and message.session_id != self.state.session_id:
            return  # of the session that `reopen` replaced
        event = self.state.receive(message)
        match event:
            case Rejected(code=ErrorCode.INVALID_SESSION) if self._socket is not None:
                # The next connection finds out whether the session can be resumed.
                self._socket.abort()
                return
            case Throttled():
                self._throttle.press(event.action, event.resume_after_ms, time.monotonic())
        if event is not None:
            self._events.put(event)
            self.changed.set()
        if isinstance(message, SessionCloseAck):
            self.end()


def unix_ms() -> int:
    return time.time_ns() // 1_000_000
