"""The sessions of this instance: opens them, finds them by id, detaches them from their sockets, ends them."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic

import msgspec
import structlog

from dragoman.domain.limits.sessions import (
    MESSAGE,
    UTTERANCE,
    Holder,
    SessionGrant,
    SessionLimit,
    SessionQuota,
    WorkQuota,
)
from dragoman.protocol import ids
from dragoman.protocol.codec import decode_client, encode
from dragoman.protocol.codes import Close, ErrorCode, Platform, ProtocolError
from dragoman.protocol.peer import EndSession, ForwardedUtterance, JobEnded, SessionMoved
from dragoman.protocol.session import Error, SessionInit, SessionInitAck, Utterance
from dragoman.services.loops import PacedQueue, Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Router
from dragoman.services.sockets import Socket
from dragoman.services.speech import messages
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.job_request import RoomSpeech, SessionTurns
from dragoman.services.speech.previews import Previews
from dragoman.services.speech.remote import (
    NO_SUCH_SESSION,
    RemoteListener,
    RemoteSocket,
    SessionResults,
    UtteranceForwarder,
)
from dragoman.services.speech.session import Session, SessionSettings, SessionState
from dragoman.services.speech.session_input import finds_speech
from dragoman.services.speech.session_output import Outbox
from dragoman.store.errors import StoreError
from dragoman.store.instances import Owners
from dragoman.store.interface import in_slices
from dragoman.store.jobs import Turns
from dragoman.store.sessions import ResumableSessions

log = structlog.get_logger(__name__)

REFUSED = {
    SessionLimit.PRINCIPAL: "This client has as many sessions as it may have: close one first.",
    SessionLimit.GATEWAY: "This gateway has as many sessions as it may have: close one first.",
    SessionLimit.ADDRESS: "This address has as many sessions as it may have: close one first.",
}


class InstanceFull(Exception):
    """The instance has as many sessions as it may have."""


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
        previews: Previews,
        metrics: Metrics,
        tasks: Tasks,
        settings: SessionSettings,
        *,
        guard: Callable[..., bool],
        on_ended: Callable[[Session], None],
        on_moved: Callable[[Session], None],
        rooms: RoomSpeech | None = None,
    ) -> None:
        """`on_ended` and `on_moved` are called when a session is over, or continues on another instance."""
        self._on_ended, self._on_moved, self._rooms = on_ended, on_moved, rooms
        self.instance, self.settings, self.resumable = instance, settings, resumable
        self._owners, self._turns, self._dispatcher, self._router = owners, turns, dispatcher, router
        self._results, self._metrics, self._tasks, self._guard = results, metrics, tasks, guard
        self._previews = previews
        self.forwarder = UtteranceForwarder(owners, router, metrics, tasks, timeout_s=settings.placement_wait_s)
        self._sessions: dict[str, Session] = {}
        self.quota, self._work = SessionQuota(settings.limits), WorkQuota(settings.limits)
        self._grants: dict[str, SessionGrant] = {}  # by session
        self._of_socket: dict[int, set[str]] = {}
        self._expiry: dict[str, asyncio.TimerHandle] = {}
        self._drained: dict[str, int] = {}  # sessions closed by the drain → their epoch
        self._ending: PacedQueue[tuple[Session, str]] = PacedQueue(lambda ending: guard(self._end_detached, *ending))

    def __len__(self) -> int:
        return len(self._sessions)

    def ids(self) -> Collection[str]:
        return self._sessions.keys()

    # -- opening ---------------------------------------------------------------------------------

    def open(self, socket: Socket, init: SessionInit, holder: Holder) -> Session:
        """Raises ProtocolError LIMIT_EXCEEDED, and InstanceFull."""
        grant = self.admit(ids.session_id(), holder)
        session = self.build(init, grant)
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
        """A session that can resume is confirmed after Redis has it."""
        fields = {
            "init": msgspec.json.encode(session.init),
            "trace_id": session.trace_id,
            "opened_by": self.instance,
        }
        try:
            await self._owners.claim_session(session.id, self.instance)
            await self.resumable.open(session.id, token, session.subject, {**fields, **session.state()})
        except StoreError:
            self._refuse(session)
            raise
        session.send(msgspec.structs.replace(ack, resume_token=token, next_index=0))

    def _refuse(self, session: Session) -> None:
        socket = session.socket
        if self._sessions.get(session.id) is session:
            self._remove(session, "not opened")
        if socket is not None:
            socket.close(Close.OVERLOADED, "Redis is unavailable; connect again")

    def admit_on_connection(self, open_sessions: int) -> None:
        """Raises ProtocolError if a connection with this many sessions may not open another one."""
        limit = self.settings.limits.per_connection
        if open_sessions >= limit:
            self._metrics.session_limits.labels("connection").inc()
            raise ProtocolError(
                ErrorCode.INVALID_MESSAGE, f"This connection has {limit} sessions open: close one first."
            )

    def admit(self, session_id: str, holder: Holder) -> SessionGrant:
        """Count one more session. Raises ProtocolError LIMIT_EXCEEDED, and InstanceFull."""
        limit = self.quota.full(holder)
        if limit is not None:
            self._metrics.session_limits.labels(limit).inc()
            log.warning("session refused", limit=limit.value, owner=holder.owner, limited=True)
            if limit is SessionLimit.INSTANCE:
                raise InstanceFull
            raise ProtocolError(ErrorCode.LIMIT_EXCEEDED, REFUSED[limit])
        evicted = self.quota.evictable()
        if evicted is not None:
            self._metrics.session_limits.labels("detached").inc()
            self._remove(self._sessions[evicted.session], "evicted")
        return self.quota.admit(session_id, holder)

    def count_work(self, holder: Holder, work: float) -> float:
        return self._work.done(holder, work, monotonic())

    def count_message(self, holder: Holder) -> float:
        """Called after each message of a client; returns the seconds until the next one may be handled."""
        wait_s = self.count_work(holder, MESSAGE)
        if wait_s:
            self._metrics.session_limits.labels("work").inc()
        return wait_s

    def release_unused(self, grant: SessionGrant) -> None:
        """Release the grant of a session that was not built."""
        if self._grants.get(grant.session) is not grant:
            self.quota.release(grant)

    def build(self, init: SessionInit, grant: SessionGrant, restored: SessionState | None = None) -> Session:
        session = Session(
            grant.session,
            None,
            init,
            self._dispatcher,
            self._metrics,
            self.settings,
            SessionTurns(grant.session, self._turns, self._tasks),
            self._previews if self.settings.previews and (init.previews or finds_speech(init)) else None,
            holder=grant.holder,
            count_job=partial(self.count_work, grant.holder, UTTERANCE),
            guard=self._guard,
            on_closed=self._closed,
            rooms=self._rooms,
            restored=restored,
        )
        self._sessions[session.id], self._grants[session.id] = session, grant
        self._metrics.sessions.set(len(self._sessions))
        return session

    def make_resumable(self, session: Session, *, epoch: int, seq: int = 0, version: int = 0) -> None:
        """From now on the numbered messages of the session go through an outbox."""
        attachment = session.output.attachment
        outbox = Outbox(
            self.resumable,
            session.id,
            epoch,
            seq,
            self._tasks,
            version=version,
            deliver=attachment.send,
            on_fenced=partial(self._fenced, session.id),
            on_full=partial(attachment.close, Close.OVERLOADED, "too much is waiting for this client"),
        )
        session.output.use_outbox(outbox)

    def ack(self, session: Session) -> SessionInitAck:
        source, binary = session.input, self.settings.binary_frames
        return messages.opened(
            session.id,
            session.trace_id,
            source.audio_format,
            source.sample_rate,
            binary_frames=binary,
            vad=source.vad,
        )

    def attach(self, session: Session, socket: Socket) -> None:
        session.output.attach(socket)
        self._of_socket.setdefault(socket.id, set()).add(session.id)
        timer = self._expiry.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        self.quota.attach(self._grants[session.id])
        self._metrics.detached.set(self.quota.detached)

    async def index(self, session: Session) -> None:
        await self._owners.index_session(session.id, self.instance)

    # -- finding ---------------------------------------------------------------------------------

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def get(self, session_id: str, subject: str) -> Session:
        """Raises ProtocolError unless `subject` opened the session."""
        session = self._sessions.get(session_id)
        if session is None or session.subject != subject:
            raise ProtocolError(ErrorCode.INVALID_SESSION, NO_SUCH_SESSION)
        return session

    def on_forwarded_utterance(self, message: ForwardedUtterance) -> None:
        utterance = decode_client(bytes(message.frame))
        reply_to = RemoteSocket(message.session_id, message.instance, message.connection, self._router, self._tasks)
        try:
            session = self.get(message.session_id, message.subject)
            if isinstance(utterance, Utterance):
                session.utterance(utterance, reply_to)
        except ProtocolError as error:
            reply_to.send(encode(Error(code=error.code, message=error.message)))

    # -- ending ----------------------------------------------------------------------------------

    def end_owned_by(self, owners: Collection[str]) -> None:
        """Also sessions without a socket."""
        for session in list(self._sessions.values()) if owners else ():
            if session.subject in owners:
                self._end_by_operator(session)

    def end_by_operator(self, message: EndSession) -> None:
        session = self._sessions.get(message.session_id)
        if session is not None:
            self._end_by_operator(session)

    def _end_by_operator(self, session: Session) -> None:
        """The client gets an error; its socket is closed if it has no other session."""
        log.info("session ended by an operator", session=session.id)
        socket = session.socket
        self._remove(session, "ended by an operator")
        if socket is not None:
            details = {"session_id": session.id}
            error = Error(code=ErrorCode.SESSION_CLOSED, message="An operator ended the session.", details=details)
            socket.send(encode(error))
            if not self.of_socket(socket):
                socket.close(Close.ENDED, "an operator ended the session")

    def socket_closed(self, socket: Socket) -> None:
        """Sessions end with their socket, unless they can resume or belong to a gateway."""
        self.forwarder.forget(socket)
        for session in self.of_socket(socket):
            self._detach(session)
        self._of_socket.pop(socket.id, None)

    def of_socket(self, socket: Socket) -> list[Session]:
        """The sessions whose own socket this is."""
        known = (self._sessions.get(session_id) for session_id in self._of_socket.get(socket.id, ()))
        return [session for session in known if session is not None and session.socket is socket]

    def _detach(self, session: Session) -> None:
        """A session that can resume is kept for its grace period, even while it is being closed."""
        if session.outbox is not None:
            grace_s = self.settings.resume_grace_s
        elif self._is_gateway(session) and not session.closing:
            grace_s = self.settings.detached_session_s
        else:
            session.detached()
            self._ending.add((session, "socket closed"))
            return
        session.detached()
        loop = asyncio.get_running_loop()
        self._expiry[session.id] = loop.call_later(grace_s, self._ending.add, (session, "grace period over"))
        self.quota.detach(self._grants[session.id])
        self._metrics.detached.set(self.quota.detached)

    def _is_gateway(self, session: Session) -> bool:
        """The client's own claim is not enough: sessions without a connection count against the instance."""
        return session.init.platform == Platform.API_GATEWAY and self._grants[session.id].holder.gateway

    def _end_detached(self, session: Session, reason: str) -> None:
        if self._sessions.get(session.id) is session and session.socket is None:
            self._remove(session, reason)

    def _closed(self, session: Session) -> None:
        """The last message is written, but the client may not have received it: a session that can resume has its grace
        period, in which the client can fetch the outbox."""
        if session.outbox is None:
            self._remove(session, "closed")
            return
        grant = self._forget(session)
        self.quota.close(grant)
        asyncio.get_running_loop().call_later(self.settings.resume_grace_s, self.quota.release, grant)
        self._end(session, "closed")
        self._tasks.spawn(self._disown(session.id, session.outbox.epoch), "release-session")

    async def _disown(self, session_id: str, epoch: int) -> None:
        """Release ownership; the session ends if no instance resumes it within its grace period."""
        await self._owners.leave_session(session_id, self.instance)
        await self.resumable.leave_behind(session_id, epoch)

    def _remove(self, session: Session, reason: str) -> None:
        self.quota.release(self._forget(session))
        if session.outbox is None:
            self._end(session, reason)
            self._tasks.spawn(self._owners.leave_session(session.id, self.instance), "release-session")
            return
        undelivered = session.outbox.undelivered()
        session.stop()
        self._tasks.spawn(self._end_resumable(session, session.outbox.epoch, undelivered, reason), "release-session")

    async def _end_resumable(self, session: Session, epoch: int, undelivered: list[JobEnded], reason: str) -> None:
        """End the session if this instance still owns it. Otherwise the ends of its jobs go to its new owner."""
        try:
            await self._owners.leave_session(session.id, self.instance)
            owned = await self.resumable.end(session.id, epoch)
        except StoreError:
            self._end(session, reason)
            raise
        if owned:
            self._end(session, reason)
        else:
            self.moved_away(session, undelivered)

    def _end(self, session: Session, reason: str) -> None:
        session.end(reason)
        self._on_ended(session)

    def _forget(self, session: Session) -> SessionGrant:
        """Remove the session from all tables. The caller decides what happens to its grant."""
        self._sessions.pop(session.id, None)
        grant = self._grants.pop(session.id)
        timer = self._expiry.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        if session.socket is not None:
            of_socket = self._of_socket.get(session.socket.id)
            if of_socket is not None:
                of_socket.discard(session.id)
        self.quota.attach(grant)
        self._metrics.sessions.set(len(self._sessions))
        self._metrics.detached.set(self.quota.detached)
        return grant

    # -- moving to another instance --------------------------------------------------------------

    def session_moved(self, message: SessionMoved) -> None:
        session = self._sessions.get(message.session_id)
        if session is not None and session.outbox is not None and session.outbox.epoch < message.epoch:
            self.moved_away(session)

    def _fenced(self, session_id: str, undelivered: Sequence[JobEnded]) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.outbox is not None and session.outbox.stopped:
            self.moved_away(session, undelivered)
        else:  # the outbox belonged to a session that was stopped before Redis answered
            for message in undelivered:
                self._results.send(message)

    def moved_away(self, session: Session, undelivered: Sequence[JobEnded] | None = None) -> None:
        """Another instance owns the session. Its jobs continue here, and their ends are sent to its owner."""
        if undelivered is None:
            undelivered = session.outbox.undelivered() if session.outbox is not None else ()
        self._hand_off(session, undelivered, Close.REPLACED, "the session was resumed on another instance")

    def _hand_off(self, session: Session, undelivered: Sequence[JobEnded], code: Close, why: str) -> None:
        for message in undelivered:
            self._results.send(message)
        self._dispatcher.redirect(session.id, session, RemoteListener(self._results))
        session.stop()
        self._on_moved(session)
        if self._sessions.get(session.id) is session:
            self.quota.release(self._forget(session))
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
                self._drained[session.id] = session.outbox.epoch
                self._hand_off(session, session.outbox.undelivered(), Close.SHUTDOWN, "this instance is shutting down")
            elif not session.closing:
                session.drain()

    async def hand_over(self) -> None:
        """The instance ends: sessions that can resume are left for other instances, the others end."""
        self.drain()
        for session in list(self._sessions.values()):
            self._remove(session, "shutdown")
        for session_id, epoch in self._drained.items():
            await self._disown(session_id, epoch)

    def drop_all(self, code: Close) -> None:
        """Other instances declared this one dead and own its sessions now."""
        sessions, self._sessions = self._sessions, {}
        for grant in self._grants.values():
            self.quota.release(grant)
        self._grants.clear()
        self._of_socket.clear()
        self.forwarder.forget_closed()  # their end may be among the callbacks that were discarded
        for session in sessions.values():
            for message in session.outbox.undelivered() if session.outbox is not None else ():
                self._results.send(message)
            session.stop()
            self._on_moved(session)
            if session.socket is not None:
                session.socket.close(code)

    def resumable_sessions(self) -> list[Session]:
        return [one for one in self._sessions.values() if one.outbox is not None]

    async def renew_all(self) -> None:
        """A session may be silent for an hour: keep its state from expiring."""
        await in_slices(self.resumable_sessions(), lambda one: self.resumable.keep(one.id))
