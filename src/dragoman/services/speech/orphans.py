"""Jobs whose driver died: watched to their end by the instance that buried it.

An orphan keeps its attempt while its node is there. Its answer is recorded; if none comes, because the node
went too or time is over, it ends failed INSTANCE_LOST: its audio was in the dead driver's memory, so nobody
can try it again. If its session is over as well, nobody waits for the answer: the job ends at once, and its node is
told to drop it. Nobody else watches it: with Redis away its end is tried until it is written and told, and only
then it is no longer watched.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeVar

import msgspec
import structlog

from dragoman.domain.job import Event, Outcome, Reply, State
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.node import JobCancel, JobResult
from dragoman.protocol.peer import CancelJob, JobEnded
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.speech.answers import counts, end_by
from dragoman.services.speech.driver import code_label
from dragoman.services.speech.expatriate import Mail
from dragoman.services.speech.local_nodes import AboutJob
from dragoman.services.speech.messages import NO_FRAME
from dragoman.services.speech.order import End
from dragoman.services.speech.router import Router
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Push
from dragoman.store.jobs import Jobs
from dragoman.store.reservations import Given, Reservations

log = structlog.get_logger(__name__)

REDIS_PAUSE_S = 0.25
T = TypeVar("T")


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
    ending: bool = False


class Orphans:
    def __init__(
        self,
        instance: str,
        jobs: Jobs,
        reservations: Reservations,
        mail: Mail,
        router: Router,
        metrics: Metrics,
        tasks: Tasks,
        *,
        patience_ms: int,
        knows: Callable[[str], bool],
    ) -> None:
        self.instance, self.metrics = instance, metrics
        self._jobs, self._reservations, self._mail, self._tasks = jobs, reservations, mail, tasks
        self._router, self._patience_ms, self._knows = router, patience_ms, knows
        self.on_freed: Callable[[str], None] = lambda node_id: None  # a slot went back: those who wait may look
        self._orphans: dict[str, Orphan] = {}

    def __len__(self) -> int:
        return len(self._orphans)

    async def adopt(self, job_id: str, dead: str) -> None:
        """Take over one job of a dead driver. Safe to repeat: a burial may be."""
        record = await self._jobs.get(job_id) or await self._close_the_book(job_id)
        if record.get("driver") not in (dead, self.instance):
            await self._jobs.undriven(dead, job_id)
            return
        state, node_id = record.get("state"), record.get("node_id", "")
        orphan = Orphan(
            job_id,
            node_id,
            int(record.get("node_epoch") or 0),
            int(record.get("attempt") or 1),
            monotonic() + self._patience_ms / 1000,
            record.get("session_id", ""),
            int(record.get("utterance_index") or 0),
            record.get("trace_id", ""),
        )
        # Ours to be found before it is no longer theirs.
        await self._jobs.driven(self.instance, job_id, 0)
        await self._jobs.redis.call("HSET", self._jobs.keys.job(job_id), "driver", self.instance)
        await self._jobs.undriven(dead, job_id)
        orphan = self._orphans.setdefault(job_id, orphan)
        if state in (State.FINISHED, State.RELEASED):
            await self._end(orphan, partial(self._close, orphan))
        elif not node_id or not self._knows(node_id):
            await self._end(orphan, partial(self._give_up, orphan))

    async def _close_the_book(self, job_id: str) -> dict[str, str]:
        """Its driver had not come to record it. It may only be paused, and go on from there: it finds a record that is
        ours, and ended."""
        await self._jobs.create(job_id, {"job_id": job_id, "driver": self.instance})
        return await self._jobs.get(job_id) or {}

    def hear(self, node_id: str, message: AboutJob) -> bool:
        """True if the job is ours to watch."""
        orphan = self._orphans.get(message.job_id)
        if orphan is None:
            return False
        if isinstance(message, JobResult):
            if counts(message, orphan.node_id, orphan.attempt) and node_id == orphan.node_id:
                self._tasks.spawn(self._end(orphan, partial(self._answered, orphan, message)), "orphan-answered")
            else:
                self.metrics.dropped.labels("stale").inc()
        return True

    def node_lost(self, node_id: str, epoch: int) -> None:
        for orphan in self._orphans.values():
            if orphan.node_id == node_id and orphan.epoch <= epoch:
                self._tasks.spawn(self._end(orphan, partial(self._give_up, orphan)), "orphan-lost")

    async def session_over(self, session_id: str) -> None:
        """The session died with its instance: nobody waits for its jobs, so their slots go back now."""
        for orphan in [orphan for orphan in self._orphans.values() if orphan.session_id == session_id]:
            await self._end(orphan, partial(self._abandon, orphan))

    async def index(self) -> None:
        """After a burial of our own former life: what it drove and we watch now is found under our common name."""
        for orphan in list(self._orphans.values()):
            await self._jobs.driven(self.instance, orphan.job_id, 0)

    async def run_once(self) -> None:
        """End those whose time is over; keep the slots of the others."""
        now = monotonic()
        for orphan in list(self._orphans.values()):
            if orphan.give_up_at <= now:
                await self._end(orphan, partial(self._give_up, orphan))
            else:
                await self._reservations.renew(orphan.node_id, [orphan.job_id])

    async def _end(self, orphan: Orphan, way: Callable[[], Awaitable[None]]) -> None:
        """One way or another, whichever comes first."""
        if orphan.ending:
            return
        orphan.ending = True
        try:
            await way()
        finally:
            self._orphans.pop(orphan.job_id, None)

    async def _answered(self, orphan: Orphan, result: JobResult) -> None:
        await self._record(orphan, Event.RESULT, end_by(result, orphan.node_id))
        await self._close(orphan)

    async def _abandon(self, orphan: Orphan) -> None:
        cancel = JobCancel(job_id=orphan.job_id, trace_id=orphan.trace_id, reason="session_over")
        message = CancelJob(orphan.node_id, orphan.job_id, msgspec.Raw(encode(cancel)))
        owner = await insist(lambda: self._router.owners.node_owner(orphan.node_id))
        if owner is not None and await insist(lambda: self._router.push(owner, message)) is not Push.OK:
            log.warning("a node works on a job nobody waits for", node=orphan.node_id, job=orphan.job_id)
        await self._give_up(orphan)

    async def _give_up(self, orphan: Orphan) -> None:
        log.info("job lost with its instance", job=orphan.job_id)
        why = "lost with the instance that had it"
        await self._record(orphan, Event.GIVE_UP, End(Outcome.FAILED, ErrorCode.INSTANCE_LOST, why))
        await self._close(orphan)

    async def _record(self, orphan: Orphan, event: Event, end: End) -> None:
        """FINISHED, then told. ALREADY it may have been by ourselves, when Redis did it and could not say so; whoever
        was told by another does not listen twice."""
        by_node = event is Event.RESULT
        advanced = await insist(
            lambda: self._jobs.advance(
                orphan.job_id,
                event,
                attempt=orphan.attempt if by_node else None,
                node=orphan.node_id if by_node else "",
                outcome=end.outcome,
                code=end.code,
            )
        )
        if advanced not in (Reply.STALE, Reply.WRONG_NODE):
            self.metrics.jobs.labels(end.outcome, code_label(end.code)).inc()
            await insist(lambda: self._tell(orphan, end))

    async def _tell(self, orphan: Orphan, end: End) -> None:
        """Its session may have been resumed elsewhere, or may yet be. Of a job that was never recorded nobody but its
        session knows whose it is."""
        if not orphan.session_id:
            return
        await self._mail.deliver(
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
            )
        )

    async def _close(self, orphan: Orphan) -> None:
        if orphan.node_id:
            given = await insist(lambda: self._reservations.release(orphan.node_id, orphan.job_id, 0))
            if given is Given.FREED:
                self.on_freed(orphan.node_id)
        await insist(lambda: self._jobs.advance(orphan.job_id, Event.RELEASE, attempt=None))
        await insist(lambda: self._jobs.undriven(self.instance, orphan.job_id))


async def insist(step: Callable[[], Awaitable[T]]) -> T:
    """Until Redis has done it, and says so. The step may be repeated."""
    while True:
        try:
            return await step()
        except StoreError:
            await asyncio.sleep(REDIS_PAUSE_S)
