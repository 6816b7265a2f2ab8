"""Drives one job from placing to its end, by the steps that `domain/job_run` decides on.

    place ─▶ send ─▶ wait ─┬─ result ────────────────▶ FINISHED ─▶ listener ─▶ slot released, RELEASED
      ▲                    ├─ cancelled, out of time ─▶ FINISHED
      └── next attempt ◀───┴─ node lost, silent, or without its model

One task per job, on the instance that cut the utterance; no other instance places or times it. The listener is notified
after FINISHED is recorded or, if Redis is unavailable, when the job's time is over.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import assert_never

import msgspec
import structlog

from dragoman.domain import job_signals as signals
from dragoman.domain.job import Event, Outcome, Reply
from dragoman.domain.job_run import JobRun
from dragoman.domain.job_signals import (
    BareSignal,
    BareStep,
    CancelAtNode,
    CheckRetry,
    End,
    EndAttempt,
    FindAnother,
    Finish,
    FinishUnrecorded,
    ForwardPartial,
    JobMessage,
    ModelMissing,
    NodeFailed,
    NodeWorked,
    NoteProgress,
    OutsideSignal,
    Reassign,
    Send,
    Signal,
    Step,
    StepResult,
    WaitForNode,
)
from dragoman.domain.placement import Assign, NoNode, Wait
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.node import JobAck, JobResult, JobStarted, NodePartial
from dragoman.services.loops import Tasks, resolve
from dragoman.services.speech import messages
from dragoman.services.speech.fleet_view import NodeTransport
from dragoman.services.speech.job_placement import JobPlacement
from dragoman.services.speech.job_records import JobMetrics, JobRecords
from dragoman.services.speech.job_request import JobRequest, Listener
from dragoman.services.speech.node_health import NodeHealth
from dragoman.store.errors import StoreError
from dragoman.store.inbox import PushReply

log = structlog.get_logger(__name__)


class Driver:
    def __init__(
        self,
        request: JobRequest,
        run: JobRun,
        placement: JobPlacement,
        nodes: "NodeTransport",
        records: JobRecords,
        health: NodeHealth,
        metrics: JobMetrics,
        tasks: Tasks,
        wait_for_lease: Callable[[], Awaitable[None]],
    ) -> None:
        self.request, self.run, self.ended = request, run, False
        self._placement, self._listener = placement, request.listener
        self._nodes, self._records, self._health, self._metrics = nodes, records, health, metrics
        self._tasks, self._wait_for_lease = tasks, wait_for_lease
        self._frame = b""  # job_assign, of the attempt under way
        self._answered_by: str | None = None
        self._unwritten: Event | None = None  # progress to be written at the end of this turn of the loop
        self._queue: deque[JobMessage | OutsideSignal] = deque()
        self._wake: asyncio.Future[None] | None = None

    @property
    def slot_at(self) -> str | None:
        """The node where the job has a slot."""
        return self._placement.slot.node_id if self._placement.slot is not None else None

    # -- signals ---------------------------------------------------------------------------------

    def on_signal(self, signal: JobMessage | OutsideSignal) -> None:
        """Progress changes nothing that the task waits for, so it does not wake the task."""
        run = self.run
        if isinstance(signal, JobAck | JobStarted | NodePartial):
            if run.takes_progress and not self._queue and not self.ended:
                self._progress(signal)
                return
        elif isinstance(signal, signals.CancelRequested):
            run.cancel(signal.reason)
            self._placement.stop_waiting()
        self._queue.append(signal)
        if self._wake is not None:
            resolve(self._wake)

    def unread(self) -> list[JobResult]:
        """What its node sent while the end of the job was being recorded."""
        return [signal for signal in self._queue if isinstance(signal, JobResult)]

    def redirect(self, before: Listener, listener: Listener) -> None:
        """The session was resumed on another instance: notify `listener` where `before` was notified."""
        if self._listener is before:
            self._listener = listener

    def abandon(self) -> None:
        """Another instance has taken over the job: do nothing more. The session ended with the lease; what asked for a
        text job did not."""
        if self.request.is_text and not self.ended:
            end = End(Outcome.FAILED, ErrorCode.INSTANCE_LOST, "its instance was declared dead")
            asyncio.get_running_loop().call_soon(self._notify_end, end)
        self.ended = True

    # -- the job ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask Redis before the task starts. Later jobs of a turn wait for the earlier ones."""
        if self.request.turn_queue.jobs > 1:
            return
        try:
            self._placement.begin()
        except Exception:  # `place` raises it again, and then the listener is notified
            log.exception("job not placed", job=self.request.job_id, trace_id=self.request.trace_id)

    async def place(self) -> None:
        """Returns when the job was sent to its first node, or has ended."""
        try:
            await self.request.position.wait()
            await self._follow(signals.ReadyToPlace(self._placement.begun))
        finally:
            self.request.position.leave()

    async def watch(self) -> str | None:
        """Returns at the end of the job: the node that answered it successfully, or None."""
        while not self.ended:
            signal = await self._next()
            await self._wait_for_lease()
            await self._follow(signal)
        return self._answered_by

    async def fail(self) -> None:
        """Something unexpected happened: end the job all the same, so that the listener is notified."""
        if not self.ended:
            await self._follow(BareSignal.DRIVER_FAILED)

    def close(self) -> None:
        """The job delays no other job any more."""
        self._placement.leave_send_order()

    async def _next(self) -> Signal:
        if not self._queue:
            loop = asyncio.get_running_loop()
            self._wake = wake = loop.create_future()
            deadline = self.run.deadline()
            timer = None
            if deadline is not None:
                timer = loop.call_later(max(deadline - monotonic(), 0), resolve, wake)
            try:
                await wake
            finally:
                self._wake = None
                if timer is not None:
                    timer.cancel()
        if not self._queue:
            return BareSignal.DEADLINE_PASSED
        signal = self._queue.popleft()
        if not isinstance(signal, JobResult):
            return signal
        return signals.Answered(signal, self.request.latest.is_after(signal.node_id, self.request.index))

    async def _follow(self, signal: Signal) -> None:
        """Execute the steps that the signal leads to; the result of the last is a signal again."""
        following: Signal | None = signal
        while following is not None:
            todo, following = self.run.on(following, monotonic()), None
            for step in todo:
                following = await self._execute(step)

    async def _execute(self, step: Step) -> StepResult | None:
        run, request = self.run, self.request
        match step:
            case BareStep.RESULT_RECEIVED:
                self._metrics.stage("result", request)
            case NodeWorked(work_s):
                self._health.took(run.node_id, work_s, request)
                self._health.succeeded(run.node_id)
            case Finish():
                await self._finish(step)
            case BareStep.PLACE:
                return await self._place()
            case Send(choice):
                return await self._send(choice)
            case BareStep.NOTIFY_SENT:
                self._listener.job_dispatched(request, run.node_id, run.attempt)
            case NoteProgress():
                self._note_progress(step)
            case ForwardPartial(partial):
                self._listener.job_partial(request, partial)
            case NodeFailed(work_s):
                self._health.took(run.node_id, work_s, request)
                self._health.failed(run.node_id)
            case ModelMissing(error):
                await self._health.model_missing(run.node_id, error)
            case CheckRetry(end, reason):
                return signals.RetryChecked(end, reason, self._placement.may_retry(run.node_id))
            case WaitForNode():
                return self._wait_for_node(step)
            case BareStep.RELEASE_SLOT:
                await self._try_to_release_slot()
            case EndAttempt():
                self._end_attempt(step)
            case CancelAtNode(reason):
                self._cancel_at_node(reason)
            case Reassign():
                return await self._reassign(step)
            case BareStep.NOTIFY_MOVED:
                self._listener.job_moved(request)
            case FindAnother():
                return await self._find_another(step)
            case FinishUnrecorded(end):
                self._notify_end(end)
            case BareStep.DROP_STALE:
                self._metrics.dropped("stale")
            case _:
                assert_never(step)
        return None

    # -- placing and sending (Waiter) ------------------------------------------------------------

    def is_wanted(self) -> bool:
        return self.run.cancelled is None

    def waits(self, why: NoNode) -> None:
        self._listener.job_waits(self.request, why)

    def prepare(self) -> None:
        self._write_frame(text_only=False)

    async def _place(self) -> StepResult:
        try:
            placed = await self._placement.place(self)
        finally:
            self.request.position.leave()
        self._metrics.stage("placed", self.request)
        if isinstance(placed, Assign):
            await self._placement.wait_to_send()
        elif isinstance(placed, Wait):
            self._records.unlock(self.request)
        return placed

    async def _send(self, choice: Assign) -> StepResult | None:
        """The attempt is recorded: send it. Whatever keeps it from the node counts as a lost node."""
        run, request = self.run, self.request
        self._placement.sent_to(choice.node_id)
        usual_ms = run.clock.attempt_limit_ms
        run.clock.limit_attempt(
            run.clock.half_left_ms(monotonic())
            if request.is_text
            else self._health.attempt_limit_ms(choice.node_id, request)
        )
        if run.attempt > 1 or choice.text_only or run.clock.attempt_limit_ms != usual_ms:
            self._write_frame(choice.text_only)
        sent_at, acks = monotonic(), self._nodes.acknowledges(choice.node_id)
        verdict = await self._nodes.assign(choice, request.job_id, run.attempt, self._frame)
        self._metrics.stage("dispatched", request)
        if run.attempt == 1:
            self._placement.leave_send_order()
            self._records.unlock(request)
        if verdict is PushReply.OK:
            return signals.Sent(sent_at, acks)
        if verdict is PushReply.TOO_LARGE:
            return BareSignal.TOO_LARGE
        self.on_signal(signals.AttemptLost(f"assign_{verdict.lower()}", run.attempt, delivered=False))
        return None

    def _write_frame(self, text_only: bool) -> None:
        clock = self.run.clock
        left_ms = clock.attempt_ms(monotonic())
        assignment = msgspec.structs.replace(self.request.assignment, attempt_id=clock.attempt, deadline_ms=left_ms)
        self._frame = encode(messages.without_voice(assignment) if text_only else assignment)

    # -- progress --------------------------------------------------------------------------------

    def _progress(self, message: JobAck | JobStarted | NodePartial) -> None:
        for step in self.run.on(message, monotonic()):
            if isinstance(step, NoteProgress):
                self._note_progress(step)
            elif isinstance(step, ForwardPartial):
                self._listener.job_partial(self.request, step.partial)

    def _note_progress(self, step: NoteProgress) -> None:
        """ACK and START change nothing that the driver waits for, so it does not wait for them."""
        if step.first:
            self._metrics.stage("acked", self.request)
            self._listener.job_accepted(self.request)
        if self._unwritten is None:
            asyncio.get_running_loop().call_soon(self._write_progress)
        self._unwritten = step.event

    def _write_progress(self) -> None:
        """Nodes send ack and started in one write: one step then does for both."""
        event, self._unwritten = self._unwritten, None
        if event is not None and not self.ended and self.run.node_id:
            self._records.progress(self.request.job_id, event, self.run.attempt, self.run.node_id)

    # -- another node ----------------------------------------------------------------------------

    def _wait_for_node(self, step: WaitForNode) -> StepResult | None:
        if self._placement.another_is_free():
            return signals.AnotherNodeFree(step.attempt)
        self._tasks.spawn(self._signal_another(step), "grace")
        return None

    async def _signal_another(self, step: WaitForNode) -> None:
        def waits() -> bool:
            return not self.ended and self.run.waits_for_node(step.attempt)

        if await self._placement.when_another_is_free(step.until, waits):
            self.on_signal(signals.AnotherNodeFree(step.attempt))

    def _end_attempt(self, step: EndAttempt) -> None:
        request, reason = self.request, step.reason
        self._metrics.failover(reason)
        log.info("failover", job=request.job_id, trace_id=request.trace_id, node=self.run.node_id, reason=reason)
        if step.cancel:
            self._cancel_at_node(reason)

    async def _reassign(self, step: Reassign) -> StepResult:
        if step.failed:
            self._placement.failed_on(self.run.node_id)
        try:
            reply = await self._records.reassign(self.request.job_id, step.attempt, step.reason)
            await self._placement.release_slot()
        except StoreError:
            return BareSignal.STORE_UNAVAILABLE
        if reply is not Reply.OK:
            return signals.NotReassigned(f"the job could not be reassigned: {reply}")
        return BareSignal.REASSIGNED

    async def _find_another(self, step: FindAnother) -> StepResult:
        try:
            placed = await self._placement.replace(self, step.attempt, step.excluded, step.until)
        except StoreError:
            return BareSignal.STORE_UNAVAILABLE
        return placed if placed is not None else signals.NotReassigned("another instance changed the job")

    async def _try_to_release_slot(self) -> None:
        """The job continues. If Redis is unavailable, its slot is released when the job ends."""
        try:
            await self._placement.release_slot()
        except StoreError as error:
            log.warning("slot not released: no Redis", job=self.request.job_id, error=str(error), limited=True)

    def _cancel_at_node(self, reason: str) -> None:
        node_id, attempt, run = self.run.node_id, self.run.attempt, self.run
        if node_id:
            # Not if the node has the next attempt by now: it would cancel that one.
            self._nodes.cancel(
                node_id, self.request, reason, unless=lambda: run.node_id == node_id and run.attempt > attempt
            )

    # -- the end ---------------------------------------------------------------------------------

    async def _finish(self, step: Finish) -> None:
        self._write_progress()  # before the end, or it would be refused
        request, records, release_slot = self.request, self._records, self._placement.release_slot
        recorded = await records.finish(request.job_id, step, step.until)
        self._notify_end(step.end)
        if step.answered:
            self._answered_by = step.node_id
        if request.published is not None:
            await request.published
        if recorded is not None:
            await records.close(request.job_id, request.release_state, release_slot)
        else:
            records.finish_later(request.job_id, step, request.release_state, release_slot)

    def _notify_end(self, end: End) -> None:
        self.ended = True
        self._metrics.stage("ended", self.request)
        self._metrics.ended(end)
        self._listener.job_ended(self.request, end)
