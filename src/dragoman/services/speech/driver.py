"""Drives one job from placing to its end: places, times, fails over, records, releases.

    place ─▶ assign ─▶ wait ─┬─ result ──────────────▶ FINISHED ─▶ told ─▶ slot back, RELEASED
       ▲                     ├─ cancelled, out of time ─▶ FINISHED
       └── next attempt ◀────┴─ node lost, silent, or without its model

One task a job, in the instance that cut the utterance; nobody else places or times it. A job that ends tells
its listener after FINISHED is recorded, or, with Redis away, when its time is over. What is written at the end is
left to `settlement`.
"""

import asyncio
from collections import deque
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
import structlog

from dragoman.domain.deadlines import AckTimeout, AttemptTimeout, DeadlineSettings, JobClock, JobTimeout, SlotTimeout
from dragoman.domain.job import Event, Outcome, Reply
from dragoman.domain.placement import Assign, Receipt, Wait
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import CancelReason, ErrorCode, NodeFeature
from dragoman.protocol.node import JobAck, JobCancel, JobResult, JobStarted, NodePartial
from dragoman.protocol.peer import Assign as AssignMessage
from dragoman.protocol.peer import CancelJob
from dragoman.services.speech import messages
from dragoman.services.speech.answers import counts, end_by, is_untranslated, may_be_retried
from dragoman.services.speech.happenings import AnotherFree, Cancelled, Happening, Lost, Overtaken, TurnOver
from dragoman.services.speech.order import End, Order
from dragoman.services.speech.placing import Ended, Exists, Placing, RedisDown
from dragoman.services.speech.settlement import Settlement
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Push

if TYPE_CHECKING:
    from dragoman.services.speech.dispatcher import Dispatcher
    from dragoman.services.speech.local_nodes import AboutJob

log = structlog.get_logger(__name__)

# A label of a metric is not for nodes to make up.
_CODES = frozenset(str(code) for code in ErrorCode)


_UNTRANSLATED_IS_BETTER = frozenset({Outcome.FAILED, Outcome.EXPIRED, Outcome.EMPTY})


def code_label(code: str) -> str:
    """A code as metrics know it: whatever a node makes up is one of the others."""
    return code if not code or code in _CODES else "OTHER"


