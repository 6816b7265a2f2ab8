"""All jobs this instance drives: where orders come in and where nodes' words find their driver."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from dragoman.domain.deadlines import DeadlineSettings, attempt_limit_ms
from dragoman.domain.fleet import WHOLE_NODE
from dragoman.domain.job import Event
from dragoman.domain.release import Drop
from dragoman.domain.storm import Verdict
from dragoman.domain.track_record import TrackRecord
from dragoman.protocol.codec import decode_node, unavailable_model
from dragoman.protocol.codes import NodeFeature
from dragoman.protocol.node import JobError, JobResult
from dragoman.protocol.peer import Bounced, CancelJob, CoolingDown, FromNode, SlotFreed
from dragoman.services.loops import Tasks, unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.speech.driver import Driver
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.happenings import Cancelled, Lost, Overtaken, TurnOver
from dragoman.services.speech.local_nodes import AboutJob
from dragoman.services.speech.order import Listener, Order
from dragoman.services.speech.orphans import Orphans
from dragoman.services.speech.placer import Placer
from dragoman.services.speech.router import NoRoom, Router
from dragoman.services.upkeep.announcer import Announcer
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Push
from dragoman.store.jobs import Jobs
from dragoman.store.storm import Storm

log = structlog.get_logger(__name__)

REDIS_PAUSE_S = 0.25
CANCEL_PATIENCE_S = 5.0


async def _at_once() -> None:
    """For who has no lease to wait for."""


class Dispatcher:
    def __init__(
        self,
        instance: str,
        placer: Placer,
        router: Router,
        jobs: Jobs,
        view: FleetView,
        storm: Storm,
        announcer: Announcer,
        orphans: Orphans,
        metrics: Metrics,
        tasks: Tasks,
        deadlines: DeadlineSettings,
        *,
        node_grace_ms: int,
        max_waiting: int,
        failure_run: int,
        may_act: Callable[[], bool] = lambda: True,
        wait_may_act: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self.instance, self.placer, self.router, self.jobs, self.view = instance, placer, router, jobs, view
        self.metrics, self.tasks, self.announcer = metrics, tasks, announcer
        self._storm, self._orphans, self._deadlines, self._node_grace_ms = storm, orphans, deadlines, node_grace_ms
        self.may_act, self.wait_may_act = may_act, wait_may_act
        self.track_record, self._failure_run = TrackRecord(), failure_run
        self._driven: dict[str, Driver] = {}
        self._waiting, self._max_waiting = set[str](), max_waiting  # jobs that no node was given yet
        self._idle = asyncio.Event()
        self._idle.set()
        self._by_session: dict[str, set[str]] = defaultdict(set)
        self.stages = {
            name: metrics.stage.labels(name) for name in ("placed", "dispatched", "acked", "result", "ended")
        }
        view.on_lost.append(self.node_lost)
        view.storm = storm
        placer.on_freed = orphans.on_freed = self.slot_freed
        placer.is_wanted = self._is_wanted

    def __len__(self) -> int:
        return len(self._driven)

    # -- orders ----------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether one more would only wait for so long that nobody waits for it: it is better told so at once."""
        return len(self._waiting) >= self._max_waiting

    def take(self, order: Order) -> None:
        driver = Driver(order, self, self._deadlines)
        self._waiting.add(order.job_id)
        driver.begin()
        self._driven[order.job_id] = driver
        self._idle.clear()
        self._by_session[order.session_id].add(order.job_id)
        self.metrics.driven.set(len(self._driven))
        driver.task = self.tasks.spawn(self._drive(driver), "driver")

    async def _drive(self, driver: Driver) -> None:
        order = driver.order
        try:
            await driver.run()
        except Exception:
            log.exception("a driver failed", job=order.job_id, trace_id=order.trace_id)
            await driver.give_in()
        finally:
            self.placer.sequence.leave(order)
            self._waiting.discard(order.job_id)
            self._driven.pop(order.job_id, None)
            if not self._driven:
                self._idle.set()
            jobs = self._by_session.get(order.session_id)
            if jobs is not None:
                jobs.discard(order.job_id)
                if not jobs:
                    del self._by_session[order.session_id]
            self.metrics.driven.set(len(self._driven))
            self._dropped(driver.node_id, driver.unread())

    def cancel_session(self, session_id: str, reason: str) -> None:
        for job_id in list(self._by_session.get(session_id, ())):
            self._driven[job_id].hear(Cancelled(reason))
        self.view.wake()  # some of them may wait for a node

    def cancel(self, job_id: str, reason: str) -> None:
        driver = self._driven.get(job_id)
        if driver is not None:
            driver.hear(Cancelled(reason))
            self.view.wake()  # it may wait for a node

    def dispatched(self, order: Order) -> None:
        self._waiting.discard(order.job_id)

    def _is_wanted(self, order: Order) -> bool:
        driver = self._driven.get(order.job_id)
        return driver is None or driver.cancelled is None

    def redirect(self, session_id: str, before: Listener, listener: Listener) -> None:
        """The session went on elsewhere: from now on `listener` hears of the jobs `before` heard of."""
        for job_id in self._by_session.get(session_id, ()):
            order = self._driven[job_id].order
            if order.listener is before:
                order.listener = listener

    def turn_ended(self, session_id: str, turn_id: str) -> None:
        """Jobs an old node may have held back for the rest of their turn have their time running from now."""
        for job_id in self._by_session.get(session_id, ()):
            driver = self._driven[job_id]
            if driver.order.held_by_node and driver.order.line.turn.id == turn_id:
                driver.hear(TurnOver())

    def is_elsewhere(self, job_id: str, node_id: str | None) -> bool:
        """Whether an unfinished job waits for a node, or is on another than `node_id`."""
        driver = self._driven.get(job_id)
        return driver is not None and not driver.ended and driver.node_id != node_id

    # -- what nodes say --------------------------------------------------------------------------

    def node_said(self, node_id: str, message: AboutJob) -> None:
        """A node whose socket is here."""
        if not self._heard(node_id, message):
            self._dropped(node_id, [message])

    async def from_node(self, message: FromNode) -> None:
        """A node of another instance, which has our name from the assignment. That may be from an earlier life of ours,
        whose jobs were adopted: a result nobody here waits for goes on. Raises NoRoom: then it is to be tried again."""
        said = [one for frame in message.frames if isinstance(one := decode_node(bytes(frame)), AboutJob)]
        unheard = [one for one in said if not self._heard(message.node_id, one)]
        if any(isinstance(one, JobResult) for one in unheard):
            verdict = await self.router.to_adopter(self.instance, message)
            if verdict is Push.FULL:
                raise NoRoom(f"the inbox of who adopted {message.job_id} is full")
            if verdict is Push.OK:
                return
        self._dropped(message.node_id, unheard)

    def _dropped(self, node_id: str, unheard: list[AboutJob]) -> None:
        """The job is over. If it ended without a result, the record and the log say that one came late."""
        self.metrics.dropped.labels("finished").inc(len(unheard))
        for one in unheard:
            if isinstance(one, JobResult) and one.success:
                self.tasks.spawn(self._late(node_id, one), "late-result")

    async def _late(self, node_id: str, result: JobResult) -> None:
        if await self.jobs.late_result(result.job_id, node_id):
            self.metrics.released.labels(Drop.LATE.value).inc()
            about = {"session": result.session_id, "index": result.utterance_index, "job": result.job_id}
            log.info("late result dropped", node=node_id, trace_id=result.trace_id, **about, limited=True, each="node")

    def _heard(self, node_id: str, message: AboutJob) -> bool:
        driver = self._driven.get(message.job_id)
        if driver is None:
            return self._orphans.hear(node_id, message)
        driver.hear(message)
        return True

    def bounced(self, message: Bounced) -> None:
        driver = self._driven.get(message.job_id)
        if driver is not None and driver.clock.attempt == message.attempt and driver.node_id == message.node_id:
            driver.hear(Lost("assign_bounced", message.attempt, delivered=False))
        # Its owner does not have it: not at this epoch, whatever we were told.
        self.view.lost(message.node_id, message.epoch)

    def node_lost(self, node_id: str, epoch: int) -> None:
        grace_s = self.grace_s(node_id)
        lost = [driver for driver in self._driven.values() if driver.node_id == node_id and driver.epoch <= epoch]
        for driver in lost:
            driver.hear(Lost("node_lost", driver.clock.attempt, grace_s))
        if lost and self.track_record.is_news(node_id, epoch):
            self.failed(node_id)  # once, however many jobs it had: a node that dies of each job is a failing one
        self._orphans.node_lost(node_id, epoch)

    def answered(self, order: Order, node_id: str) -> None:
        """A node answered a job: what it still keeps of that turn's earlier ones, it will not answer any more."""
        for job_id in self._by_session.get(order.session_id, ()):
            driver = self._driven[job_id]
            kept = driver.order
            if kept.held_by_node and kept.line is order.line and kept.index < order.index and driver.node_id == node_id:
                driver.hear(Overtaken(driver.clock.attempt))

    def grace_s(self, node_id: str) -> float:
        """How long a lost node may take to come back with what it finished."""
        return self._node_grace_ms / 1000 if self.view.has_feature(node_id, NodeFeature.RESUME) else 0.0

    async def unavailable(self, node_id: str, error: JobError) -> None:
        """A node said MODEL_NOT_AVAILABLE: it cools down for that service, or whole if it keeps saying so."""
        details = unavailable_model(error)
        service = f"{details.service_id}@{details.service_version or ''}" if details is not None else "unknown"
        try:
            verdict = await self._storm.report(node_id, service)
        except StoreError as error:
            log.warning("a missing model is not reported: Redis is away", node=node_id, error=str(error), limited=True)
            return
        self.metrics.storm.labels(verdict).inc()
        if verdict is Verdict.DEBOUNCED:
            return
        what = WHOLE_NODE
        if verdict is Verdict.MARKED:
            what = self.view.type_of(node_id, details.service_id) if details is not None else service
        for_ms = int(self._storm.settings.unavailable_ttl_s * 1000)
        self.announcer.tell(CoolingDown(node_id, what, for_ms))

    def succeeded(self, node_id: str) -> None:
        """A node did a job: its run of failures is over, for everyone."""
        self.track_record.succeeded(node_id)
        if self.view.fleet.has_failed(node_id):
            self.tasks.spawn(self._recovered(node_id), "node-recovered")

    def failed(self, node_id: str) -> None:
        """A node failed a job. After a run of failures, or on probation, it is paused for everyone."""
        run = self.track_record.failed(node_id)
        if self._failure_run and (run >= self._failure_run or self.view.fleet.on_probation(node_id, monotonic())):
            self.tasks.spawn(self._pause(node_id, run), "node-paused")

    async def _pause(self, node_id: str, run: int) -> None:
        try:
            for_ms = await self._storm.pause(node_id)
        except StoreError as error:
            log.warning("a failing node is not paused: Redis is away", node=node_id, error=str(error))
            return
        if for_ms:
            self.metrics.pauses.inc()
            log.warning("node paused after a run of failures", node=node_id, failures=run, pause_s=for_ms / 1000)
            self.announcer.tell(CoolingDown(node_id, WHOLE_NODE, for_ms, failing=True))

    async def _recovered(self, node_id: str) -> None:
        try:
            await self._storm.recovered(node_id)
        except StoreError as error:
            log.warning("a node that works again stays on probation: Redis is away", node=node_id, error=str(error))
            return
        log.info("node works again", node=node_id)
        self.announcer.tell(CoolingDown(node_id, WHOLE_NODE, 0, failing=True))

    # -- what drivers ask ------------------------------------------------------------------------

    def attempt_limit_ms(self, order: Order, node_id: str) -> int:
        slowness = self.track_record.slowness(node_id)
        return attempt_limit_ms(self._deadlines, order.audio_s if slowness is not None else 0.0, slowness)

    def note(self, job_id: str, event: Event, attempt: int, node_id: str) -> None:
        """Progress nobody waits for."""
        unawaited(self.jobs.advancing(job_id, event, attempt=attempt, node=node_id))

    def unlock(self, order: Order) -> None:
        unawaited(self.jobs.unlock(order.request_id, order.job_id))

    def slot_freed(self, node_id: str) -> None:
        self.announcer.tell(SlotFreed(node_id))

    def send_cancel(self, owner: str, message: CancelJob) -> None:
        driver = self._driven[message.job_id]
        self.tasks.spawn(self._send_cancel(owner, message, driver, driver.clock.attempt), "cancel")

    async def _send_cancel(self, owner: str, message: CancelJob, driver: Driver, attempt: int) -> None:
        """Its slot is sold again, so the node should know; but not once it has the job anew, which it would drop."""

        async def tell() -> Push:
            anew = driver.node_id == message.node_id and driver.clock.attempt > attempt
            return Push.GONE if anew else await self.router.to_node(owner, message)

        try:
            await self.router.insist(owner, tell, CANCEL_PATIENCE_S)
        except NoRoom as error:
            log.warning(
                "a node works on, and nobody waits for it", node=message.node_id, error=str(error), limited=True
            )

    def turn_bound(self, order: Order) -> None:
        self.tasks.spawn(self._look_after_turn(order), "turn-bound")

    async def _look_after_turn(self, order: Order) -> None:
        """Who resumes a session writes that it is theirs, and then looks for its turn. We have written the turn, and
        now look whose the session is: if not ours any more, they may not know of this turn, and nobody would end it."""
        while True:
            try:
                if await self.router.owners.session_owner(order.session_id) != self.instance:
                    await self.placer.turns.end(order.session_id, order.line.turn.id)
                return
            except StoreError:  # the key has no TTL
                await asyncio.sleep(REDIS_PAUSE_S)

    # -- upkeep ----------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Keep the slots of our unfinished jobs on nodes that are there."""
        by_node: dict[str, list[str]] = defaultdict(list)
        for driver in self._driven.values():
            held = driver.order.held
            if held is not None and not driver.ended and held.node_id in self.view.fleet:
                by_node[held.node_id].append(driver.order.job_id)
        reservations = self.placer.reservations
        lost = await asyncio.gather(*(reservations.renew(node, jobs) for node, jobs in by_node.items()))
        for node_id, jobs in zip(by_node, lost, strict=True):
            if jobs:
                log.warning("slots lapsed under running jobs", node=node_id, jobs=len(jobs))

    async def drained(self, patience_s: float) -> bool:
        """Wait until no job is left; False if some are when patience ends."""
        try:
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def abandon_all(self) -> None:
        """We were buried: others end these jobs, and free the slots they had."""
        for driver in self._driven.values():
            driver.ended = True
            if driver.task is not None:
                driver.task.cancel()
        self._driven.clear()
        self._by_session.clear()
        self._idle.set()
        self.view.fleet.gave_all()
