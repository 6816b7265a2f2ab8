"""The sessions of this instance: opened, found by id, detached from their sockets, ended with all they have."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from dragoman.domain.limits.sessions import Holder, SessionLimit, SessionLimits, SessionPlace, SessionPlaces
from dragoman.protocol import ids
from dragoman.protocol.codec import decode_client, encode
from dragoman.protocol.codes import Close, ErrorCode, Platform
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.peer import EndSession, ForwardedUtterance, JobEnded, JobMoved, SessionMoved, ToSocket
from dragoman.protocol.session import Error, SessionInit, SessionInitAck, Utterance
from dragoman.services.loops import Tasks, retry
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Router
from dragoman.services.sockets import Socket
from dragoman.services.speech import messages
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.forwarding import NO_SUCH_SESSION, RemoteSocket, UtteranceForwarder
from dragoman.services.speech.job_request import TurnPosition, TurnQueue
from dragoman.services.speech.remote_listener import RemoteListener, SessionResults, end_of, parked_message
from dragoman.services.speech.session import Session, SessionSettings
from dragoman.store.errors import StoreError
from dragoman.store.owners import Owners
from dragoman.store.sessions import ResumableSessions
from dragoman.store.slices import in_slices
from dragoman.store.turns import Turns

log = structlog.get_logger(__name__)

REFUSED = {
    SessionLimit.PRINCIPAL: "This client has as many sessions as it may have: close one first.",
    SessionLimit.GATEWAY: "This gateway has as many sessions as it may have: close one first.",
    SessionLimit.ADDRESS: "This address has as many sessions as it may have: close one first.",
}


class InstanceFull(Exception):
    """There is no room for another session here, whoever asks."""


@dataclass(frozen=True, slots=True)
class SessionsSettings:
    session: SessionSettings
    binary_frames: bool = False
    resume_grace_s: float = 30.0
    detached_session_s: float = 600.0
    placement_wait_s: float = 2.0
    limits: SessionLimits = field(default_factory=SessionLimits)


class Sessions:
    def __init__(
        self,
        instance: str,
        owners: Owners,
        turns: Turns,
        resumable: ResumableSessions,
        dispatcher: Dispatcher,
        router: Router,
        results: SessionResults,
        metrics: Metrics,
        tasks: Tasks,
        settings: SessionsSettings,
        *,
        guard: Callable[..., bool],
    ) -> None:
        self.instance, self.settings, self.turns, self.resumable = instance, settings, turns, resumable
        self._owners, self._dispatcher, self._router, self._results = owners, dispatcher, router, results
        self._metrics, self._tasks, self._guard = metrics, tasks, guard
        self.forwarder = UtteranceForwarder(owners, router, metrics, tasks, timeout_s=settings.placement_wait_s)
        self._sessions: dict[str, Session] = {}
        self.places = SessionPlaces(settings.limits)
        self._place: dict[str, SessionPlace] = {}  # by session
        self._of_socket: dict[int, set[str]] = {}
        self._expiry: dict[str, asyncio.TimerHandle] = {}
        self._handed: dict[str, int] = {}  # sessions sent elsewhere, with the epoch they had here

    def __len__(self) -> int:
        return len(self._sessions)

    def ids(self) -> Collection[str]:
        return self._sessions.keys()

    # -- opening ---------------------------------------------------------------------------------

    def open(self, socket: Socket, init: SessionInit, holder: Holder) -> Session:
        """Raises ProtocolError LIMIT_EXCEEDED, and InstanceFull."""
        place = self.admit(ids.session_id(), holder)
        session = self.build(init, place)
        self.attach(session, socket)
        ack = self.ack(session)
        if init.resume:
            token = ids.resume_token()
            self.make_resumable(session, epoch=1)
            self._tasks.spawn(self._open_resumable(session, token, ack), "open-session")
        else:
            session.send(ack)
            self._tasks.spawn(self._owners.claim_session(session.id, self.instance), "claim-session")
        return session

    async def _open_resumable(self, session: Session, token: str, ack: SessionInitAck) -> None:
        """Nothing of a session that can resume is said before Redis knows of it."""
        kept = {
            "init": msgspec.json.encode(session.init),
            "trace_id": session.trace_id,
            "opened_by": self.instance,
        }
        try:
            await self._owners.claim_session(session.id, self.instance)
            await self.resumable.open(session.id, token, session.subject, {**kept, **session.state()})
        except StoreError:
            self._turn_away(session)
            raise
        session.send(msgspec.structs.replace(ack, resume_token=token, next_index=0))

    def _turn_away(self, session: Session) -> None:
        socket = session.socket
        if self._sessions.get(session.id) is session:
            self._remove(session, "not opened")
        if socket is not None:
            socket.close(Close.OVERLOADED, "Redis is away; connect again")

    def admit_on_connection(self, open_sessions: int) -> None:
        """Raises ProtocolError if a connection with so many sessions may not open another one."""
        limit = self.settings.limits.per_connection
        if open_sessions >= limit:
            self._metrics.session_limits.labels("connection").inc()
            raise ProtocolError(
                ErrorCode.INVALID_MESSAGE, f"This connection has {limit} sessions open: close one first."
            )

    def admit(self, session_id: str, holder: Holder) -> SessionPlace:
        """A place for one more session. Raises ProtocolError LIMIT_EXCEEDED, and InstanceFull."""
        limit = self.places.full(holder)
        if limit is not None:
            self._metrics.session_limits.labels(limit).inc()
            log.warning("a session was refused", limit=limit.value, owner=holder.owner, limited=True)
            if limit is SessionLimit.INSTANCE:
                raise InstanceFull
            raise ProtocolError(ErrorCode.LIMIT_EXCEEDED, REFUSED[limit])
        surplus = self.places.surplus()
        if surplus is not None:
            self._metrics.session_limits.labels("detached").inc()
            self._remove(self._sessions[surplus.session], "its place was needed")
        return self.places.take(session_id, holder)

    def release_unused(self, place: SessionPlace) -> None:
        """It was taken for a session that did not come to be."""
        if self._place.get(place.session) is not place:
            self.places.release(place)

    def build(self, init: SessionInit, place: SessionPlace) -> Session:
        session = Session(
            place.session,
            None,
            init,
            self._dispatcher,
            self._metrics,
            self.settings.session,
            subject=place.holder.owner,
            guard=self._guard,
            end_turn=self._end_turn,
            on_closed=self._closed,
        )
        self._sessions[session.id], self._place[session.id] = session, place
        self._metrics.sessions.set(len(self._sessions))
        return session

    def make_resumable(self, session: Session, *, epoch: int, seq: int = 0, version: int = 0) -> None:
        session.make_resumable(
            self.resumable, self._tasks, epoch=epoch, seq=seq, version=version, on_fenced=self._fenced
        )

    def ack(self, session: Session) -> SessionInitAck:
        binary = self.settings.binary_frames
        return messages.opened(
            session.id, session.trace_id, session.audio_format, session.sample_rate, binary_frames=binary
        )

    def attach(self, session: Session, socket: Socket) -> None:
        session.attach(socket)
        self._of_socket.setdefault(socket.id, set()).add(session.id)
        timer = self._expiry.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        self.places.attach(self._place[session.id])
        self._metrics.detached.set(self.places.detached)

    async def index(self, session: Session) -> None:
        await self._owners.index_session(session.id, self.instance)

    # -- finding ---------------------------------------------------------------------------------

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def get(self, session_id: str, subject: str) -> Session:
        """A session belongs to whom opened it."""
        session = self._sessions.get(session_id)
        if session is None or session.subject != subject:
            raise ProtocolError(ErrorCode.INVALID_SESSION, NO_SUCH_SESSION)
        return session

    # -- utterances by another socket ------------------------------------------------------------

    def utterance_for(self, message: ForwardedUtterance) -> None:
        utterance = decode_client(bytes(message.frame))
        reply_to = RemoteSocket(message.session_id, message.instance, message.connection, self._router, self._tasks)
        try:
            session = self.get(message.session_id, message.subject)
            if isinstance(utterance, Utterance):
                session.utterance(utterance, reply_to)
        except ProtocolError as error:
            reply_to.send(encode(Error(code=error.code, message=error.message)))

    def to_socket(self, message: ToSocket) -> None:
        self.forwarder.reply(message)

    # -- jobs of sessions that are driven elsewhere ----------------------------------------------

    async def job_ended(self, message: JobEnded) -> None:
        """Told to the session; parked if it is not here, or if what is here is from before that job was cut."""
        session = self._sessions.get(message.session_id)
        if session is not None and session.has_met(message.index):
            self._deliver(session, message)
            return
        await self._results.redirect(message)
        # A resume here may have looked at what is parked before this was.
        session = self._sessions.get(message.session_id)
        if session is not None:
            await self.collect(session)

    async def collect(self, session: Session) -> None:
        """What was parked for the session, through its window. Refused to us: it was resumed elsewhere."""
        outbox = session.outbox
        if outbox is None or outbox.held:  # whoever holds it collects
            return
        epoch = outbox.epoch
        parked = await self.resumable.parked(session.id, epoch)
        if parked is not None:
            for message in map(parked_message, parked):
                if message is not None:
                    self._deliver(session, message)
            if parked:
                self._tasks.spawn(self._unpark(session.id, epoch, parked, outbox.note({})), "unpark")
        elif outbox.epoch == epoch and not outbox.held:
            self.moved_away(session)

    async def _unpark(self, session_id: str, epoch: int, parked: list[bytes], told: "asyncio.Future[bool]") -> None:
        """Not before their ends are written: until then whoever resumes the session must find them."""
        if await told:
            await self.resumable.unpark(session_id, epoch, parked)

    def _deliver(self, session: Session, message: JobEnded) -> None:
        about = session.remote_jobs.get(message.index)
        if about is not None and about.job_id == message.job_id:
            session.ended(about, end_of(message))
        else:
            self._metrics.dropped.labels("settled").inc()

    def job_moved(self, message: JobMoved) -> None:
        session = self._sessions.get(message.session_id)
        if session is not None:
            session.moved(message.index)

    # -- leaving ---------------------------------------------------------------------------------

    def end_owned_by(self, owners: Collection[str]) -> None:
        """Also those without a socket."""
        for session in list(self._sessions.values()) if owners else ():
            if session.subject in owners:
                self._end_by_operator(session)

    def end_by_operator(self, message: EndSession) -> None:
        session = self._sessions.get(message.session_id)
        if session is not None:
            self._end_by_operator(session)

    def _end_by_operator(self, session: Session) -> None:
        """The client gets an error; its socket is closed if it has no other session."""
        log.info("an operator ended a session", session=session.id)
        socket = session.socket
        self._remove(session, "ended by an operator")
        if socket is not None:
            details = {"session_id": session.id}
            error = Error(code=ErrorCode.SESSION_CLOSED, message="An operator ended the session.", details=details)
            socket.send(encode(error))
            if not self.of_socket(socket):
                socket.close(Close.ENDED, "an operator ended the session")

    def socket_closed(self, socket: Socket) -> None:
        """Sessions end with their socket, unless they can resume or are those of a gateway, which outlive it."""
        self.forwarder.left(socket)
        for session in self.of_socket(socket):
            self._detach(session)
        self._of_socket.pop(socket.id, None)

    def of_socket(self, socket: Socket) -> list[Session]:
        """The sessions whose own socket this is."""
        known = (self._sessions.get(session_id) for session_id in self._of_socket.get(socket.id, ()))
        return [session for session in known if session is not None and session.socket is socket]

    def _detach(self, session: Session) -> None:
        """A session that is being closed goes on, too: its client may come back for what is outstanding."""
        if session.outbox is not None:
            grace_s = self.settings.resume_grace_s
        elif self._is_gateway(session) and not session.closing:
            grace_s = self.settings.detached_session_s
        else:
            self._remove(session, "socket closed")
            return
        session.detach()
        loop = asyncio.get_running_loop()
        self._expiry[session.id] = loop.call_later(grace_s, self._guard, self._expire, session)
        self.places.detach(self._place[session.id])
        self._metrics.detached.set(self.places.detached)

    def _is_gateway(self, session: Session) -> bool:
        """What a client says of itself is not enough: its sessions take room from others without a connection."""
        return session.init.platform == Platform.API_GATEWAY and self._place[session.id].holder.gateway

    def _expire(self, session: Session) -> None:
        if self._sessions.get(session.id) is session and session.socket is None:
            self._remove(session, "nobody came back")

    def _closed(self, session: Session) -> None:
        """Its last word is said, and nobody can tell whether the client has it or was cut off from it. In case of that
        a session that can resume has its grace, with nothing but what it said."""
        if session.outbox is None:
            self._remove(session, "closed")
            return
        place = self._forget(session)
        self.places.leave(place)
        asyncio.get_running_loop().call_later(self.settings.resume_grace_s, self.places.release, place)
        session.end("closed")
        self._tasks.spawn(self._leave_behind(session.id, session.outbox.epoch), "leave-session")

    async def _leave_behind(self, session_id: str, epoch: int) -> None:
        await self._owners.leave_session(session_id, self.instance)
        await self.resumable.leave_behind(session_id, epoch)

    def _remove(self, session: Session, reason: str) -> None:
        self.places.release(self._forget(session))
        if session.outbox is None:
            session.end(reason)
            self._tasks.spawn(self._owners.leave_session(session.id, self.instance), "leave-session")
            return
        undelivered = session.outbox.undelivered()
        session.leave()
        self._tasks.spawn(self._end_resumable(session, session.outbox.epoch, undelivered, reason), "leave-session")

    async def _end_resumable(self, session: Session, epoch: int, undelivered: list[JobEnded], reason: str) -> None:
        """It is over only if it is still ours. Else its jobs are owed to whoever resumed it, and we had not heard."""
        try:
            await self._owners.leave_session(session.id, self.instance)
            ours = await self.resumable.end(session.id, epoch)
        except StoreError:
            session.end(reason)
            raise
        if ours:
            session.end(reason)
        else:
            self._moved_away(session, undelivered)

    def _forget(self, session: Session) -> SessionPlace:
        """The session is none of ours; whether its place is free is for the caller to say."""
        self._sessions.pop(session.id, None)
        place = self._place.pop(session.id)
        timer = self._expiry.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        if session.socket is not None:
            of_socket = self._of_socket.get(session.socket.id)
            if of_socket is not None:
                of_socket.discard(session.id)
        self.places.attach(place)
        self._metrics.sessions.set(len(self._sessions))
        self._metrics.detached.set(self.places.detached)
        return place

    # -- going on elsewhere ----------------------------------------------------------------------

    def session_moved(self, message: SessionMoved) -> None:
        session = self._sessions.get(message.session_id)
        if session is not None and session.outbox is not None and session.outbox.epoch < message.epoch:
            self.moved_away(session)

    def moved_away(self, session: Session) -> None:
        """Its owner of now is not this object: let go of it."""
        self._moved_away(session, session.outbox.undelivered() if session.outbox is not None else ())

    def _fenced(self, session_id: str, undelivered: Sequence[JobEnded]) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.outbox is not None and session.outbox.stopped:
            self._moved_away(session, undelivered)
        else:  # that outbox belonged to a session that left before Redis answered
            for message in undelivered:
                self._results.send(message)

    def _moved_away(self, session: Session, undelivered: Sequence[JobEnded]) -> None:
        """Resumed on another instance: its jobs go on here, and their ends are sent there."""
        self._let_go(session, undelivered, Close.REPLACED, "the session was resumed elsewhere")

    def _let_go(self, session: Session, undelivered: Sequence[JobEnded], code: Close, why: str) -> None:
        for message in undelivered:
            self._results.send(message)
        self._dispatcher.redirect(session.id, session, RemoteListener(self._results))
        session.leave()
        if self._sessions.get(session.id) is session:
            self.places.release(self._forget(session))
            if session.socket is not None:
                session.socket.close(code, why)

    def stop_accepting(self) -> None:
        """The instance is about to end: no new jobs for sessions that cannot resume and would get no results."""
        for session in self._sessions.values():
            if session.outbox is None and not session.closing:
                session.stop_accepting()

    def drain(self) -> None:
        """Close the sessions that can resume, so that their clients resume them on another instance. Their jobs
        continue here, and the results are sent there; until a session is resumed, this instance owns it, so that they
        can be parked. The other sessions are closed when their last job has ended."""
        for session in list(self._sessions.values()):
            if session.outbox is not None:
                self._handed[session.id] = session.outbox.epoch
                self._let_go(session, session.outbox.undelivered(), Close.SHUTDOWN, "this instance is shutting down")
            elif not session.closing:
                session.drain()

    async def hand_over(self) -> None:
        """We end: sessions that can resume are left for another instance, the others are over."""
        self.drain()
        for session in list(self._sessions.values()):
            self._remove(session, "shutdown")
        for session_id, epoch in self._handed.items():
            await self._leave_behind(session_id, epoch)

    def drop_all(self, code: Close) -> None:
        """We were declared dead: nothing here is ours any more."""
        sessions, self._sessions = self._sessions, {}
        for place in self._place.values():
            self.places.release(place)
        self._place.clear()
        self._of_socket.clear()
        self.forwarder.forget_closed()  # their end may have been among what waited
        for session in sessions.values():
            for message in session.outbox.undelivered() if session.outbox is not None else ():
                self._results.send(message)
            session.leave()
            if session.socket is not None:
                session.socket.close(code)

    async def keep_all(self) -> None:
        """A session may be silent for an hour and speak, or be resumed, after. What was parked because our inbox was
        full is collected, too."""
        kept = [one for one in self._sessions.values() if one.outbox is not None]
        await in_slices(kept, lambda one: self.resumable.keep(one.id))
        await in_slices((one for one in kept if one.remote_jobs), self.collect)

    # -- turns -----------------------------------------------------------------------------------

    def _end_turn(self, session: Session, line: TurnQueue) -> None:
        """When the turn's last job has its place, remove the affinity, if one was written."""
        self._tasks.spawn(self._end_turn_in_line(session.id, line, line.join()), "end-turn")

    async def _end_turn_in_line(self, session_id: str, line: TurnQueue, place: TurnPosition) -> None:
        await place.my_turn()
        try:
            if line.turn.node_id is not None:  # the key has no TTL: it must go, however long that takes
                await retry(lambda: self.turns.end(session_id, line.turn.id))
        finally:
            line.turn.end()
            place.leave()
