"""The clock of one job: which patience runs out next, and whether another attempt is worth it.

Three deadlines: the node has not said it took the job (only nodes that say so at all), the attempt takes too long, the
job takes too long. The first two may lead to another attempt; the third ends the job.

How long an attempt may take depends on its node: a small GPU may need 20 s for 4 s of audio. `attempt_limit_ms` allows
three times what the node lately took for as much audio (see `track_record`), and 2 s; at least `attempt_timeout_ms`,
and at most 0.6 of the job's time, so that another attempt is possible.

The exception: audio of a max-duration job lies in the buffer of an old node — one that does not acknowledge — until
its turn goes on or ends. Such a job is *parked*: no deadline while the turn is open, one attempt's time after its end,
and then it is over, since moving it would tear the turn. Its slot goes back after one attempt's time all the same.

A lost node or instance is not a matter of time and not seen here; the caller moves the job and says so.
"""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    ack_timeout_ms: int = 2000
    attempt_timeout_ms: int = 12000
    job_timeout_ms: int = 60000
    max_attempts: int = 3


BASE_MS = 2000
TIMES_AS_LONG = 3
SHARE_OF_JOB = 0.6


def attempt_limit_ms(settings: DeadlineSettings, audio_s: float, slowness: float | None) -> int:
    """How long an attempt may take on a node of this `slowness`, its work time per second of audio; None: not known."""
    expected_ms = 0.0 if slowness is None else BASE_MS + audio_s * TIMES_AS_LONG * slowness * 1000
    return max(settings.attempt_timeout_ms, int(min(expected_ms, SHARE_OF_JOB * settings.job_timeout_ms)))


@dataclass(frozen=True, slots=True)
class AckTimeout:
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptTimeout:
    attempt: int


@dataclass(frozen=True, slots=True)
class SlotTimeout:
    """Give the slot of a parked job back; the job stays open. Told once an attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class JobTimeout:
    attempt: int


Miss = AckTimeout | AttemptTimeout | SlotTimeout | JobTimeout


class JobClock:
    __slots__ = (
        "_acks",
        "_dispatched_at",
        "_held_by_node",
        "_slot_told",
        "_taken",
        "_turn_ended_at",
        "attempt",
        "attempt_limit_ms",
        "created_at",
        "settings",
    )

    def __init__(self, settings: DeadlineSettings, created_at: float, held_by_node: bool = False) -> None:
        """`held_by_node`: cut by max_duration or max_length, so an old node may keep it until its turn goes on."""
        self.settings = settings
        self.created_at = created_at
        self.attempt = 1
        self.attempt_limit_ms = settings.attempt_timeout_ms  # of the attempt under way; the caller knows its node
        self._held_by_node = held_by_node
        self._turn_ended_at: float | None = None
        self._dispatched_at: float | None = None
        self._acks = False
        self._taken = False
        self._slot_told = False

    def dispatched(self, now: float, acks: bool) -> None:
        """The attempt begins; `acks`: its node advertises job_ack."""
        self._dispatched_at = now
        self._acks = acks

    def acked(self) -> None:
        """The node took the job: job_ack, job_started, or a first partial."""
        self._taken = True

    def turn_ended(self, now: float) -> None:
        if self._turn_ended_at is None:
            self._turn_ended_at = now

    def reassigned(self) -> None:
        """The attempt is over and the next waits for its node."""
        self.attempt += 1
        self.attempt_limit_ms = self.settings.attempt_timeout_ms
        self._dispatched_at = None
        self._acks = self._taken = self._slot_told = False

    @property
    def parked(self) -> bool:
        return self._held_by_node and self._dispatched_at is not None and not self._acks

    @property
    def job_deadline(self) -> float:
        return self.created_at + self.settings.job_timeout_ms / 1000

    def may_retry(self, now: float) -> bool:
        """Another attempt is left, and time to begin it."""
        return self.attempt < self.settings.max_attempts and now < self.job_deadline

    def attempt_ms(self, now: float) -> int:
        """How long an attempt that begins now may take."""
        left_ms = max(int((self.job_deadline - now) * 1000), 0)
        return min(self.attempt_limit_ms, left_ms)

    def work_s(self, now: float) -> float | None:
        """How long the attempt is with its node; None if it is with none, or lies in its buffer."""
        return None if self._dispatched_at is None or self.parked else now - self._dispatched_at

    def next_deadline(self) -> float | None:
        """None only for a parked job whose turn is open and whose slot went back."""
        at = min(self._times())
        return None if at == inf else at

    def due(self, now: float) -> Miss | None:
        """What has run out, the gravest first. The caller then reassigns or ends the job, or the same is due again."""
        job, attempt, ack, slot = self._times()
        if job <= now:
            return JobTimeout(self.attempt)
        if attempt <= now:
            return AttemptTimeout(self.attempt)
        if ack <= now:
            return AckTimeout(self.attempt)
        if slot <= now:
            self._slot_told = True
            return SlotTimeout(self.attempt)
        return None

    def _times(self) -> tuple[float, float, float, float]:
        """When the job, the attempt, the acknowledgement and the slot run out; infinity where nothing runs."""
        if self._dispatched_at is None:
            return self.job_deadline, inf, inf, inf
        attempt_s = self.attempt_limit_ms / 1000
        attempt = self._dispatched_at + attempt_s
        if self.parked:
            end = inf if self._turn_ended_at is None else max(self._turn_ended_at, self._dispatched_at) + attempt_s
            return end, inf, inf, inf if self._slot_told else attempt
        waits_for_ack = self._acks and not self._taken
        ack = self._dispatched_at + self.settings.ack_timeout_ms / 1000 if waits_for_ack else inf
        return self.job_deadline, attempt, ack, inf
