"""What to do next with one job: a signal, the state of its attempt and the time decide on steps.

    signal ─▶ JobRun.on(signal, now) ─▶ steps ─▶ the driver executes them ─▶ the last step's result is a signal

The driver waits for the next signal, or until `deadline()`, when the steps bring none. Nothing here awaits, reads a
clock or knows Redis. These hold for every sequence of signals:

- A job ends once: by `Finish`, or by `FinishUnrecorded` if nothing of it was recorded.
- Only the attempt under way counts: signals of an earlier attempt, or of another node, change nothing.
- A cancelled job gets no other node. A result that has arrived still counts.
- A parked job (see `deadlines`) never moves: its audio is in the buffer of its node.
- A job that failed at one node is tried once more. If the second attempt brings nothing better, the first result
  stands.

Which node is chosen is decided in `placement`, and how the record changes in `job`.
"""

from dataclasses import replace
from math import inf
from typing import assert_never

from dragoman.domain import job_signals as signals
from dragoman.domain.deadlines import AckTimeout, AttemptTimeout, DeadlineSettings, JobClock, JobTimeout, SlotTimeout
from dragoman.domain.job import Event, Outcome
from dragoman.domain.job_signals import (
    EMPTY_REASONS,
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
    ModelMissing,
    NodeFailed,
    NodeWorked,
    NoteProgress,
    Progress,
    Reassign,
    Send,
    Signal,
    Step,
    Steps,
    WaitForNode,
    belongs_to,
    end_by,
)
from dragoman.domain.placement import Assign, Wait
from dragoman.domain.pool import AUTO
from dragoman.protocol.codec import is_final, reason_of
from dragoman.protocol.codes import CancelReason, ErrorCode
from dragoman.protocol.node import JobAck, JobAssign, JobResult, JobStarted, NodePartial

_WORSE_THAN_UNTRANSLATED = frozenset({Outcome.FAILED, Outcome.EXPIRED, Outcome.EMPTY})


def _may_be_retried(result: JobResult) -> bool:
    """Whether another node could do better: the job failed, and not for a reason that lies in the job itself."""
    return not result.success and (result.error is None or not is_final(result.error))


def _is_untranslated(result: JobResult, assignment: JobAssign) -> bool:
    """Whether there is text but no translation, where one was asked for. With `auto` the languages may be the same."""
    wanted = assignment.pipeline.use_nmt and assignment.src_lang not in (assignment.tgt_lang, AUTO)
    text, translated = (result.text_asr or "").strip(), (result.text_translated or "").strip()
    return wanted and result.success and bool(text) and not translated and reason_of(result.extra) not in EMPTY_REASONS


