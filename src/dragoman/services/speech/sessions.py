"""The sessions of this instance: opened, found by id, closed with everything that belongs to them."""

from collections.abc import Callable, Collection

import structlog

from dragoman.protocol import ids
from dragoman.protocol.codes import Close, ErrorCode
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.session import SessionInit, SessionInitAck
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.sockets import Socket
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.order import Place, TurnLine
from dragoman.services.speech.session import Session, SessionSettings
from dragoman.store.owners import Owners
from dragoman.store.turns import Turns

log = structlog.get_logger(__name__)


class Sessions:
    def __init__(
        self,
        instance: str,
        owners: Owners,
        turns: Turns,
        dispatcher: Dispatcher,
        metrics: Metrics,
        tasks: Tasks,
        settings: SessionSettings,
        *,
        binary_frames: bool,
        guard: Callable[..., bool],
    ) -> None:
        self._instance, self._owners, self._turns, self._dispatcher = instance, owners, turns, dispatcher
        self._metrics, self._tasks, self._settings = metrics, tasks, settings
        self._binary_frames, self._guard = binary_frames, guard
        self._sessions: dict[str, Session] = {}
        self._of_socket: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def ids(self) -> Collection[str]:
        return self._sessions.keys()

    def open(self, socket: Socket, init: SessionInit) -> Session:
        session = Session(
            ids.session_id(),
            socket,
            init,
            self._dispatcher,
            self._metrics,
            self._settings,
            guard=self._guard,
            end_turn=self._end_turn,
            on_closed=lambda done: self._remove(done, "closed"),
        )
        self._sessions[session.id] = session
        self._of_socket.setdefault(socket.id, set()).add(session.id)
        self._metrics.sessions.set(len(self._sessions))
        session.send(
            SessionInitAck(
                session_id=session.id,
                message="session opened",
                trace_id=session.trace_id,
                protocol_version="1.0",
                use_binary_frame=self._binary_frames,
                negotiated_codec="opus",
                negotiated_audio_format=session.audio_format,
                negotiated_sample_rate=session.sample_rate,
                negotiated_channel_count=1,
            )
        )
        self._tasks.spawn(self._owners.claim_session(session.id, self._instance), "claim-session")
        return session

    def get(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise ProtocolError(ErrorCode.INVALID_SESSION, "There is no such session here.")
        return session

    def socket_closed(self, socket: Socket) -> None:
        """Sessions end with their socket."""
        for session_id in self._of_socket.pop(socket.id, set()):
            session = self._sessions.get(session_id)
            if session is not None:
                self._remove(session, "socket closed")

    def drop_all(self, code: Close) -> None:
        """We were buried: nothing here is ours any more."""
        sessions, self._sessions = self._sessions, {}
        self._of_socket.clear()
        for session in sessions.values():
            session.end("instance lost")
            session.socket.close(code)

    def all(self) -> Collection[Session]:
        return self._sessions.values()

    def _remove(self, session: Session, reason: str) -> None:
        self._sessions.pop(session.id, None)
        of_socket = self._of_socket.get(session.socket.id)
        if of_socket is not None:
            of_socket.discard(session.id)
        session.end(reason)
        self._metrics.sessions.set(len(self._sessions))
        self._tasks.spawn(self._owners.leave_session(session.id, self._instance), "leave-session")

    def _end_turn(self, session: Session, line: TurnLine) -> None:
        """When the turn's last job has its place, remove the affinity, if one was written."""
        self._tasks.spawn(self._end_turn_in_line(session.id, line, line.join()), "end-turn")

    async def _end_turn_in_line(self, session_id: str, line: TurnLine, place: Place) -> None:
        await place.my_turn()
        try:
            if line.turn.node_id is not None:
                await self._turns.end(session_id, line.turn.id)
        finally:
            line.turn.end()
            place.leave()
