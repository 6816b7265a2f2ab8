"""What the driver of a job can do next: the steps that `job_run` decides on."""

from dataclasses import dataclass
from enum import Enum, auto

from dragoman.domain.job import Event
from dragoman.domain.job_signals import End
from dragoman.domain.placement import Assign
from dragoman.protocol.node import JobError, NodePartial


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
