"""Jobs whose driver died: watched to their end by the instance that took the dead one over.

An orphan keeps its attempt while its node is known. Its result is recorded. If none comes, because the node is lost
too or its time is over, the job ends failed with INSTANCE_LOST: its audio was in the dead driver's memory, so there is
nothing to send to another node. If its session is over as well, the job ends at once and its node is sent a
cancellation; a text job always ends so, because what asked for it was on the dead instance. No other instance watches
an orphan: if Redis is unavailable, its end is retried until it is recorded and the session notified, and only then the
orphan is forgotten.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic

import msgspec
import structlog

from dragoman.domain.job import Event, Outcome, Reply, State
from dragoman.domain.job_signals import End, Finish, JobMessage, belongs_to, end_by
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.node import JobCancel, JobResult
from dragoman.protocol.peer import CancelJob, JobEnded, RoomUtterance, SlotFreed, room_of
from dragoman.services.loops import Tasks, retry
from dragoman.services.routing.router import Announcer, Router
from dragoman.services.speech.job_records import JobMetrics, JobRecords
from dragoman.services.speech.messages import NO_FRAME
from dragoman.services.speech.remote import SessionResults
from dragoman.store.inbox import PushReply
from dragoman.store.jobs import Jobs
from dragoman.store.nodes import ReleaseReply, Reservations

log = structlog.get_logger(__name__)


LOST = End(Outcome.FAILED, ErrorCode.INSTANCE_LOST, "lost with the instance that had it")


@dataclass(slots=True)
class Orphan:
    job_id: str
    node_id: str
    epoch: int
    attempt: int
    give_up_at: float
    session_id: str
    index: int
    trace_id: str
    is_text: bool  # what asked for it died with the driver
    room: RoomUtterance | None = None  # if it was spoken in a room


class Orphans:
    def __init__(
        self,
        instance: str,
        jobs: Jobs,
        records: JobRecords,
        reservations: Reservations,
        results: SessionResults,
        router: Router,
        announcer: Announcer,
        metrics: JobMetrics,
        tasks: Tasks,
        *,
        timeout_ms: int,
        knows: Callable[[str], bool],
        lost_in_room: Callable[[str, int, RoomUtterance, int, str], Awaitable[None]],
    ) -> None:
        self.instance = instance
        self._jobs, self._records, self._reservations, self._results = jobs, records, reservations, results
        self._router, self._announcer, self._metrics, self._tasks = router, announcer, metrics, tasks
        self._timeout_ms, self._knows, self._lost_in_room = timeout_ms, knows, lost_in_room
        self._orphans: dict[str, Orphan] = {}
        self._ending = set[str]()

    def __len__(self) -> int:
        return len(self._orphans)

    async def adopt(self, job_id: str, dead: str) -> None:
        """Take over one job of a dead driver. Safe to repeat, as a takeover may be."""
        record = await self._jobs.get(job_id) or await self._record_unrecorded(job_id)
        if record.get("driver") not in (dead, self.instance):
            await self._jobs.undriven(dead, job_id)
            return
        state, node_id = record.get("state"), record.get("node_id", "")
        orphan = Orphan(
            job_id,
            node_id,
            int(record.get("node_epoch") or 0),
            int(record.get("attempt") or 1),
            monotonic() + self._timeout_ms / 1000,
            record.get("session_id", ""),
            int(record.get("utterance_index") or 0),
            record.get("trace_id", ""),
            "text_kind" in record,
            room_of(record),
        )
        # Added to our list before it is removed from the dead one's: it is always on a list.
        await self._jobs.driven(self.instance, job_id, 0)
        await self._jobs.set_driver(job_id, self.instance)
        await self._jobs.undriven(dead, job_id)
        orphan = self._orphans.setdefault(job_id, orphan)
        if state in (State.FINISHED, State.RELEASED):
            await self._end(orphan, partial(self._finished, orphan, record.get("outcome", "")))
        elif not node_id or not self._knows(node_id):
            await self._end(orphan, partial(self._give_up, orphan))
        elif orphan.is_text:
            await self._end(orphan, partial(self._abandon, orphan))

    async def _record_unrecorded(self, job_id: str) -> dict[str, str]:
        """Its driver had not recorded it yet. A driver that was only paused then finds a record that has ended."""
        await self._jobs.create(job_id, {"job_id": job_id, "driver": self.instance})
        return await self._jobs.get(job_id) or {}

    def on_node_message(self, node_id: str, message: JobMessage) -> bool:
        """True if the job is an orphan of this instance."""
        orphan = self._orphans.get(message.job_id or "")
        if orphan is None:
            return False
        if isinstance(message, JobResult):
            if belongs_to(message, orphan.node_id, orphan.attempt) and node_id == orphan.node_id:
                self._tasks.spawn(self._end(orphan, partial(self._answered, orphan, message)), "orphan-answered")
            else:
                self._metrics.dropped("stale")
        return True

    def node_lost(self, node_id: str, epoch: int) -> None:
        for orphan in self._orphans.values():
            if orphan.node_id == node_id and orphan.epoch <= epoch:
                self._tasks.spawn(self._end(orphan, partial(self._give_up, orphan)), "orphan-lost")

    async def session_over(self, session_id: str) -> None:
        """The session died with its instance, so no client waits for its jobs: their slots are released now."""
        for orphan in [orphan for orphan in self._orphans.values() if orphan.session_id == session_id]:
            await self._end(orphan, partial(self._abandon, orphan))

    async def index(self) -> None:
        """After the takeover of a former incarnation of our own: put what we watch back on the list under our name."""
        for orphan in list(self._orphans.values()):
            await self._jobs.driven(self.instance, orphan.job_id, 0)

    async def run_once(self) -> None:
        """End orphans whose time is over; renew the reservations of the others."""
        now = monotonic()
        for orphan in list(self._orphans.values()):
            if orphan.give_up_at <= now:
                await self._end(orphan, partial(self._give_up, orphan))
            else:
                await self._reservations.renew(orphan.node_id, [orphan.job_id])

    # -- the end ---------------------------------------------------------------------------------

    async def _end(self, orphan: Orphan, way: Callable[[], Awaitable[None]]) -> None:
        """One way or another, whichever comes first."""
        if orphan.job_id in self._ending:
            return
        self._ending.add(orphan.job_id)
        try:
            await way()
        finally:
            self._ending.discard(orphan.job_id)
            self._orphans.pop(orphan.job_id, None)

    async def _finished(self, orphan: Orphan, outcome: str) -> None:
        """Its driver has recorded the end. A driver keeps a job that was spoken in a room on its list until the caption
        is in the log: if it is not there, the text died with the driver. If it is, nothing changes."""
        if orphan.room is not None and outcome != Outcome.EMPTY:
            await retry(lambda: self._notify(orphan, LOST))
        await self._close(orphan)

    async def _answered(self, orphan: Orphan, result: JobResult) -> None:
        end = end_by(result, orphan.node_id)
        await self._finish(orphan, Finish(Event.RESULT, end, orphan.attempt, orphan.node_id, inf))

    async def _abandon(self, orphan: Orphan) -> None:
        cancel = JobCancel(job_id=orphan.job_id, trace_id=orphan.trace_id, reason="session_over")
        message = CancelJob(orphan.node_id, orphan.job_id, msgspec.Raw(encode(cancel)))
        owner = await retry(lambda: self._router.owners.node_owner(orphan.node_id))
        if owner is not None and await retry(lambda: self._router.push(owner, message)) is not PushReply.OK:
            log.warning("job not cancelled at its node", node=orphan.node_id, job=orphan.job_id)
        await self._give_up(orphan)

    async def _give_up(self, orphan: Orphan) -> None:
        log.info("job lost with its instance", job=orphan.job_id)
        await self._finish(orphan, Finish(Event.GIVE_UP, LOST, None, "", inf))

    async def _finish(self, orphan: Orphan, step: Finish) -> None:
        """Record FINISHED, then notify the session. ALREADY may be our own write whose reply was lost, so the session
        is notified then, too; a session that has the end ignores a second one."""
        if await self._records.finish(orphan.job_id, step, inf) not in (Reply.STALE, Reply.WRONG_NODE):
            self._metrics.ended(step.end)
            await retry(lambda: self._notify(orphan, step.end))
        await self._close(orphan)

    async def _notify(self, orphan: Orphan, end: End) -> None:
        """The session may be on any instance, or not be resumed yet. A job that was never recorded has no session."""
        if not orphan.session_id:
            return
        if orphan.room is not None and not orphan.room.epoch:
            # Its session cannot resume, so it ended with its instance.
            await self._lost_in_room(orphan.session_id, orphan.index, orphan.room, 0, "instance_lost")
            return
        await self._results.deliver(
            JobEnded(
                session_id=orphan.session_id,
                index=orphan.index,
                job_id=orphan.job_id,
                trace_id=orphan.trace_id,
                outcome=end.outcome.value,
                code=end.code,
                message=end.message,
                node_id=orphan.node_id,
                frame=msgspec.Raw(encode(end.result)) if end.result is not None else NO_FRAME,
                room=orphan.room,
            )
        )

    async def _close(self, orphan: Orphan) -> None:
        await self._records.close(orphan.job_id, "", partial(self._release_slot, orphan))

    async def _release_slot(self, orphan: Orphan) -> None:
        if orphan.node_id and await self._reservations.release(orphan.node_id, orphan.job_id, 0) is ReleaseReply.FREED:
            self._announcer.announce(SlotFreed(orphan.node_id))
