"""The decisions of a job's driver, without a driver: a signal in some state leads to these steps."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain import job_signals as signals
from dragoman.domain.deadlines import DeadlineSettings
from dragoman.domain.job import Outcome
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
    NoteProgress,
    Reassign,
    Send,
    Signal,
    Step,
    Steps,
    WaitForNode,
)
from dragoman.domain.placement import Assign, NoNode, Receipt, Wait
from dragoman.protocol.codec import raw
from dragoman.protocol.codes import CancelReason, ErrorCode
from dragoman.protocol.node import JobAck, JobAssign, JobError, JobResult, JobStarted, NodePartial
from dragoman.protocol.session import Pipeline
from support.tables import for_each

SETTINGS = DeadlineSettings(ack_timeout_ms=2_000, attempt_timeout_ms=12_000, job_timeout_ms=60_000, max_attempts=3)
ABOUT: dict[str, Any] = {"job_id": "j", "session_id": "s", "trace_id": "t"}
BROKEN = JobError("PROCESSING_ERROR", "the model is broken")
NO_MODEL = JobError(ErrorCode.MODEL_NOT_AVAILABLE, "not loaded")
FINAL = JobError("PROCESSING_ERROR", "too long", raw({"final": True}))


def assignment() -> JobAssign:
    return JobAssign(
        attempt_id=1,
        utterance_index=0,
        src_lang="en",
        tgt_lang="es",
        pipeline=Pipeline(use_asr=True, use_nmt=True, use_tts=True),
        audio=raw(""),
        audio_format="opus",
        sample_rate=16000,
        turn_id="turn",
        **ABOUT,
    )


def node(node_id: str, epoch: int = 1) -> Assign:
    return Assign(node_id, epoch, 4, None, Receipt(1))


def no_node(until: float = inf) -> Wait:
    return Wait(NoNode.ALL_FULL, Receipt(2, counts={"full": 2}), until)


def result(
    node_id: str = "n1", attempt: int = 1, *, translated: str = "hola", error: JobError | None = None
) -> JobResult:
    about: dict[str, Any] = {"attempt_id": attempt, "node_id": node_id, "utterance_index": 0, **ABOUT}
    return JobResult(success=error is None, text_asr="hello", text_translated=translated, error=error, **about)


def answered(*args: Any, had_later: bool = False, **fields: Any) -> signals.Answered:
    return signals.Answered(result(*args, **fields), had_later)


def fresh(*, may_park: bool = False) -> JobRun:
    return JobRun(SETTINGS, 0.0, assignment(), may_park=may_park)


def on_node(*, acks: bool = True, may_park: bool = False, attempt: int = 1, now: float = 1.0) -> JobRun:
    """A job whose attempt was sent to node n<attempt>."""
    run = fresh(may_park=may_park)
    for number in range(1, attempt + 1):
        run.on(node(f"n{number}"), now)
        run.on(signals.Sent(now, acks), now)
        if number < attempt:
            run.on(signals.AttemptLost("node_lost", number), now)
            run.on(BareSignal.REASSIGNED, now)
    return run


def parked() -> JobRun:
    return on_node(acks=False, may_park=True)


def cancelled(run: JobRun, reason: str = "socket closed") -> JobRun:
    run.cancel(reason)
    return run


def after(run: JobRun, *happened: Signal, now: float = 2.0) -> JobRun:
    for signal in happened:
        run.on(signal, now)
    return run


def retried(first: JobResult) -> JobRun:
    """A job whose first attempt ended with this result, on its second node."""
    run = on_node()
    *_, check = run.on(signals.Answered(first, had_later=True), 2.0)
    assert isinstance(check, CheckRetry)
    run.on(signals.RetryChecked(check.end, check.reason, possible=True), 2.0)
    return after(run, BareSignal.REASSIGNED, node("n2"), signals.Sent(2.0, acks=True))


def waiting_for_retry() -> JobRun:
    """A job that failed at its first node and waits for the second."""
    run = on_node()
    *_, check = run.on(answered(error=BROKEN), 2.0)
    assert isinstance(check, CheckRetry)
    run.on(signals.RetryChecked(check.end, check.reason, possible=True), 2.0)
    return after(run, BareSignal.REASSIGNED)


def shown(step: Step) -> str:
    """A step as the table below writes it."""
    match step:
        case Finish(event, end):
            return f"finish {event} {end.outcome} {end.code}".rstrip()
        case FinishUnrecorded(end):
            return f"finish unrecorded {end.outcome} {end.code}"
        case NoteProgress(event, first):
            return f"note {event}" + (" first" if first else "")
        case EndAttempt(reason, cancel):
            return f"end attempt {reason}" + (" cancel" if cancel else "")
        case CancelAtNode(reason):
            return f"cancel at node {reason}"
        case Reassign(attempt, reason, failed):
            return f"reassign {attempt} {reason}" + (" failed" if failed else "")
        case FindAnother(attempt, excluded):
            return f"find {attempt} not {'/'.join(sorted(excluded)) or 'any'}"
        case CheckRetry(_, reason):
            return f"check retry {reason}"
        case Send(choice):
            return f"send {choice.node_id}"
        case WaitForNode(attempt, until):
            return f"wait for node {attempt} until {until:g}"
    return step.name if isinstance(step, BareStep) else type(step).__name__


@dataclass(frozen=True)
class Row:
    state: Callable[[], JobRun]
    signal: Signal
    expected: tuple[str, ...]
    now: float = 2.0


LOST = signals.AttemptLost("node_lost", 1)
MOVE = ("end attempt node_lost", "reassign 1 node_lost")
OK = ("RESULT_RECEIVED", "NodeWorked", "finish result ok")
GONE = ("cancel at node socket closed", "finish cancel cancelled socket closed")

TABLE: dict[str, Row] = {
    # placing
    "its turn has come": Row(fresh, signals.ReadyToPlace(False), ("PLACE",)),
    "cancelled before Redis was asked": Row(
        lambda: cancelled(fresh()),
        signals.ReadyToPlace(False),
        ("finish unrecorded cancelled socket closed",),
    ),
    "cancelled after Redis was asked": Row(lambda: cancelled(fresh()), signals.ReadyToPlace(True), ("PLACE",)),
    "a node was found": Row(fresh, node("n1"), ("send n1",)),
    "a node was found for a cancelled job": Row(lambda: cancelled(fresh()), node("n1"), ("send n1",)),
    "no node was found": Row(fresh, no_node(), ("finish give_up failed NO_AVAILABLE_NODE",)),
    "no node was found for a cancelled job": Row(
        lambda: cancelled(fresh()), no_node(), ("finish cancel cancelled socket closed",)
    ),
    "another job has the request": Row(
        fresh, signals.Duplicate("other"), ("finish unrecorded cancelled DUPLICATE_REQUEST",)
    ),
    "the instance was declared dead": Row(fresh, BareSignal.DECLARED_DEAD, ("finish unrecorded failed INSTANCE_LOST",)),
    "Redis is unavailable": Row(
        fresh, BareSignal.STORE_UNAVAILABLE, ("finish give_up failed SCHEDULER_DEPENDENCY_DOWN",)
    ),
    "a bug in the driver": Row(on_node, BareSignal.DRIVER_FAILED, ("finish give_up failed INTERNAL_ERROR",)),
    # sending
    "sent": Row(lambda: after(fresh(), node("n1")), signals.Sent(1.0, True), ("NOTIFY_SENT",)),
    "too large for an inbox": Row(
        lambda: after(fresh(), node("n1")), BareSignal.TOO_LARGE, ("finish give_up failed INVALID_MESSAGE",)
    ),
    "the assignment bounced": Row(
        on_node,
        signals.AttemptLost("assign_bounced", 1, delivered=False),
        ("end attempt assign_bounced", "reassign 1 assign_bounced"),
    ),
    "the assignment of the last attempt bounced": Row(
        lambda: on_node(attempt=3),
        signals.AttemptLost("assign_gone", 3, delivered=False),
        ("end attempt assign_gone", "reassign 3 assign_gone"),
    ),
    # progress
    "acknowledged": Row(on_node, JobAck(attempt_id=1, node_id="n1", **ABOUT), ("note ack first",)),
    "started": Row(on_node, JobStarted(attempt_id=1, node_id="n1", **ABOUT), ("note start first",)),
    "started after it was acknowledged": Row(
        lambda: after(on_node(), JobAck(attempt_id=1, node_id="n1", **ABOUT)),
        JobStarted(attempt_id=1, node_id="n1", **ABOUT),
        ("note start",),
    ),
    "acknowledged after it was started": Row(
        lambda: after(on_node(), JobStarted(attempt_id=1, node_id="n1", **ABOUT)),
        JobAck(attempt_id=1, node_id="n1", **ABOUT),
        (),
    ),
    "acknowledged for an earlier attempt": Row(
        lambda: on_node(attempt=2), JobAck(attempt_id=1, node_id="n2", **ABOUT), ()
    ),
    "acknowledged by another node": Row(on_node, JobAck(attempt_id=1, node_id="n2", **ABOUT), ()),
    "a first partial": Row(
        on_node,
        NodePartial(node_id="n1", utterance_index=0, text="he", is_final=False, **ABOUT),
        ("note start first", "ForwardPartial"),
    ),
    "a partial of another node": Row(
        on_node, NodePartial(node_id="n2", utterance_index=0, text="he", is_final=False, **ABOUT), ()
    ),
    # results
    "a result": Row(on_node, answered(), OK),
    "a result of a cancelled job": Row(lambda: cancelled(on_node()), answered(), OK),
    "a result of a node that was lost and is back": Row(
        lambda: after(on_node(), signals.AttemptLost("node_lost", 1, grace_s=10)), answered(), OK
    ),
    "a result without text": Row(
        on_node,
        signals.Answered(JobResult(attempt_id=1, node_id="n1", utterance_index=0, success=True, **ABOUT)),
        ("RESULT_RECEIVED", "NodeWorked", "finish result empty"),
    ),
    "a result of an earlier attempt": Row(lambda: on_node(attempt=2), answered("n2", 1), ("DROP_STALE",)),
    "a result of an earlier node": Row(lambda: on_node(attempt=2), answered("n1", 2), ("DROP_STALE",)),
    "a failure": Row(on_node, answered(error=BROKEN), ("RESULT_RECEIVED", "NodeFailed", "check retry job_failed")),
    "a failure that lies in the job": Row(
        on_node, answered(error=FINAL), ("RESULT_RECEIVED", "NodeFailed", "finish result failed PROCESSING_ERROR")
    ),
    "a failure of a parked job": Row(
        parked, answered(error=BROKEN), ("RESULT_RECEIVED", "NodeFailed", "finish result failed PROCESSING_ERROR")
    ),
    "a failure of the last attempt": Row(
        lambda: on_node(attempt=3),
        answered("n3", 3, error=BROKEN),
        ("RESULT_RECEIVED", "NodeFailed", "finish result failed PROCESSING_ERROR"),
    ),
    "a second failure": Row(
        lambda: retried(result(error=BROKEN)),
        answered("n2", 2, error=BROKEN),
        ("RESULT_RECEIVED", "NodeFailed", "finish result failed PROCESSING_ERROR"),
    ),
    "another node may retry": Row(
        on_node,
        signals.RetryChecked(End(Outcome.FAILED, "PROCESSING_ERROR"), "job_failed", possible=True),
        ("end attempt job_failed", "reassign 1 job_failed failed"),
    ),
    "no other node may retry": Row(
        on_node,
        signals.RetryChecked(End(Outcome.FAILED, "PROCESSING_ERROR"), "job_failed", possible=False),
        ("finish result failed PROCESSING_ERROR",),
    ),
    "a missing model": Row(
        on_node,
        answered(error=NO_MODEL),
        ("RESULT_RECEIVED", "ModelMissing", "end attempt model_not_available", "reassign 1 model_not_available"),
    ),
    "a missing model at the last attempt": Row(
        lambda: on_node(attempt=3),
        answered("n3", 3, error=NO_MODEL),
        ("RESULT_RECEIVED", "ModelMissing", "finish result failed MODEL_NOT_AVAILABLE"),
    ),
    "text without its translation": Row(on_node, answered(translated=""), OK),
    "text without its translation from a node that had a later utterance": Row(
        on_node,
        answered(translated="", had_later=True),
        ("RESULT_RECEIVED", "NodeWorked", "check retry untranslated"),
    ),
    "a failure after text without its translation": Row(
        lambda: retried(result(translated="")),
        answered("n2", 2, error=BROKEN),
        ("RESULT_RECEIVED", "NodeFailed", "finish result ok"),
    ),
    # losses
    "its node is lost": Row(on_node, LOST, MOVE),
    "its node is lost and may come back": Row(
        on_node, signals.AttemptLost("node_lost", 1, grace_s=10), ("wait for node 1 until 12",)
    ),
    "the loss is signalled again": Row(
        lambda: after(on_node(), signals.AttemptLost("node_lost", 1, grace_s=10)), LOST, ()
    ),
    "the node of an earlier attempt is lost": Row(lambda: on_node(attempt=2), LOST, ()),
    "the node of the last attempt is lost": Row(
        lambda: on_node(attempt=3),
        signals.AttemptLost("node_lost", 3),
        ("end attempt node_lost", "finish give_up failed NODE_UNAVAILABLE"),
    ),
    "the node of a parked job is lost": Row(
        parked, LOST, ("end attempt node_lost", "finish give_up failed NODE_UNAVAILABLE")
    ),
    "another node is free": Row(
        lambda: after(on_node(), signals.AttemptLost("node_lost", 1, grace_s=10)), signals.AnotherNodeFree(1), MOVE
    ),
    "another node is free and the job does not wait": Row(on_node, signals.AnotherNodeFree(1), ()),
    "the node did not come back": Row(
        lambda: after(on_node(), signals.AttemptLost("node_lost", 1, grace_s=10)),
        BareSignal.DEADLINE_PASSED,
        MOVE,
        now=12.0,
    ),
    "the node of a cancelled job is lost": Row(lambda: cancelled(on_node()), LOST, GONE),
    # the next attempt
    "reassigned": Row(lambda: after(on_node(), LOST), BareSignal.REASSIGNED, ("NOTIFY_MOVED", "find 2 not any")),
    "reassigned after it was not delivered": Row(
        lambda: after(on_node(), signals.AttemptLost("assign_gone", 1, delivered=False)),
        BareSignal.REASSIGNED,
        ("NOTIFY_MOVED", "find 2 not n1"),
    ),
    "reassigned and cancelled": Row(
        lambda: cancelled(after(on_node(), LOST)),
        BareSignal.REASSIGNED,
        ("NOTIFY_MOVED", "finish cancel cancelled socket closed"),
    ),
    "not reassigned": Row(
        lambda: after(on_node(), LOST),
        signals.NotReassigned("changed"),
        ("finish give_up failed NODE_UNAVAILABLE",),
    ),
    "no other node was found": Row(
        lambda: after(on_node(), LOST, BareSignal.REASSIGNED),
        no_node(),
        ("finish give_up failed NODE_UNAVAILABLE",),
    ),
    "no other node was found for a job that failed": Row(
        waiting_for_retry,
        no_node(),
        ("finish give_up failed PROCESSING_ERROR",),
    ),
    # time
    "nothing is due": Row(on_node, BareSignal.DEADLINE_PASSED, ()),
    "not acknowledged in time": Row(
        on_node,
        BareSignal.DEADLINE_PASSED,
        ("NodeFailed", "end attempt ack_timeout cancel", "reassign 1 ack_timeout"),
        now=3.0,
    ),
    "the attempt takes too long": Row(
        lambda: after(on_node(), JobAck(attempt_id=1, node_id="n1", **ABOUT)),
        BareSignal.DEADLINE_PASSED,
        ("NodeFailed", "end attempt attempt_timeout cancel", "reassign 1 attempt_timeout"),
        now=13.0,
    ),
    "the job takes too long": Row(
        on_node,
        BareSignal.DEADLINE_PASSED,
        ("cancel at node timeout", "finish expire expired JOB_TIMEOUT"),
        now=60.0,
    ),
    "the slot of a parked job": Row(parked, BareSignal.DEADLINE_PASSED, ("RELEASE_SLOT",), now=13.0),
    # turns and cancelling
    "cancelled": Row(lambda: cancelled(on_node()), signals.CancelRequested("socket closed"), GONE),
    "skipped while it is parked": Row(
        lambda: cancelled(parked(), CancelReason.SKIPPED),
        signals.CancelRequested(CancelReason.SKIPPED),
        ("finish cancel cancelled SKIPPED",),
    ),
    "its turn is over": Row(parked, BareSignal.TURN_OVER, ()),
    "its node answered a later job of an open turn": Row(parked, signals.Overtaken(1), ()),
    "its turn is over and its node answered a later job": Row(
        lambda: after(parked(), BareSignal.TURN_OVER), signals.Overtaken(1), ("finish result empty",)
    ),
    "its turn is over and another attempt was overtaken": Row(
        lambda: after(parked(), BareSignal.TURN_OVER), signals.Overtaken(7), ()
    ),
    "a job that is not parked is overtaken in a turn that is over": Row(
        lambda: after(on_node(), BareSignal.TURN_OVER), signals.Overtaken(1), ()
    ),
}


@for_each(TABLE.values())
def test_signal_leads_to_these_steps(row: Row) -> None:
    assert tuple(map(shown, row.state().on(row.signal, row.now))) == row.expected


def test_every_kind_of_signal_and_step_is_in_the_table() -> None:
    assert {type(row.signal) for row in TABLE.values()} == set(Signal.__args__)
    taken = {type(step) for row in TABLE.values() for step in row.state().on(row.signal, row.now)}
    assert taken == set(Step.__args__)


def test_failure_that_no_other_node_can_retry_has_both_reasons() -> None:
    (finish,) = waiting_for_retry().on(no_node(), 3.0)
    assert isinstance(finish, Finish)
    assert finish.end.message == "the model is broken (no other node for this job: all full)"
    assert finish.end.receipt is not None


def test_end_waits_for_redis_until_the_job_deadline_unless_redis_is_known_to_be_unavailable() -> None:
    *_, finish = on_node().on(answered(), 2.0)
    (at_once,) = on_node().on(BareSignal.STORE_UNAVAILABLE, 2.0)
    assert isinstance(finish, Finish)
    assert isinstance(at_once, Finish)
    assert (finish.until, at_once.until) == (60.0, 2.0)


def test_result_carries_the_time_to_the_acknowledgement() -> None:
    run = after(on_node(), JobAck(attempt_id=1, node_id="n1", **ABOUT), now=1.25)
    *_, finish = run.on(answered(), 2.0)
    assert isinstance(finish, Finish)
    assert finish.end.ack_ms == 250.0


class Simulation:
    """A driver whose nodes, Redis and clock are drawn by the test."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int], *, may_park: bool, acks: bool) -> None:
        self._draw, self._acks = draw, acks
        self.now, self.run = 0.0, fresh(may_park=may_park)
        self.taken: list[Step] = []
        self.sent: list[tuple[int, str]] = []
        self.ends: list[tuple[Step, Signal]] = []

    def pick(self, *options: Signal) -> Signal:
        return options[self._draw(st.integers(0, len(options) - 1))]

    def follow(self, signal: Signal) -> None:
        following: Signal | None = signal
        while following is not None:
            cause = following
            todo: Steps = self.run.on(following, self.now)
            following = None
            for step in todo:
                assert not self.ends, "a job ends once"
                self.taken.append(step)
                following = self.execute(step, cause)

    def execute(self, step: Step, cause: Signal) -> Signal | None:
        match step:
            case BareStep.PLACE:
                return self.pick(
                    node("n1"),
                    no_node(),
                    signals.Duplicate("x"),
                    BareSignal.DECLARED_DEAD,
                    BareSignal.STORE_UNAVAILABLE,
                )
            case FindAnother(attempt):
                assert self.run.cancelled is None, "a cancelled job gets no other node"
                return self.pick(node(f"n{attempt}"), node("n1"), no_node(), signals.NotReassigned("changed"))
            case Send(choice):
                self.sent.append((self.run.attempt, choice.node_id))
                return self.pick(signals.Sent(self.now, self._acks), BareSignal.TOO_LARGE)
            case Reassign():
                assert not self.run.clock.parked, "a parked job does not move"
                return self.pick(BareSignal.REASSIGNED, signals.NotReassigned("moved on"), BareSignal.STORE_UNAVAILABLE)
            case CheckRetry(end, reason):
                return signals.RetryChecked(end, reason, possible=bool(self._draw(st.integers(0, 1))))
            case Finish() | FinishUnrecorded():
                self.ends.append((step, cause))
        return None

    def outside(self) -> Signal:
        """Something of this attempt, of an earlier one, or of another node."""
        attempt = self._draw(st.integers(max(self.run.attempt - 1, 1), self.run.attempt))
        by = self.pick_name()
        return self.pick(
            answered(by, attempt),
            answered(by, attempt, translated="", had_later=True),
            answered(by, attempt, error=BROKEN),
            answered(by, attempt, error=NO_MODEL),
            JobAck(attempt_id=attempt, node_id=by, **ABOUT),
            JobStarted(attempt_id=attempt, node_id=by, **ABOUT),
            signals.AttemptLost("node_lost", attempt),
            signals.AttemptLost("node_lost", attempt, grace_s=5.0),
            signals.AttemptLost("assign_gone", attempt, delivered=False),
            signals.AnotherNodeFree(attempt),
            BareSignal.TURN_OVER,
            signals.Overtaken(attempt),
            signals.CancelRequested("socket closed"),
            BareSignal.DEADLINE_PASSED,
        )

    def pick_name(self) -> str:
        return ("n1", "n2", self.run.node_id or "n3")[self._draw(st.integers(0, 2))]


