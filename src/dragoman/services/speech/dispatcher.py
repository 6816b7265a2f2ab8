"""All jobs that this instance drives: starts a driver for each request, and passes messages of nodes to it."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from time import monotonic

import structlog

from dragoman.domain.deadlines import DeadlineSettings
from dragoman.domain.job_run import JobRun
from dragoman.domain.job_signals import AttemptLost, BareSignal, CancelRequested, JobMessage, Overtaken
from dragoman.domain.release import Drop, Settled
from dragoman.protocol.codec import decode_node
from dragoman.protocol.codes import NodeFeature
from dragoman.protocol.node import JobResult
from dragoman.protocol.peer import Bounced, FromNode
from dragoman.services.loops import PacedQueue, Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import InboxFull, Router
from dragoman.services.speech.driver import Driver
from dragoman.services.speech.fleet_view import FleetView, NodeTransport
from dragoman.services.speech.job_placement import JobPlacement
from dragoman.services.speech.job_records import JobMetrics, JobRecords
from dragoman.services.speech.job_request import JobRequest, Listener
from dragoman.services.speech.node_health import NodeHealth
from dragoman.services.speech.orphans import Orphans
from dragoman.services.speech.placer import Placer
from dragoman.store.inbox import PushReply

log = structlog.get_logger(__name__)


class Dispatcher:
    def __init__(
        self,
        instance: str,
        placer: Placer,
        router: Router,
        records: JobRecords,
        view: FleetView,
        health: NodeHealth,
        orphans: Orphans,
        metrics: Metrics,
        tasks: Tasks,
        deadlines: DeadlineSettings,
        *,
        node_grace_ms: int,
        max_waiting: int,
        wait_for_lease: Callable[[], Awaitable[None]],
    ) -> None:
        self.instance = instance
        self._placer, self._router, self._records, self._view = placer, router, records, view
        self._health, self._orphans, self._metrics, self._tasks = health, orphans, metrics, tasks
        self._nodes, self._job_metrics = NodeTransport(instance, view, router, tasks), JobMetrics(metrics)
        self._deadlines, self._node_grace_ms, self._wait_for_lease = deadlines, node_grace_ms, wait_for_lease
        self._driven: dict[str, Driver] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._waiting, self._max_waiting = set[str](), max_waiting  # jobs that were not sent to a node yet
        self._idle = asyncio.Event()
        self._idle.set()
        self._by_session: dict[str, set[str]] = defaultdict(set)
        self._by_account: Counter[str] = Counter()  # open jobs
        self._cancelling: PacedQueue[tuple[str, str]] = PacedQueue(lambda cancelled: self.cancel(*cancelled))

    def __len__(self) -> int:
        return len(self._driven)

    # -- requests --------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether so many jobs wait that the next one is refused at once."""
        return len(self._waiting) >= self._max_waiting

    def open_jobs(self, account: str) -> int:
        """Of all sessions of this client on this instance."""
        return self._by_account[account]

    def take(self, request: JobRequest, state_written: "asyncio.Future[bool] | None" = None) -> None:
        """`state_written`: of a session that can resume, whether Redis knows that this index is used."""
        deadlines = self._deadlines
        if request.timeout_ms is not None:
            deadlines = replace(deadlines, job_timeout_ms=request.timeout_ms)
        driver = Driver(
            request,
            JobRun(deadlines, monotonic(), request.assignment, may_park=request.may_park),
            JobPlacement(self._placer, request, state_written),
            self._nodes,
            self._records,
            self._health,
            self._job_metrics,
            self._tasks,
            self._wait_for_lease,
        )
        job_id = request.job_id
        self._waiting.add(job_id)
        driver.begin()
        self._driven[job_id] = driver
        self._idle.clear()
        self._by_session[request.session_id].add(job_id)
        self._by_account[request.account] += 1
        self._metrics.driven.set(len(self._driven))
        self._running[job_id] = self._tasks.spawn(self._drive(driver), "driver")

    async def _drive(self, driver: Driver) -> None:
        request = driver.request
        try:
            await driver.place()
            self._waiting.discard(request.job_id)
            answered_by = await driver.watch()
            if answered_by is not None and not request.is_text:
                self._answered(request, answered_by)
        except Exception:
            log.exception("driver failed", job=request.job_id, trace_id=request.trace_id)
            await driver.fail()
        finally:
            driver.close()
            self._forget(request)
            self._dropped(driver.run.node_id, driver.unread())

    def _forget(self, request: JobRequest) -> None:
        self._waiting.discard(request.job_id)
        self._running.pop(request.job_id, None)
        if self._driven.pop(request.job_id, None) is not None:
            self._by_account[request.account] -= 1
            if not self._by_account[request.account]:
                del self._by_account[request.account]
        if not self._driven:
            self._idle.set()
        jobs = self._by_session.get(request.session_id)
        if jobs is not None:
            jobs.discard(request.job_id)
            if not jobs:
                del self._by_session[request.session_id]
        self._metrics.driven.set(len(self._driven))

    def _answered(self, request: JobRequest, node_id: str) -> None:
        """A node that answered a job will not answer the earlier jobs of the turn that are still parked there."""
        for driver in self._of_session(request.session_id):
            earlier = driver.request
            same_turn = earlier.turn_queue is request.turn_queue and earlier.index < request.index
            if earlier.may_park and same_turn and driver.run.node_id == node_id:
                driver.on_signal(Overtaken(driver.run.attempt))

    def _of_session(self, session_id: str) -> Iterable[Driver]:
        return [self._driven[job_id] for job_id in self._by_session.get(session_id, ())]

    def cancel_session(self, session_id: str, reason: str) -> None:
        for job_id in list(self._by_session.get(session_id, ())):
            self._cancelling.add((job_id, reason))

    def cancel(self, job_id: str, reason: str) -> None:
        driver = self._driven.get(job_id)
        if driver is not None:
            driver.on_signal(CancelRequested(reason))

    def remote_job_settled(self, job_id: str, state: Settled | Drop) -> None:
        """A session of this instance settled an index whose job was created for an earlier owner of the session."""
        self._records.note_release_state(job_id, state.value)

    def redirect(self, session_id: str, before: Listener, listener: Listener) -> None:
        """The session was resumed on another instance: from now on `listener` is notified of the jobs of `before`."""
        for driver in self._of_session(session_id):
            driver.redirect(before, listener)

    def turn_ended(self, session_id: str, turn_id: str) -> None:
        """The time of jobs that an old node may have parked for the rest of their turn runs from now."""
        for driver in self._of_session(session_id):
            if driver.request.may_park and driver.request.turn_queue.turn.id == turn_id:
                driver.on_signal(BareSignal.TURN_OVER)

    def is_elsewhere(self, job_id: str, node_id: str | None) -> bool:
        """Whether an unfinished job waits for a node, or is on another than `node_id`."""
        driver = self._driven.get(job_id)
        return driver is not None and not driver.ended and driver.run.node_id != node_id

    def waits_for_slot(self, job_id: str) -> bool:
        driver = self._driven.get(job_id)
        return driver is not None and driver.slot_at is None

    # -- messages of nodes -----------------------------------------------------------------------

    def on_node_message(self, node_id: str, message: JobMessage) -> None:
        """Of a local node."""
        if not self._deliver(node_id, message):
            self._dropped(node_id, [message])

    async def from_node(self, message: FromNode) -> None:
        """Of a node of another instance. If the job has no driver here, because an earlier incarnation of this instance
        was taken over, a result is sent on to the instance that adopted the job. Raises InboxFull: try again later."""
        received = [one for frame in message.frames if isinstance(one := decode_node(bytes(frame)), JobMessage)]
        unclaimed = [one for one in received if not self._deliver(message.node_id, one)]
        if any(isinstance(one, JobResult) for one in unclaimed):
            verdict = await self._router.to_adopter(self.instance, message)
            if verdict is PushReply.FULL:
                raise InboxFull(f"the inbox of the instance that adopted {message.job_id} is full")
            if verdict is PushReply.OK:
                return
        self._dropped(message.node_id, unclaimed)

    def _deliver(self, node_id: str, message: JobMessage) -> bool:
        driver = self._driven.get(message.job_id or "")
        if driver is None:
            return self._orphans.on_node_message(node_id, message)
        driver.on_signal(message)
        return True

    def _dropped(self, node_id: str, messages: Sequence[JobMessage]) -> None:
        """The job has ended. If it ended without a result, the late one is noted in its record and in the log."""
        self._job_metrics.dropped("finished", len(messages))
        for one in messages:
            if isinstance(one, JobResult) and one.success:
                self._tasks.spawn(self._late(node_id, one), "late-result")

    async def _late(self, node_id: str, result: JobResult) -> None:
        if await self._records.late_result(result.job_id, node_id):
            self._metrics.released.labels(Drop.LATE.value).inc()
            about = {"session": result.session_id, "index": result.utterance_index, "job": result.job_id}
            log.info("late result dropped", node=node_id, trace_id=result.trace_id, **about, limited=True, each="node")

    # -- lost nodes ------------------------------------------------------------------------------

    def bounced(self, message: Bounced) -> None:
        driver = self._driven.get(message.job_id)
        if driver is not None and driver.run.attempt == message.attempt and driver.run.node_id == message.node_id:
            driver.on_signal(AttemptLost("assign_bounced", message.attempt, delivered=False))
        # The owner does not have the node at this epoch, whatever it announced.
        self._view.lost(message.node_id, message.epoch)

    def node_lost(self, node_id: str, epoch: int) -> None:
        grace_s = self._grace_s(node_id)
        lost = [
            driver for driver in self._driven.values() if driver.run.node_id == node_id and driver.run.epoch <= epoch
        ]
        for driver in lost:
            driver.on_signal(AttemptLost("node_lost", driver.run.attempt, grace_s))
        if lost:
            self._health.lost(node_id, epoch)
        self._orphans.node_lost(node_id, epoch)

    def _grace_s(self, node_id: str) -> float:
        """How long a lost node may take to come back with what it finished."""
        return self._node_grace_ms / 1000 if self._view.has_feature(node_id, NodeFeature.RESUME) else 0.0

    # -- upkeep ----------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Renew the reservations of unfinished jobs on known nodes."""
        by_node: dict[str, list[str]] = defaultdict(list)
        for job_id, driver in self._driven.items():
            node_id = driver.slot_at
            if node_id is not None and not driver.ended and node_id in self._view.fleet:
                by_node[node_id].append(job_id)
        lost = await asyncio.gather(*(self._placer.renew(node_id, jobs) for node_id, jobs in by_node.items()))
        for node_id, jobs in zip(by_node, lost, strict=True):
            if jobs:
                log.warning("reservations of running jobs expired", node=node_id, jobs=len(jobs))

    async def drained(self, timeout_s: float) -> bool:
        """Wait until all jobs have ended; False on timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def abandon_all(self) -> None:
        """Other instances declared this one dead: they end these jobs and release their slots."""
        for driver in self._driven.values():
            driver.abandon()
        for task in self._running.values():
            task.cancel()
        self._driven.clear()
        self._running.clear()
        self._by_session.clear()
        self._by_account.clear()
        self._idle.set()
        self._view.fleet.release_all_slots()