class Driver:
    def __init__(self, order: Order, shop: "Dispatcher", deadlines: DeadlineSettings) -> None:
        self.order, self.shop = order, shop
        self._placing = Placing(shop.placer, order, self._write_frame)
        self._settlement = Settlement(order, shop)
        self.clock = JobClock(deadlines, monotonic(), order.held_by_node)
        self.node_id = ""
        self.epoch = 0
        self.taken = False  # the node has said that it has the job
        self.ended = False
        self.cancelled: str | None = None  # the reason, from the moment it is heard
        self._turn_over = self._overtaken = False
        self.lost_at: float | None = None  # the node may come back until its grace is over
        self.task: asyncio.Task[None] | None = None
        self._frame = b""  # job_assign, of the attempt under way
        self._failed: End | None = None  # of the attempt that failed, once another node was given the job
        self._told_dispatched = False
        self._started = 0  # the attempt whose start is recorded
        self._progressed: Event | None = None  # to be written at the end of this turn of the loop
        self._events: deque[AboutJob | Happening] = deque()
        self._wake: asyncio.Future[None] | None = None

    # -- what happens to the job -----------------------------------------------------------------

    def hear(self, event: "AboutJob | Happening") -> None:
        """Progress changes nothing the task waits for, so it is not woken for it."""
        if self._told_dispatched and not self._events and isinstance(event, JobAck | JobStarted | NodePartial):
            self._heard_progress(event)
            return
        if isinstance(event, Cancelled):
            self.cancelled = event.reason
        self._events.append(event)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def unread(self) -> "list[AboutJob]":
        """What its node sent while the end of the job was being recorded."""
        return [event for event in self._events if isinstance(event, JobResult)]

    def begin(self) -> None:
        """What can be asked of Redis before `run` comes to it. Later jobs of a turn wait for those before them."""
        if self.order.line.jobs > 1:
            return
        try:
            self._placing.begin()
        except Exception:  # which `run` will meet as well, and then whoever listens is told
            log.exception("a job cannot be placed", job=self.order.job_id, trace_id=self.order.trace_id)

    async def run(self) -> None:
        order = self.order
        try:
            await order.place.my_turn()
            if self.cancelled is not None and not self._placing.begun:
                self._told(End(Outcome.CANCELLED, self.cancelled))
                return
            placed = await self._placing.place()
        finally:
            order.place.leave()
            if self._placing.binds_turn:
                self.shop.turn_bound(order)
        self._stage("placed")
        match placed:
            case Assign():
                await self.shop.placer.sequence.my_turn(order)
                await self._assign(placed)
                self.shop.placer.sequence.leave(order)
                self.shop.unlock(order)
                await self._watch()
            case Wait():
                why = f"no node for this job: {placed.why(monotonic())}"
                await self._found_nobody(ErrorCode.NO_AVAILABLE_NODE, why)
                self.shop.unlock(order)
            case RedisDown():
                await self._fail(ErrorCode.SCHEDULER_DEPENDENCY_DOWN, "Redis is away", at_once=True)
            case Exists():
                self._told(End(Outcome.CANCELLED, "DUPLICATE_REQUEST", f"answered by job {placed.job_id}"))
            case Ended():
                self._told(End(Outcome.FAILED, ErrorCode.INSTANCE_LOST, "its instance was taken for dead"))

    async def _watch(self) -> None:
        while not self.ended:
            event = await self._next()
            if not self.shop.may_act():
                await self.shop.wait_may_act()
            if self.cancelled is not None and not isinstance(event, JobResult):
                event = Cancelled(self.cancelled)  # whatever came before it: a cancelled job is not run again
            match event:
                case None:
                    await self._time_is_up()
                case Lost():
                    await self._lost(event)
                case AnotherFree(attempt) if attempt == self.clock.attempt and self.lost_at is not None:
                    await self._failover("node_lost", ErrorCode.NODE_UNAVAILABLE, cancel=False)
                case TurnOver():
                    self._turn_over = True
                    self.clock.turn_ended(monotonic())
                    await self._nothing_kept()
                case Overtaken(attempt) if attempt == self.clock.attempt:
                    self._overtaken = True
                    await self._nothing_kept()
                case Cancelled(reason):
                    # The node merges parked audio into the next job of the turn: it must keep it.
                    if not (reason == CancelReason.SKIPPED and self.clock.parked):
                        self._cancel_at_node(reason)
                    await self._end(Event.CANCEL, End(Outcome.CANCELLED, reason))
                case JobResult():
                    await self._result(event)
                case NodePartial() | JobStarted() | JobAck():
                    self._heard_progress(event)

    def _heard_progress(self, event: JobAck | JobStarted | NodePartial) -> None:
        if self.ended or event.node_id != self.node_id:
            return
        if isinstance(event, NodePartial):
            self._progress(Event.START)
            self.order.listener.job_partial(self.order, event)
        elif event.attempt_id == self.clock.attempt:
            self._progress(Event.START if isinstance(event, JobStarted) else Event.ACK)

    async def _next(self) -> "AboutJob | Happening | None":
        """The next event, or None when a deadline passes."""
        if not self._events:
            loop = asyncio.get_running_loop()
            self._wake = loop.create_future()
            deadline = self._deadline()
            timer = None
            if deadline is not None:
                timer = loop.call_later(max(deadline - monotonic(), 0), self._alarm, self._wake)
            try:
                await self._wake
            finally:
                self._wake = None
                if timer is not None:
                    timer.cancel()
        return self._events.popleft() if self._events else None

    def _deadline(self) -> float | None:
        times = [at for at in (self.clock.next_deadline(), self.lost_at) if at is not None]
        return min(times, default=None)

    @staticmethod
    def _alarm(wake: "asyncio.Future[None]") -> None:
        if not wake.done():
            wake.set_result(None)

    # -- an attempt ------------------------------------------------------------------------------

    async def _assign(self, choice: Assign) -> None:
        """The attempt is recorded: send it. Whatever keeps it from the node is a lost node."""
        order = self.order
        node = self.shop.view.fleet.get(choice.node_id)
        self.node_id, self.epoch, self.taken, self.lost_at = choice.node_id, choice.epoch, False, None
        self._told_dispatched = False
        order.sent_to(choice.node_id)
        usual_ms = self.clock.attempt_limit_ms
        self.clock.attempt_limit_ms = self.shop.attempt_limit_ms(order, choice.node_id)
        if self.clock.attempt > 1 or choice.text_only or self.clock.attempt_limit_ms != usual_ms:
            self._write_frame(choice.text_only)
        message = AssignMessage(
            node_id=choice.node_id,
            epoch=choice.epoch,
            job_id=order.job_id,
            attempt=self.clock.attempt,
            driver=self.shop.instance,
            frame=msgspec.Raw(self._frame),
        )
        acks = node is not None and NodeFeature.JOB_ACK in node.features
        order.sent_at, order.ack_ms = monotonic() if acks else None, None
        verdict = await self._to_node(node.instance if node is not None else "", message)
        self._stage("dispatched")
        self.shop.dispatched(order)
        if verdict is Push.OK:
            self.clock.dispatched(monotonic(), acks)
            order.listener.job_dispatched(order, choice.node_id)
            self._told_dispatched = True
        elif verdict is Push.TOO_LARGE:
            await self._fail(ErrorCode.INVALID_MESSAGE, "the utterance is too large to be handed to its node")
        else:
            self.hear(Lost(f"assign_{verdict.lower()}", self.clock.attempt, delivered=False))

    def _write_frame(self, text_only: bool = False) -> None:
        order, clock = self.order, self.clock
        left_ms = clock.attempt_ms(monotonic())
        order.assignment = msgspec.structs.replace(order.assignment, attempt_id=clock.attempt, deadline_ms=left_ms)
        self._frame = encode(messages.without_voice(order.assignment) if text_only else order.assignment)

    async def _to_node(self, owner: str, message: AssignMessage) -> Push:
        try:
            return await self.shop.router.to_node(owner, message)
        except StoreError:
            return Push.GONE

    def _progress(self, event: Event) -> None:
        """ACK and START change nothing we wait for, so nobody waits for them."""
        if not self.taken:
            self.taken = True
            self.clock.acked()
            if self.order.sent_at is not None:
                self.order.ack_ms = round((monotonic() - self.order.sent_at) * 1000, 1)
            self._stage("acked")
            self.order.listener.job_taken(self.order)
        if self._started == self.clock.attempt:
            return  # one of many partials
        if self._progressed is None:
            asyncio.get_running_loop().call_soon(self._note_progress)
        self._progressed = Event.START if event is Event.START else self._progressed or event

    def _note_progress(self) -> None:
        """Nodes say ack and started in one breath: one step then does for both."""
        event, self._progressed = self._progressed, None
        if event is not None and not self.ended and self.node_id:
            if event is Event.START:
                self._started = self.clock.attempt
            self.shop.note(self.order.job_id, event, self.clock.attempt, self.node_id)

    async def _result(self, result: JobResult) -> None:
        order = self.order
        if not counts(result, self.node_id, self.clock.attempt):
            self.shop.metrics.dropped.labels("stale").inc()
            return
        self._stage("result")
        if not result.success and result.error is not None and result.error.code == ErrorCode.MODEL_NOT_AVAILABLE:
            await self.shop.unavailable(self.node_id, result.error)
            if self.clock.may_retry(monotonic()):
                await self._failover("model_not_available", ErrorCode.MODEL_NOT_AVAILABLE, cancel=False)
                return
        if result.success:
            self._note_work()
            self.shop.succeeded(self.node_id)
        elif result.error is None or result.error.code != ErrorCode.MODEL_NOT_AVAILABLE:  # which cools down by itself
            self.shop.failed(self.node_id)
        end = end_by(result, self.node_id)
        if why := self._why_retry(result):
            self._failed = end
            order.failed_on.add(self.node_id)
            await self._failover(why, ErrorCode.PROCESSING_ERROR, cancel=False)
            return
        await self._end(Event.RESULT, end)
        if not result.success:
            return
        self.shop.answered(order, self.node_id)
        log.debug("job ended", job=order.job_id, trace_id=order.trace_id, outcome=end.outcome)

    def _note_work(self) -> None:
        work_s = self.clock.work_s(monotonic())
        if work_s is not None:
            self.shop.track_record.took(self.node_id, work_s, self.order.audio_s)

    def _why_retry(self, result: JobResult) -> str:
        """Why the job gets its one retry on another node; empty if it does not. A parked job would tear its turn."""
        order = self.order
        if may_be_retried(result):
            why = "job_failed"
        elif self.node_id in order.later_on and is_untranslated(result, order.assignment):
            why = "untranslated"
        else:
            return ""
        left = self._failed is None and self.clock.may_retry(monotonic()) and not self.clock.parked
        return why if left and self.shop.placer.may_retry(order, self.node_id) else ""

    async def _nothing_kept(self) -> None:
        """An old node that answered a later job of a turn that is over had nothing to say to this one."""
        if self._turn_over and self._overtaken and self.clock.parked:
            await self._end(Event.RESULT, End(Outcome.EMPTY, node_id=self.node_id))

    async def _lost(self, lost: Lost) -> None:
        """The job goes to another node at once. If none is free, a node that keeps finished results may come back."""
        if lost.attempt != self.clock.attempt or self.lost_at is not None:
            return
        if lost.grace_s and not self.shop.placer.another_is_free(self.order):
            self.lost_at = monotonic() + lost.grace_s
            self.shop.tasks.spawn(self._watch_for_another(self.clock.attempt), "grace")
        else:
            await self._failover(lost.reason, ErrorCode.NODE_UNAVAILABLE, cancel=False, undelivered=not lost.delivered)

    async def _watch_for_another(self, attempt: int) -> None:
        while not self.ended and self.clock.attempt == attempt and self.lost_at is not None:
            left_s = self.lost_at - monotonic()
            if left_s <= 0:
                return
            if self.shop.placer.another_is_free(self.order):
                self.hear(AnotherFree(attempt))
                return
            await self.shop.view.changed(left_s)

    async def _time_is_up(self) -> None:
        if self.lost_at is not None and monotonic() >= self.lost_at:
            await self._failover("node_lost", ErrorCode.NODE_UNAVAILABLE, cancel=False)
            return
        match self.clock.due(monotonic()):
            case AckTimeout():
                self.shop.failed(self.node_id)
                await self._failover("ack_timeout", ErrorCode.JOB_TIMEOUT, cancel=True)
            case AttemptTimeout():
                self._note_work()  # it would have taken longer still: the next attempt there gets more time
                self.shop.failed(self.node_id)
                await self._failover("attempt_timeout", ErrorCode.JOB_TIMEOUT, cancel=True)
            case SlotTimeout():
                await self._settlement.try_to_give_slot_back()
            case JobTimeout():
                self._cancel_at_node("timeout")
                why = "the job took too long"
                await self._end(Event.EXPIRE, End(Outcome.EXPIRED, ErrorCode.JOB_TIMEOUT, why))

    async def _failover(self, reason: str, code: ErrorCode, *, cancel: bool, undelivered: bool = False) -> None:
        """Try another node, if there is time, and an attempt left unless this one never reached its node."""
        order, clock = self.order, self.clock
        self.lost_at = None
        self.shop.metrics.failovers.labels(reason).inc()
        log.info("failover", job=order.job_id, trace_id=order.trace_id, node=self.node_id, reason=reason)
        if cancel:
            self._cancel_at_node(reason)
        now = monotonic()
        if clock.parked or not (clock.may_retry(now) or (undelivered and now < clock.job_deadline)):
            await self._fail(code, f"given up after {clock.attempt} attempts: {reason}")
            return
        try:
            reply = await self.shop.jobs.advance(order.job_id, Event.REASSIGN, attempt=clock.attempt, code=reason)
            await self._settlement.give_slot_back()
        except StoreError:
            await self._fail(ErrorCode.SCHEDULER_DEPENDENCY_DOWN, "Redis is away", at_once=True)
            return
        if reply is not Reply.OK:
            await self._fail(code, f"the job could not be reassigned: {reply}")
            return
        clock.reassigned()
        refused, self.node_id = {self.node_id} if undelivered else set(), ""
        order.listener.job_moved(order)
        await self._replace(code, refused)

    async def _replace(self, code: ErrorCode, refused: set[str]) -> None:
        if self.cancelled is not None:  # while the attempt before was ended
            await self._end(Event.CANCEL, End(Outcome.CANCELLED, self.cancelled))
            return
        patience_s = self.shop.placer.settings.placement_wait_ms / 1000
        give_up_at = min(monotonic() + patience_s, self.clock.job_deadline)
        try:
            placed = await self.shop.placer.replace(self.order, self.clock.attempt, give_up_at, refused)
        except StoreError:
            await self._fail(ErrorCode.SCHEDULER_DEPENDENCY_DOWN, "Redis is away", at_once=True)
            return
        match placed:
            case Assign():
                await self._assign(placed)
            case Wait():
                why = f"no other node for this job: {placed.why(monotonic())}"
                await self._found_nobody(code, why, placed.receipt)
            case None:
                await self._fail(code, "the job was changed by somebody else")

    def _cancel_at_node(self, reason: str) -> None:
        if not self.node_id:
            return
        node = self.shop.view.fleet.get(self.node_id)
        if node is not None:
            frame = encode(JobCancel(job_id=self.order.job_id, trace_id=self.order.trace_id, reason=reason))
            self.shop.send_cancel(node.instance, CancelJob(self.node_id, self.order.job_id, msgspec.Raw(frame)))

    # -- the end ---------------------------------------------------------------------------------

    async def give_in(self) -> None:
        """Something happened that nobody planned: whoever listens is told all the same."""
        if not self.ended:
            await self._fail(ErrorCode.INTERNAL_ERROR, "the scheduler failed on this job", at_once=True)

    async def _found_nobody(self, code: ErrorCode, why: str, receipt: Receipt | None = None) -> None:
        """That of a first placement is recorded with the job; a later one's comes with its end."""
        if self.cancelled is not None:
            await self._end(Event.CANCEL, End(Outcome.CANCELLED, self.cancelled))
            return
        failed = self._failed
        if failed is not None and failed.outcome is Outcome.FAILED:
            end = replace(failed, message=f"{failed.message} ({why})", receipt=receipt)
        else:
            end = End(Outcome.FAILED, code, why, receipt=receipt)
        await self._end(Event.GIVE_UP, end)

    async def _fail(self, code: ErrorCode, why: str, *, at_once: bool = False) -> None:
        await self._end(Event.GIVE_UP, End(Outcome.FAILED, code, why), at_once=at_once)

    async def _end(self, event: Event, end: End, *, at_once: bool = False) -> None:
        """Record FINISHED, then tell, then release. Text without translation is better than a failed retry."""
        if self._failed is not None and self._failed.outcome is Outcome.OK and end.outcome in _UNTRANSLATED_IS_BETTER:
            end = self._failed
        self._note_progress()  # or what the node said in the same breath would come too late
        attempt, node = (self.clock.attempt, self.node_id) if event is Event.RESULT else (None, "")
        until = monotonic() if at_once else self.clock.job_deadline
        finished = await self._settlement.finish(event, end, attempt, node, until)
        self._told(end)
        if finished:
            await self._settlement.release()
        else:
            self.shop.tasks.spawn(self._settlement.pay_later(event, end, attempt, node), "job-debt")

    def _told(self, end: End) -> None:
        self.ended = True
        self._stage("ended")
        # Codes of our own are few; that of a result is the node's.
        code = end.code if end.result is None else code_label(end.code)
        self.shop.metrics.jobs.labels(end.outcome, code).inc()
        self.order.listener.job_ended(self.order, end)

    def _stage(self, name: str) -> None:
        self.shop.stages[name].observe(monotonic() - self.order.cut_at)
