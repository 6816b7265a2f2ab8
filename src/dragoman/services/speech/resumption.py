"""A client comes back, here or on another instance than before, and goes on in mid-turn and in mid-word.

    session_resume ─▶ one script: token, epoch + 1, owner ─▶ ack {resumed, next_index, audio_seq}
                   ─▶ the outbox after last_seq ─▶ parked results through the window

Every index that was open is sent once or told failed: its job's state is read once; what its driver still has
to say comes by inbox, or was parked. A session nobody resumed within its grace is ended, its turn keys with it.
"""

from time import monotonic

import msgspec
import structlog

from dragoman.domain.job import State
from dragoman.domain.release import ReleaseWindow, Settled
from dragoman.domain.reorder import Reorder
from dragoman.domain.turn import Turn
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import Close, ErrorCode
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.peer import SessionMoved
from dragoman.protocol.session import SessionInit, SessionResume
from dragoman.services.loops import Tasks
from dragoman.services.sockets import Socket
from dragoman.services.speech.expatriate import parked_message
from dragoman.services.speech.order import TurnLine
from dragoman.services.speech.router import Router
from dragoman.services.speech.session import Session
from dragoman.services.speech.sessions import Sessions
from dragoman.store.instances import Instances
from dragoman.store.jobs import Jobs
from dragoman.store.sessions import ResumableSessions, Resumed

log = structlog.get_logger(__name__)

WHY_NOT = {
    "NONE": "The session is over; open a new one.",
    "DENIED": "The session cannot be resumed with this token.",
    "TOO_OLD": "Too much was missed; open a new session.",
}


