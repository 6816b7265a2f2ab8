"""A client comes back, here or on another instance than before, and goes on in mid-turn and in mid-word.

    session_resume ─▶ one script: token, epoch + 1, owner ─▶ ack {resumed, next_index, audio_seq}
                   ─▶ the outbox after last_seq ─▶ parked results through the window

Every index that was open is sent once or told failed: its job's state is read once; what its driver still has
to say comes by inbox, or was parked. A session nobody resumed within its grace is ended, its turn keys with it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from weakref import WeakValueDictionary

import msgspec
import structlog

from dragoman.domain.job import State
from dragoman.domain.limits.sessions import Holder, SessionPlace
from dragoman.domain.release import Settled
from dragoman.domain.turn import Turn
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import Close, ErrorCode
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.peer import SessionMoved
from dragoman.protocol.session import SessionInit, SessionResume
from dragoman.services.loops import Tasks, retry
from dragoman.services.routing.router import Router
from dragoman.services.sockets import Socket
from dragoman.services.speech.remote_listener import RemoteJob
from dragoman.services.speech.session import Session, SessionState
from dragoman.services.speech.sessions import Sessions
from dragoman.store.errors import StoreError
from dragoman.store.instances import Instances
from dragoman.store.jobs import Jobs
from dragoman.store.sessions import ResumableSessions, Resumed

log = structlog.get_logger(__name__)

WHY_NOT = {
    "NONE": "The session is over; open a new one.",
    "DENIED": "The session cannot be resumed with this token.",
    "TOO_OLD": "Too much was missed; open a new session.",
}


@dataclass(frozen=True, slots=True)
class _Findings:
    """What a session's last owner did not write down with it."""

    turn: Turn | None
    patience_s: Mapping[int, float]  # of each open index


