"""What can happen to a job, and how it ends: the signals that its driver gives to `job_run`.

A step is what the driver of a job does next: `job_run` decides on steps, by signals.
"""

from dataclasses import dataclass
from enum import Enum, auto

from dragoman.domain.job import Event, Outcome
from dragoman.domain.placement import Assign, Receipt, Wait
from dragoman.protocol.codec import reason_of
from dragoman.protocol.codes import EmptyReason, ErrorCode
from dragoman.protocol.node import JobAck, JobError, JobResult, JobStarted, NodePartial

MAX_REASON = 500  # characters of a node's failure that are recorded and sent on
EMPTY_REASONS = frozenset(EmptyReason)

JobMessage = JobAck | JobStarted | NodePartial | JobResult  # what a node sends about a job


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended."""

    outcome: Outcome
    code: str = ""
    message: str = ""
    result: JobResult | None = None
    node_id: str | None = None
    receipt: Receipt | None = None  # of a later placement that found no node: recorded with the end
    ack_ms: float | None = None  # from sending the job to the node's acknowledgement


# -- what a result means -----------------------------------------------------------------------------


def belongs_to(result: JobResult, node_id: str, attempt: int) -> bool:
    """Whether the result is of this attempt. NO_TEXT_ASSIGNED may carry the attempt of another job."""
    if result.node_id != node_id:
        return False
    return result.attempt_id == attempt or reason_of(result.extra) == EmptyReason.NO_TEXT_ASSIGNED


def end_by(result: JobResult, node_id: str, ack_ms: float | None = None, *, is_text: bool = False) -> End:
    """`is_text`: of a text job, which is empty without a translation, whatever else the node sends."""
    if not result.success:
        code = result.error.code if result.error is not None else ErrorCode.PROCESSING_ERROR
        why = result.error.message[:MAX_REASON] if result.error is not None else "the node gave no reason"
        return End(Outcome.FAILED, code, why, result, node_id, ack_ms=ack_ms)
    heard = not is_text and (result.text_asr or len(result.tts_audio) > 2)
    silent = not (heard or result.text_translated)
    outcome = Outcome.EMPTY if silent or reason_of(result.extra) in EMPTY_REASONS else Outcome.OK
    return End(outcome, "", "", result, node_id, ack_ms=ack_ms)


# -- signals -----------------------------------------------------------------------------------------


class BareSignal(Enum):
    """A signal without fields."""

    DECLARED_DEAD = auto()  # by other instances, before the job was recorded: the takeover ends the job
    STORE_UNAVAILABLE = auto()  # Redis did not answer for as long as the job may wait
    TOO_LARGE = auto()  # no inbox takes the assignment
    REASSIGNED = auto()  # it is recorded that the attempt is over
    TURN_OVER = auto()  # the job's turn has ended: an old node need not keep the audio any longer
    DEADLINE_PASSED = auto()
    DRIVER_FAILED = auto()  # a step raised something unexpected


@dataclass(frozen=True, slots=True)
class ReadyToPlace:
    """The earlier jobs of the turn have their nodes. `begun`: Redis was already asked for a slot."""

    begun: bool


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The request was bound before: `job_id` answers it."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Sent:
    """The assignment is on its way. `acks`: the node acknowledges jobs."""

    at: float
    acks: bool


@dataclass(frozen=True, slots=True)
class NotReassigned:
    """The record was changed by another instance."""

    why: str


@dataclass(frozen=True, slots=True)
class RetryChecked:
    """The answer to `CheckRetry`."""

    end: End
    reason: str
    possible: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """A job_result. `had_later`: the node has had a later utterance of the session, and an old node translates no
    earlier one after that."""

    result: JobResult
    had_later: bool = False


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """The node of an attempt is gone, or the assignment did not reach it. One loss may be signalled several times."""

    reason: str
    attempt: int
    grace_s: float = 0.0  # how long the node may take to come back with its result
    delivered: bool = True  # False: the node never had the job


@dataclass(frozen=True, slots=True)
class AnotherNodeFree:
    """The job waits for its lost node, and another node has a free slot."""

    attempt: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    reason: str


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The node of the attempt has answered a later job of the turn: it will not answer this one any more."""

    attempt: int


PlacementResult = Assign | Wait | Duplicate | BareSignal
StepResult = PlacementResult | Sent | NotReassigned | RetryChecked | AnotherNodeFree
OutsideSignal = AttemptLost | AnotherNodeFree | CancelRequested | Overtaken | BareSignal
Progress = JobAck | JobStarted | NodePartial
Signal = ReadyToPlace | StepResult | Answered | Progress | OutsideSignal


# -- steps -----------------------------------------------------------------------------------------


class BareStep(Enum):
    """A step without fields."""

    PLACE = auto()  # find the first node, reserve a slot, record the job
    NOTIFY_SENT = auto()
    NOTIFY_MOVED = auto()
    RESULT_RECEIVED = auto()  # by the attempt under way
    RELEASE_SLOT = auto()  # the job stays open without a slot
    DROP_STALE = auto()  # a result of an earlier attempt, or of another node


@dataclass(frozen=True, slots=True)
class Send:
    """Send the assignment to the node that was chosen."""

    choice: Assign


@dataclass(frozen=True, slots=True)
class NoteProgress:
    """Record ACK or START. `first`: nothing was known of this attempt before."""

    event: Event
    first: bool


@dataclass(frozen=True, slots=True)
class ForwardPartial:
    partial: NodePartial


@dataclass(frozen=True, slots=True)
class NodeWorked:
    """The node did a job, in `work_s` seconds unless the audio waited in its buffer."""

    work_s: float | None


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The node failed a job; by a time-out if it had the job for `work_s` seconds."""

    work_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelMissing:
    error: JobError


@dataclass(frozen=True, slots=True)
class CheckRetry:
    """Ask whether another node could take the job, now or when it has a free slot."""

    end: End
    reason: str


@dataclass(frozen=True, slots=True)
class WaitForNode:
    """The lost node may come back; signal if another node has a free slot before `until`."""

    attempt: int
    until: float


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """The attempt is over: count it. `cancel`: the node may still work on it."""

    reason: str
    cancel: bool


@dataclass(frozen=True, slots=True)
class CancelAtNode:
    reason: str


@dataclass(frozen=True, slots=True)
class Reassign:
    """Record that the attempt is over, release its slot. `failed`: its node must not get this job again."""

    attempt: int
    reason: str
    failed: bool


@dataclass(frozen=True, slots=True)
class FindAnother:
    """Find the node of the next attempt before `until`, at first none of `excluded`."""

    attempt: int
    excluded: frozenset[str]
    until: float


@dataclass(frozen=True, slots=True)
class Finish:
    """Record FINISHED, notify the listener, release the slot. If Redis is unavailable until `until`, notify first.

    `attempt` and `node_id` are set if the node ended the job, `answered` if by a successful result.
    """

    event: Event
    end: End
    attempt: int | None
    node_id: str
    until: float
    answered: bool = False


@dataclass(frozen=True, slots=True)
class FinishUnrecorded:
    """Notify the listener: this instance has recorded nothing of the job, and reserved nothing."""

    end: End


Step = (
    BareStep | Send | NoteProgress | ForwardPartial | NodeWorked | NodeFailed | ModelMissing | CheckRetry | WaitForNode
    | EndAttempt | CancelAtNode | Reassign | FindAnother | Finish | FinishUnrecorded
)  # fmt: skip
Steps = tuple[Step, ...]