class Resumption:
    def __init__(
        self,
        sessions: Sessions,
        store: ResumableSessions,
        jobs: Jobs,
        instances: Instances,
        router: Router,
        tasks: Tasks,
        *,
        job_timeout_ms: int,
    ) -> None:
        self._sessions, self._store, self._jobs, self._instances = sessions, store, jobs, instances
        self._router, self._tasks, self._job_timeout_s = router, tasks, job_timeout_ms / 1000

    async def resume(self, socket: Socket, message: SessionResume, subject: str) -> Session:
        """Raises ProtocolError INVALID_SESSION with the reason."""
        here = self._sessions.instance
        session_id, token = message.session_id, message.resume_token
        here_already = self._sessions.find(session_id)
        held = here_already.outbox if here_already is not None else None
        if held is not None:
            held.hold()
        taken: Resumed | str = "NONE"
        try:
            taken = await self._store.resume(session_id, token, subject, message.last_seq, here)
        finally:
            if held is not None and isinstance(taken, str):
                held.let_go(held.epoch, 0)
        if isinstance(taken, str):
            raise ProtocolError(ErrorCode.INVALID_SESSION, WHY_NOT[taken])
        session = self._sessions.find(message.session_id)
        if session is not None and session.outbox is not None and taken.epoch == session.outbox.epoch + 1:
            self._take_back(session, socket)
        else:
            if session is not None:  # it has been elsewhere meanwhile: what we know of it is old
                self._sessions.moved_away(session)
            session = await self._restore(socket, message.session_id, taken)
        self._welcome(session, socket, taken)
        if held is not None and session.outbox is held:
            held.let_go(taken.epoch, int(taken.state.get("seq", 0)))
        await self._after(session, taken)
        return session

    def _take_back(self, session: Session, socket: Socket) -> None:
        """It never left this instance: what was buffered is still here."""
        old = session.socket
        self._sessions.attach(session, socket)
        if old is not None and old is not socket:
            old.close(Close.REPLACED, "the session was resumed by another connection")

    async def _restore(self, socket: Socket, session_id: str, taken: Resumed) -> Session:
        """Build the session anew from what its last owner left."""
        state = taken.state
        init = msgspec.json.decode(state["init"], type=SessionInit)
        session = self._sessions.build(session_id, init, state.get("subject", ""))
        session.trace_id = state["trace_id"]
        session.numbered = {"1": True, "0": False}.get(state.get("numbered", ""))
        session.audio_seq = int(state["audio_seq"]) if "audio_seq" in state else None
        self._sessions.equip(session, epoch=taken.epoch, seq=int(state.get("seq", 0)))
        now = monotonic()
        next_index = int(state.get("next_index", 0))
        session.segmenter.next_index = next_index
        session.reorder = Reorder(self._sessions.settings.session.reorder_ms, session.window.span, next_index)
        expected, settled = msgspec.json.decode(state["window"]) if "window" in state else (0, {})
        # An index is settled a moment before it is no longer open.
        left: dict[str, list[str]] = msgspec.json.decode(state.get("open", "{}"))
        opened = {index: job for index, job in left.items() if index not in settled and int(index) >= expected}
        session.window = ReleaseWindow.restore(
            expected,
            {int(index): Settled(how) for index, how in settled.items()},
            now,
            {int(index) for index in opened},
            self._sessions.settings.session.ack_timeout_ms,
            self._sessions.settings.session.span,
        )
        # All of them before anything is awaited: their ends may come by inbox at any moment from now on.
        for index, (job_id, trace_id) in opened.items():
            self._sessions.expect(session, int(index), job_id, trace_id, now + self._job_timeout_s, now)
        former_lives = taken.former_owner != "" and await self._instances.presence(taken.former_owner) is not None
        for index, (job_id, trace_id) in opened.items():
            give_up_at = now + await self._patience_s(job_id, former_lives)
            if int(index) in session.abroad:
                self._sessions.expect(session, int(index), job_id, trace_id, give_up_at, now)
        await self._resume_turn(session, now)
        self._sessions.attach(session, socket)
        return session

    async def _patience_s(self, job_id: str, former_lives: bool) -> float:
        """How long an open index may still be answered by whoever drives its job."""
        record = await self._jobs.get(job_id)
        if record is None:
            # Cut, but not yet at a node: if its driver died, nobody has the audio.
            return self._job_timeout_s if former_lives else 0.0
        if record["state"] in (State.FINISHED, State.RELEASED):
            # Its end is parked, on its way to us, or died with the one who had it.
            return self._sessions.settings.session.ack_timeout_ms / 1000
        return self._job_timeout_s

    async def _resume_turn(self, session: Session, now: float) -> None:
        """The one read of a turn's node: every other job knows it from the one before."""
        turn_id = await self._sessions.turns.current(session.id)
        if turn_id is None:
            return
        node_id = await self._sessions.turns.node_of(turn_id)
        session.lines[turn_id] = TurnLine(Turn(turn_id, node_id))
        session.segmenter.resume_turn(turn_id, now)

    def _welcome(self, session: Session, socket: Socket, taken: Resumed) -> None:
        """The ack has no number of its own: it stands before what the client has missed."""
        audio_seq = session.heard_seq if session.heard_seq is not None else session.audio_seq
        next_index = session.reorder.next_index if session.numbered else session.segmenter.next_index
        ack = msgspec.structs.replace(
            self._sessions.ack(session),
            message="session resumed",
            resumed=True,
            next_index=next_index,
            audio_seq=audio_seq,
        )
        socket.send(encode(ack))
        for frame in taken.outbox:
            socket.send(frame)

    async def _after(self, session: Session, taken: Resumed) -> None:
        await self._sessions.index(session)
        # Only now that the session can be found here: whatever is not parked by now comes to us directly.
        for data in await self._store.take_parked(session.id, taken.epoch):
            message = parked_message(data)
            if message is not None:
                self._sessions.deliver(session, message)
        session.set_timer()
        if taken.former_owner not in ("", self._sessions.instance):
            await self._router.push(taken.former_owner, SessionMoved(session.id, taken.epoch))
        log.info("session resumed", session=session.id, epoch=taken.epoch, came_from=taken.former_owner)

    # -- the grace of those who do not come back -------------------------------------------------

    async def end_overdue(self) -> None:
        """Sessions nobody resumed: their turn keys, state and outbox go."""
        for session_id, epoch in await self._store.overdue():
            if await self._store.epoch(session_id) in (None, epoch):
                await self._sessions.turns.end_current(session_id)
                await self._store.end(session_id, epoch)
            await self._store.settled(session_id, epoch)