@given(data=st.data(), may_park=st.booleans(), acks=st.booleans())
def test_job_ends_once_whatever_happens(data: st.DataObject, may_park: bool, acks: bool) -> None:
    here = Simulation(data.draw, may_park=may_park, acks=acks)
    here.follow(signals.ReadyToPlace(begun=True))
    for _ in range(data.draw(st.integers(0, 12))):
        if here.ends:
            break
        here.now += data.draw(st.sampled_from([0.0, 1.0, 5.0, 20.0]))
        signal = here.outside()
        if isinstance(signal, signals.CancelRequested):
            here.run.cancel(signal.reason)
        here.follow(signal)
    if not here.ends:
        here.follow(BareSignal.TURN_OVER)  # a session that ends, ends its turns
    for _ in range(20):
        if here.ends:
            break
        deadline = here.run.deadline()
        assert deadline is not None, "an open job of a turn that is over has a deadline"
        here.now = max(here.now, deadline)
        here.follow(BareSignal.DEADLINE_PASSED)
    ((end, cause),) = here.ends
    attempts = [attempt for attempt, _ in here.sent]
    assert attempts == sorted(set(attempts)), "an attempt is sent once"
    if isinstance(end, Finish) and end.answered:
        answer = cause.end.result if isinstance(cause, signals.RetryChecked) else cause.result  # type: ignore[union-attr]
        assert answer is not None
        assert (answer.attempt_id, answer.node_id) == here.sent[-1], "only the attempt under way is heard"
