"""Resumes a session for a client that reconnects, on the instance that owned it or on another one.

    session_resume ─▶ one script: token, epoch + 1, owner ─▶ ack {resumed, next_index, audio_seq}
                   ─▶ the outbox after last_seq ─▶ parked results through the window

Every open index gets one result or fails: the record of its job is read once. The instance that drives the job sends
its end to the inbox of the session's owner (see `remote`), or parks it while the session has no owner. A
session that is not resumed within its grace period is ended, and the keys of its turn are removed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from weakref import WeakValueDictionary

import msgspec
import structlog

from dragoman.domain.job import State
from dragoman.domain.limits.sessions import Holder, SessionGrant
from dragoman.domain.placement import Turn
from dragoman.domain.release import Settled
from dragoman.domain.segmenter import AudioMark
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import Close, ErrorCode, ProtocolError
from dragoman.protocol.peer import JobEnded, JobMoved, RoomUtterance, SessionMoved, room_of
from dragoman.protocol.session import SessionInit, SessionResume
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Router
from dragoman.services.sockets import Socket
from dragoman.services.speech.remote import RemoteJob, SessionResults, end_of, parked_message
from dragoman.services.speech.session import Session, SessionState
from dragoman.services.speech.sessions import Sessions
from dragoman.store.errors import StoreError
from dragoman.store.instances import Instances
from dragoman.store.interface import in_slices
from dragoman.store.jobs import Jobs, Turns
from dragoman.store.sessions import ResumableSessions, Resumed, audio_of, open_of

log = structlog.get_logger(__name__)

REFUSALS = {
    "NONE": "The session is over; open a new one.",
    "DENIED": "The session cannot be resumed with this token.",
    "TOO_OLD": "Too much was missed; open a new session.",
}


@dataclass(frozen=True, slots=True)
class _Findings:
    """What the state of a session does not contain."""

    turn: Turn | None
    timeout_s: Mapping[int, float]  # by open index
    rooms: Mapping[int, RoomUtterance | None]


async def _nothing() -> None:
    return None


class Resumption:
    def __init__(
        self,
        sessions: Sessions,
        results: SessionResults,
        store: ResumableSessions,
        jobs: Jobs,
        turns: Turns,
        instances: Instances,
        router: Router,
        metrics: Metrics,
        tasks: Tasks,
        *,
        job_timeout_ms: int,
        session_over: Callable[[str, int], Awaitable[None]],
        restore_room: Callable[[str], Awaitable[None]],
        lost_in_room: Callable[[str, int, RoomUtterance, int, str], Awaitable[None]],
    ) -> None:
        """`session_over` is called for a session that was not resumed in time, with its epoch, and `lost_in_room` for
        each utterance that it had said in a room and that has not ended; `restore_room` for one that continues here."""
        self._session_over, self._restore_room, self._lost_in_room = session_over, restore_room, lost_in_room
        self._sessions, self._results, self._store, self._jobs = sessions, results, store, jobs
        self._turns, self._instances, self._router = turns, instances, router
        self._metrics, self._tasks = metrics, tasks
        self._job_timeout_s = job_timeout_ms / 1000
        self._resuming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def resume(self, socket: Socket, message: SessionResume, holder: Holder) -> Session:
        """Raises ProtocolError INVALID_SESSION with the reason, LIMIT_EXCEEDED, and InstanceFull."""
        # If a client resumes twice at once, the second call must find the session of the first.
        async with self._resuming.setdefault(message.session_id, asyncio.Lock()):
            return await self._resume(socket, message, holder)

    async def _resume(self, socket: Socket, message: SessionResume, holder: Holder) -> Session:
        if socket.closed:  # the client may have resumed on another instance meanwhile
            raise ProtocolError(ErrorCode.INVALID_SESSION, "The connection is closed.")
        local = self._sessions.find(message.session_id)
        grant = self._sessions.admit(message.session_id, holder) if local is None else None
        try:
            resumed = await self._take_ownership(message, holder.owner, local)
            session = await self._find_or_restore(socket, message.session_id, resumed, holder, grant)
        finally:
            if grant is not None:
                self._sessions.release_unused(grant)
        await self._finish(session, resumed)
        return session

    async def _take_ownership(self, message: SessionResume, owner: str, local: Session | None) -> Resumed:
        """Take ownership in Redis under a new epoch; returns the state."""
        outbox = local.outbox if local is not None else None
        if outbox is not None:
            outbox.pause()
        resumed: Resumed | str = "NONE"
        try:
            resumed = await self._store.resume(
                message.session_id, message.resume_token, owner, message.last_seq, self._sessions.instance
            )
        finally:
            if outbox is not None and isinstance(resumed, str):
                outbox.resume(outbox.epoch, 0)
        if isinstance(resumed, str):
            raise ProtocolError(ErrorCode.INVALID_SESSION, REFUSALS[resumed])
        return resumed

    async def _find_or_restore(
        self, socket: Socket, session_id: str, resumed: Resumed, holder: Holder, grant: SessionGrant | None
    ) -> Session:
        session = self._sessions.find(session_id)
        if session is not None and session.outbox is not None and resumed.epoch == session.outbox.epoch + 1:
            self._reattach(session, socket)
            self._confirm(session, socket, resumed)
            session.outbox.resume(resumed.epoch, int(resumed.state.get("seq", 0)))
            return session
        if session is not None:  # another instance owned it meanwhile, so this state is old
            self._sessions.moved_away(session)
        findings = await self._read(session_id, resumed)
        session = self._restore(socket, resumed, findings, grant or self._sessions.quota.admit(session_id, holder))
        self._confirm(session, socket, resumed)
        return session

    def _reattach(self, session: Session, socket: Socket) -> None:
        """The session never left this instance, so buffered audio is still in memory."""
        old = session.socket
        self._sessions.attach(session, socket)
        session.reopen()
        if old is not None and old is not socket:
            old.close(Close.REPLACED, "the session was resumed by another connection")

    # -- a session of another instance -----------------------------------------------------------

    async def _read(self, session_id: str, resumed: Resumed) -> "_Findings":
        """Read everything before the session is built: a message to an incomplete session would be lost. Ends of its
        jobs that arrive meanwhile are parked."""
        try:
            former = self._instances.presence(resumed.former_owner) if resumed.former_owner else _nothing()
            jobs = asyncio.gather(*(self._jobs.get(job_id) for job_id, _ in resumed.open.values()))
            turn, presence, records, _ = await asyncio.gather(
                self._turn(session_id), former, jobs, self._restore_room(session_id)
            )
        except StoreError:
            # This instance owns the session but does not have it: it ends unless the client resumes again.
            self._tasks.spawn(self._grant_grace(session_id, resumed.epoch), "grant-grace")
            raise
        timeout_s = [self._timeout_s(record, presence is not None) for record in records]
        rooms = [room_of(record or {}) for record in records]
        by_index = dict(zip(resumed.open, zip(timeout_s, rooms, strict=True), strict=True))
        return _Findings(
            turn, {index: one[0] for index, one in by_index.items()}, {index: one[1] for index, one in by_index.items()}
        )

    async def _turn(self, session_id: str) -> Turn | None:
        """The current turn of the session and its node."""
        turn_id = await self._turns.current(session_id)
        return Turn(turn_id, await self._turns.node_of(turn_id)) if turn_id is not None else None

    def _timeout_s(self, record: Mapping[str, str] | None, former_is_alive: bool) -> float:
        """How long to wait for the end of an open job."""
        if record is None:
            # Not recorded yet: if its driver died, the audio is lost.
            return self._job_timeout_s if former_is_alive else 0.0
        if record["state"] in (State.FINISHED, State.RELEASED):
            # Its end is parked, in flight, or lost with its driver.
            return self._sessions.settings.ack_timeout_ms / 1000
        return self._job_timeout_s

    async def _grant_grace(self, session_id: str, epoch: int) -> None:
        await retry(lambda: self._store.leave_behind(session_id, epoch))

    def _restore(self, socket: Socket, resumed: Resumed, findings: "_Findings", grant: SessionGrant) -> Session:
        """Build the session from the state of its last owner. Nothing is awaited: it is complete when found."""
        fields, now = resumed.state, monotonic()
        expected, settled = resumed.window
        state = SessionState(
            trace_id=fields["trace_id"],
            numbered={"1": True, "0": False}.get(fields.get("numbered", "")),
            audio=AudioMark(*audio_of(fields)),
            next_index=int(fields.get("next_index", 0)),
            expected=expected,
            settled={index: Settled(word) for index, word in settled.items()},
            open_jobs=[
                RemoteJob(index, job_id, trace_id, now, now + findings.timeout_s[index], findings.rooms[index])
                for index, (job_id, trace_id) in resumed.open.items()
            ],
            turn=findings.turn,
        )
        session = self._sessions.build(msgspec.json.decode(fields["init"], type=SessionInit), grant, state)
        seq, version = int(fields.get("seq", 0)), int(fields.get("version", 0))
        self._sessions.make_resumable(session, epoch=resumed.epoch, seq=seq, version=version)
        self._sessions.attach(session, socket)
        return session

    def _confirm(self, session: Session, socket: Socket, resumed: Resumed) -> None:
        """The ack has no seq: it precedes the messages that the client has missed."""
        source = session.input
        audio_seq = source.received_seq if source.received_seq is not None else source.settled.seq
        ack = msgspec.structs.replace(
            self._sessions.ack(session),
            message="session resumed",
            resumed=True,
            next_index=source.next_index,
            audio_seq=audio_seq,
        )
        socket.send(encode(ack))
        for frame in resumed.outbox:
            socket.send(frame)

    async def _finish(self, session: Session, resumed: Resumed) -> None:
        await self._sessions.index(session)
        # After the session can be found by its owner key: from then on results arrive by inbox instead of being parked.
        await self.collect(session)
        session.set_timer()
        if resumed.former_owner not in ("", self._sessions.instance):
            await self._router.push(resumed.former_owner, SessionMoved(session.id, resumed.epoch))
        log.info("session resumed", session=session.id, epoch=resumed.epoch, former_owner=resumed.former_owner)

    # -- ends of remote jobs ---------------------------------------------------------------------

    async def job_ended(self, message: JobEnded) -> None:
        """If the session is not local, or the local one is older than the job, the message is sent on or parked."""
        session = self._sessions.find(message.session_id)
        if session is not None and session.is_known(message.index):
            self._deliver(session, message)
            return
        await self._results.redirect(message)
        # A resume on this instance may have read the parked results before this one was added.
        session = self._sessions.find(message.session_id)
        if session is not None:
            await self.collect(session)

    def job_moved(self, message: JobMoved) -> None:
        session = self._sessions.find(message.session_id)
        if session is not None:
            session.moved(message.index)

    async def collect(self, session: Session) -> None:
        """Pass the parked results of a session through its window. If Redis refuses, another instance owns it."""
        outbox = session.outbox
        if outbox is None or outbox.paused:  # the resume that paused it collects
            return
        epoch = outbox.epoch
        parked = await self._store.parked(session.id, epoch)
        if parked is not None:
            for message in map(parked_message, parked):
                if message is not None:
                    self._deliver(session, message)
            if parked:
                self._tasks.spawn(self._unpark(session.id, epoch, parked, outbox.note({})), "unpark")
        elif outbox.epoch == epoch and not outbox.paused:
            self._sessions.moved_away(session)

    async def collect_all(self) -> None:
        """Results are also parked while the inbox of this instance is full."""
        await in_slices((one for one in self._sessions.resumable_sessions() if one.remote_jobs), self.collect)

    async def _unpark(self, session_id: str, epoch: int, parked: list[bytes], written: "asyncio.Future[bool]") -> None:
        """After the outbox has written them: until then an instance that resumes the session must find them."""
        if await written:
            await self._store.unpark(session_id, epoch, parked)

    def _deliver(self, session: Session, message: JobEnded) -> None:
        about = session.remote_jobs.get(message.index)
        if about is not None and about.job_id == message.job_id:
            session.job_ended(replace(about, room=message.room or about.room), end_of(message))
        else:
            self._metrics.dropped.labels("settled").inc()

    # -- expiry ----------------------------------------------------------------------------------

    async def end_overdue(self) -> None:
        """End sessions that were not resumed in time: their state and outbox first, then the keys of their turn."""
        for session_id, epoch in await self._store.overdue():
            opened = open_of(await self._store.state(session_id))
            if await self._store.end(session_id, epoch):
                await self._turns.end_current(session_id)
                await self._lose_in_room(session_id, epoch, opened)
                await self._session_over(session_id, epoch)
            await self._store.settled(session_id, epoch)

    async def _lose_in_room(self, session_id: str, epoch: int, opened: Mapping[int, tuple[str, str]]) -> None:
        for index, (job_id, _) in opened.items():
            room = room_of(await self._jobs.get(job_id) or {})
            if room is not None:
                await self._lost_in_room(session_id, index, room, epoch, "left")