class JobRun:
    def __init__(
        self, settings: DeadlineSettings, now: float, assignment: JobAssign, *, may_park: bool = False
    ) -> None:
        """`may_park`: the audio was cut by length, so an old node keeps it until the next job of its turn."""
        self.clock = JobClock(settings, now, may_park)
        self.node_id, self.epoch = "", 0
        self.cancelled: str | None = None  # the reason
        self._assignment = assignment
        self._progress: Event | None = None  # what the attempt has reported: nothing, ACK, START
        self._sent_at: float | None = None  # to a node that acknowledges jobs
        self._ack_ms: float | None = None
        self._node_back_by: float | None = None  # the node is lost and may come back until then
        self._turn_over = self._overtaken = False
        self._move_code, self._excluded = "", frozenset[str]()
        self._first_end: End | None = None  # of the attempt that failed, once the job is tried again

    @property
    def attempt(self) -> int:
        return self.clock.attempt

    @property
    def takes_progress(self) -> bool:
        """Whether progress can be handled at once, without the driver's queue."""
        return self.clock.is_dispatched and self.cancelled is None

    def deadline(self) -> float | None:
        at = self.clock.next_deadline()
        if self._node_back_by is None:
            return at
        return self._node_back_by if at is None else min(at, self._node_back_by)

    def waits_for_node(self, attempt: int) -> bool:
        """Whether the attempt is under way and its node is lost, but may come back."""
        return attempt == self.attempt and self._node_back_by is not None

    def cancel(self, reason: str) -> None:
        """From now on the job gets no other node."""
        self.cancelled = reason

    # -- the table -------------------------------------------------------------------------------

    def on(self, signal: Signal, now: float) -> Steps:
        match signal:
            case signals.Answered():
                return self._answered(signal, now)
            case signals.Sent():
                self.clock.dispatched(now, signal.acks)
                self._sent_at, self._ack_ms = signal.at if signal.acks else None, None
                return (BareStep.NOTIFY_SENT,)
            case Assign():
                self.node_id, self.epoch, self._progress, self._node_back_by = signal.node_id, signal.epoch, None, None
                return (Send(signal),)
            case signals.ReadyToPlace(begun):
                if self.cancelled is not None and not begun:
                    return (FinishUnrecorded(End(Outcome.CANCELLED, self.cancelled)),)
                return (BareStep.PLACE,)
            case Wait():
                return self._no_node_found(signal, now)
            case signals.Duplicate(job_id):
                end = End(Outcome.CANCELLED, "DUPLICATE_REQUEST", f"answered by job {job_id}")
                return (FinishUnrecorded(end),)
            case BareSignal.DECLARED_DEAD:
                end = End(Outcome.FAILED, ErrorCode.INSTANCE_LOST, "its instance was declared dead")
                return (FinishUnrecorded(end),)
            case BareSignal.STORE_UNAVAILABLE:
                return self._give_up(ErrorCode.SCHEDULER_DEPENDENCY_DOWN, "Redis is unavailable", until=now)
            case BareSignal.DRIVER_FAILED:
                return self._give_up(ErrorCode.INTERNAL_ERROR, "the scheduler failed on this job", until=now)
            case BareSignal.TOO_LARGE:
                why = "the job is too large to be sent to its node"
                return self._give_up(ErrorCode.INVALID_MESSAGE, why)
            case BareSignal.REASSIGNED:
                return self._find_another()
            case signals.NotReassigned(why):
                return self._give_up(self._move_code, why)
            case signals.RetryChecked():
                return self._retry_checked(signal, now)
            case _ if self.cancelled is not None:
                return self._cancel(self.cancelled)
            case signals.CancelRequested(reason):
                return self._cancel(reason)
            case JobAck() | JobStarted() | NodePartial():
                return self._progressed(signal, now)
            case signals.AttemptLost():
                return self._lost(signal, now)
            case signals.AnotherNodeFree(attempt):
                return self._move_to_another("node_lost", now) if self.waits_for_node(attempt) else ()
            case BareSignal.TURN_OVER:
                self._turn_over = True
                self.clock.turn_ended(now)
                return self._nothing_kept()
            case signals.Overtaken(attempt):
                self._overtaken = self._overtaken or attempt == self.attempt
                return self._nothing_kept()
            case BareSignal.DEADLINE_PASSED:
                return self._deadline_passed(now)
            case _:
                assert_never(signal)

    # -- an attempt under way --------------------------------------------------------------------

    def _progressed(self, message: Progress, now: float) -> Steps:
        if message.node_id != self.node_id:
            return ()
        if isinstance(message, NodePartial):
            return (*self._progress_to(Event.START, now), ForwardPartial(message))
        if message.attempt_id != self.attempt:
            return ()
        return self._progress_to(Event.ACK if isinstance(message, JobAck) else Event.START, now)

    def _progress_to(self, event: Event, now: float) -> Steps:
        before = self._progress
        if before is Event.START or before is event:
            return ()
        self._progress = event
        if before is None:
            self.clock.acked()
            if self._sent_at is not None:
                self._ack_ms = round((now - self._sent_at) * 1000, 1)
        return (NoteProgress(event, before is None),)

    def _answered(self, answer: signals.Answered, now: float) -> Steps:
        result = answer.result
        if not belongs_to(result, self.node_id, self.attempt):
            return (BareStep.DROP_STALE,)
        end = end_by(result, self.node_id, self._ack_ms, is_text=self._assignment.text is not None)
        if result.success:
            node: Step = NodeWorked(self.clock.work_s(now))
        elif result.error is not None and result.error.code == ErrorCode.MODEL_NOT_AVAILABLE:
            node = ModelMissing(result.error)
            if self.clock.may_retry(now):
                return (
                    BareStep.RESULT_RECEIVED,
                    node,
                    *self._end_attempt("model_not_available", ErrorCode.MODEL_NOT_AVAILABLE, now),
                )
        else:
            node = NodeFailed()
        if reason := self._reason_to_retry(answer, now):
            return BareStep.RESULT_RECEIVED, node, CheckRetry(end, reason)
        return BareStep.RESULT_RECEIVED, node, self._finish(Event.RESULT, end, answered=result.success)

    def _reason_to_retry(self, answer: signals.Answered, now: float) -> str:
        """Why the job gets its one retry on another node; empty if it does not."""
        if _may_be_retried(answer.result):
            reason = "job_failed"
        elif answer.had_later and _is_untranslated(answer.result, self._assignment):
            reason = "untranslated"
        else:
            return ""
        left = self._first_end is None and self.clock.may_retry(now) and not self.clock.parked
        return reason if left else ""

    def _retry_checked(self, checked: signals.RetryChecked, now: float) -> Steps:
        end = checked.end
        if not checked.possible:
            return (self._finish(Event.RESULT, end, answered=end.outcome is not Outcome.FAILED),)
        self._first_end = end
        return self._end_attempt(checked.reason, ErrorCode.PROCESSING_ERROR, now, failed=True)

    def _lost(self, lost: signals.AttemptLost, now: float) -> Steps:
        """The job goes to another node at once. If the node keeps finished results, it may come back while no other
        node is free."""
        if lost.attempt != self.attempt or self._node_back_by is not None:
            return ()
        if lost.grace_s:
            self._node_back_by = now + lost.grace_s
            return (WaitForNode(self.attempt, self._node_back_by),)
        return self._move_to_another(lost.reason, now, undelivered=not lost.delivered)

    def _nothing_kept(self) -> Steps:
        """An old node that answered a later job of a turn that is over has no result for this one."""
        if not (self._turn_over and self._overtaken and self.clock.parked):
            return ()
        return (self._finish(Event.RESULT, End(Outcome.EMPTY, node_id=self.node_id)),)

    def _deadline_passed(self, now: float) -> Steps:
        if self._node_back_by is not None and now >= self._node_back_by:
            return self._move_to_another("node_lost", now)
        match self.clock.due(now):
            case None:
                return ()
            case AckTimeout():
                return (NodeFailed(), *self._end_attempt("ack_timeout", ErrorCode.JOB_TIMEOUT, now, cancel=True))
            case AttemptTimeout():
                # It would have taken longer still: the next attempt there gets more time.
                failed = NodeFailed(self.clock.work_s(now))
                return (failed, *self._end_attempt("attempt_timeout", ErrorCode.JOB_TIMEOUT, now, cancel=True))
            case SlotTimeout():
                return (BareStep.RELEASE_SLOT,)
            case JobTimeout():
                end = End(Outcome.EXPIRED, ErrorCode.JOB_TIMEOUT, "the job took too long")
                return CancelAtNode("timeout"), self._finish(Event.EXPIRE, end)
            case missed:
                assert_never(missed)

    # -- the next attempt ------------------------------------------------------------------------

    def _move_to_another(self, reason: str, now: float, *, undelivered: bool = False) -> Steps:
        return self._end_attempt(reason, ErrorCode.NODE_UNAVAILABLE, now, undelivered=undelivered)

    def _end_attempt(
        self,
        reason: str,
        code: ErrorCode,
        now: float,
        *,
        cancel: bool = False,
        undelivered: bool = False,
        failed: bool = False,
    ) -> Steps:
        """Try another node, if there is time, and an attempt left unless this one never reached its node."""
        clock, ended = self.clock, EndAttempt(reason, cancel)
        self._node_back_by = None
        if clock.parked or not (clock.may_retry(now) or (undelivered and now < clock.job_deadline)):
            return (ended, *self._give_up(code, f"given up after {clock.attempt} attempts: {reason}"))
        self._move_code, self._excluded = code, frozenset((self.node_id,) if undelivered else ())
        return ended, Reassign(clock.attempt, reason, failed)

    def _find_another(self) -> Steps:
        self.clock.reassigned()
        self.node_id = ""
        if self.cancelled is not None:
            return BareStep.NOTIFY_MOVED, self._cancelled_end(self.cancelled)
        return BareStep.NOTIFY_MOVED, FindAnother(self.attempt, self._excluded, self.clock.job_deadline)

    def _no_node_found(self, found: Wait, now: float) -> Steps:
        """The first placement's receipt is recorded with the job, that of a later one with its end."""
        if self.cancelled is not None:
            return (self._cancelled_end(self.cancelled),)
        first = self.attempt == 1
        code = ErrorCode.NO_AVAILABLE_NODE if first else self._move_code
        why = f"no {'' if first else 'other '}node for this job: {found.why(now)}"
        end = End(Outcome.FAILED, code, why, receipt=None if first else found.receipt)
        if self._first_end is not None and self._first_end.outcome is Outcome.FAILED:
            end = replace(self._first_end, message=f"{self._first_end.message} ({why})", receipt=end.receipt)
        return (self._finish(Event.GIVE_UP, end),)

    # -- the end ---------------------------------------------------------------------------------

    def _cancel(self, reason: str) -> Steps:
        # A node merges parked audio into the next job of the turn: it must keep that of a skipped utterance.
        if reason == CancelReason.SKIPPED and self.clock.parked:
            return (self._cancelled_end(reason),)
        return CancelAtNode(reason), self._cancelled_end(reason)

    def _cancelled_end(self, reason: str) -> Finish:
        return self._finish(Event.CANCEL, End(Outcome.CANCELLED, reason))

    def _give_up(self, code: str, why: str, until: float = inf) -> Steps:
        return (self._finish(Event.GIVE_UP, End(Outcome.FAILED, code, why), until=until),)

    def _finish(self, event: Event, end: End, *, until: float = inf, answered: bool = False) -> Finish:
        """Text without translation is better than a retry that failed."""
        first = self._first_end
        if first is not None and first.outcome is Outcome.OK and end.outcome in _WORSE_THAN_UNTRANSLATED:
            end = first
        by_node = event is Event.RESULT
        return Finish(
            event,
            end,
            self.attempt if by_node else None,
            self.node_id if by_node else "",
            min(until, self.clock.job_deadline),
            answered,
        )