async def _nothing() -> None:
    return None


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
        self._resuming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def resume(self, socket: Socket, message: SessionResume, holder: Holder) -> Session:
        """Raises ProtocolError INVALID_SESSION with the reason, LIMIT_EXCEEDED, and InstanceFull."""
        # A client that comes back twice in a moment: the second must find what the first one made.
        async with self._resuming.setdefault(message.session_id, asyncio.Lock()):
            return await self._resume(socket, message, holder)

    async def _resume(self, socket: Socket, message: SessionResume, holder: Holder) -> Session:
        if socket.closed:  # it may have what it asked for elsewhere by now: it is not to be taken from there
            raise ProtocolError(ErrorCode.INVALID_SESSION, "The connection is gone.")
        here_already = self._sessions.find(message.session_id)
        # One that is here has its place.
        place = self._sessions.admit(message.session_id, holder) if here_already is None else None
        try:
            taken = await self._take(message, holder.owner, here_already)
            session = await self._found_or_restored(socket, message.session_id, taken, holder, place)
        finally:
            if place is not None:
                self._sessions.release_unused(place)
        await self._after(session, taken)
        return session

    async def _take(self, message: SessionResume, owner: str, here_already: Session | None) -> Resumed:
        """What Redis has of the session, under a new epoch of ours."""
        held = here_already.outbox if here_already is not None else None
        if held is not None:
            held.hold()
        taken: Resumed | str = "NONE"
        try:
            taken = await self._store.resume(
                message.session_id, message.resume_token, owner, message.last_seq, self._sessions.instance
            )
        finally:
            if held is not None and isinstance(taken, str):
                held.let_go(held.epoch, 0)
        if isinstance(taken, str):
            raise ProtocolError(ErrorCode.INVALID_SESSION, WHY_NOT[taken])
        return taken

    async def _found_or_restored(
        self, socket: Socket, session_id: str, taken: Resumed, holder: Holder, place: SessionPlace | None
    ) -> Session:
        session = self._sessions.find(session_id)
        if session is not None and session.outbox is not None and taken.epoch == session.outbox.epoch + 1:
            self._take_back(session, socket)
            self._welcome(session, socket, taken)
            session.outbox.let_go(taken.epoch, int(taken.state.get("seq", 0)))
            return session
        if session is not None:  # it has been elsewhere meanwhile: what we know of it is old
            self._sessions.moved_away(session)
        findings = await self._look_up(session_id, taken)
        session = self._restore(socket, taken, findings, place or self._sessions.places.take(session_id, holder))
        self._welcome(session, socket, taken)
        return session

    def _take_back(self, session: Session, socket: Socket) -> None:
        """It never left this instance: what was buffered is still here."""
        old = session.socket
        self._sessions.attach(session, socket)
        session.reopen()
        if old is not None and old is not socket:
            old.close(Close.REPLACED, "the session was resumed by another connection")

    # -- a session that was elsewhere ------------------------------------------------------------

    async def _look_up(self, session_id: str, taken: Resumed) -> "_Findings":
        """Everything that has to be asked for, before there is a session: what is said to half of one is lost. Ends of
        its jobs that come meanwhile find none here, and are parked."""
        try:
            former = self._instances.presence(taken.former_owner) if taken.former_owner else _nothing()
            jobs = asyncio.gather(*(self._jobs.get(job_id) for job_id, _ in taken.open.values()))
            turn, presence, records = await asyncio.gather(self._turn(session_id), former, jobs)
        except StoreError:
            # Ours, and nowhere: if its client does not come back, somebody has to end it.
            self._tasks.spawn(self._leave_behind(session_id, taken.epoch), "leave-session-behind")
            raise
        patience_s = [self._patience_s(record, presence is not None) for record in records]
        return _Findings(turn, dict(zip(taken.open, patience_s, strict=True)))

    async def _turn(self, session_id: str) -> Turn | None:
        """The one read of a turn's node: every other job knows it from the one before."""
        turn_id = await self._sessions.turns.current(session_id)
        return Turn(turn_id, await self._sessions.turns.node_of(turn_id)) if turn_id is not None else None

    def _patience_s(self, record: Mapping[str, str] | None, former_lives: bool) -> float:
        """How long an open index may still be answered by whoever drives its job."""
        if record is None:
            # Cut, but not yet at a node: if its driver died, nobody has the audio.
            return self._job_timeout_s if former_lives else 0.0
        if record["state"] in (State.FINISHED, State.RELEASED):
            # Its end is parked, on its way to us, or died with the one who had it.
            return self._sessions.settings.session.ack_timeout_ms / 1000
        return self._job_timeout_s

    async def _leave_behind(self, session_id: str, epoch: int) -> None:
        await retry(lambda: self._store.leave_behind(session_id, epoch))

    def _restore(self, socket: Socket, taken: Resumed, findings: "_Findings", place: SessionPlace) -> Session:
        """Build the session anew from what its last owner left. Nothing is awaited: it is whole when it is found."""
        fields, now = taken.state, monotonic()
        session = self._sessions.build(msgspec.json.decode(fields["init"], type=SessionInit), place)
        expected, settled = taken.window
        state = SessionState(
            trace_id=fields["trace_id"],
            numbered={"1": True, "0": False}.get(fields.get("numbered", "")),
            audio_seq=int(fields["audio_seq"]) if "audio_seq" in fields else None,
            next_index=int(fields.get("next_index", 0)),
            expected=expected,
            settled={index: Settled(word) for index, word in settled.items()},
            open_jobs=[
                RemoteJob(index, job_id, trace_id, now, now + findings.patience_s[index])
                for index, (job_id, trace_id) in taken.open.items()
            ],
            turn=findings.turn,
        )
        session.restore(state, now)
        seq, version = int(fields.get("seq", 0)), int(fields.get("version", 0))
        self._sessions.make_resumable(session, epoch=taken.epoch, seq=seq, version=version)
        self._sessions.attach(session, socket)
        return session

    def _welcome(self, session: Session, socket: Socket, taken: Resumed) -> None:
        """The ack has no number of its own: it stands before what the client has missed."""
        audio_seq = session.heard_seq if session.heard_seq is not None else session.audio_seq
        ack = msgspec.structs.replace(
            self._sessions.ack(session),
            message="session resumed",
            resumed=True,
            next_index=session.next_index,
            audio_seq=audio_seq,
        )
        socket.send(encode(ack))
        for frame in taken.outbox:
            socket.send(frame)

    async def _after(self, session: Session, taken: Resumed) -> None:
        await self._sessions.index(session)
        # Only now that the session can be found here: whatever is not parked by now comes to us directly.
        await self._sessions.collect(session)
        session.set_timer()
        if taken.former_owner not in ("", self._sessions.instance):
            await self._router.push(taken.former_owner, SessionMoved(session.id, taken.epoch))
        log.info("session resumed", session=session.id, epoch=taken.epoch, came_from=taken.former_owner)

    # -- the grace of those who do not come back -------------------------------------------------

    async def end_overdue(self) -> None:
        """Sessions nobody resumed: their state and outbox go, and their turn keys after, which a living one needs."""
        for session_id, epoch in await self._store.overdue():
            if await self._store.end(session_id, epoch):
                await self._sessions.turns.end_current(session_id)
            await self._store.settled(session_id, epoch)
