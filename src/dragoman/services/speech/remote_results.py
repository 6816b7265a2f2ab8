"""Receives the results of remote jobs: from the inbox, and from Redis where they were parked.

An instance that drives a job of a session which was resumed on another instance sends the end of the job there (see
`remote_listener`), or parks it while the session has no owner.
"""

import asyncio

from dragoman.protocol.peer import JobEnded, JobMoved
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.speech.remote_listener import SessionResults, end_of, parked_message
from dragoman.services.speech.session import Session
from dragoman.services.speech.sessions import Sessions
from dragoman.store.sessions import ResumableSessions
from dragoman.store.slices import in_slices


class RemoteResults:
    def __init__(
        self, sessions: Sessions, store: ResumableSessions, results: SessionResults, metrics: Metrics, tasks: Tasks
    ) -> None:
        self._sessions, self._store, self._results = sessions, store, results
        self._metrics, self._tasks = metrics, tasks

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
            session.job_ended(about, end_of(message))
        else:
            self._metrics.dropped.labels("settled").inc()
