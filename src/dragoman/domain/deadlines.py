"""The clock of one job: its next deadline, and whether there is time for another attempt.

Three deadlines: the node has not acknowledged the job (only nodes that acknowledge at all), the attempt takes too
long, the job takes too long. The first two may lead to another attempt; the third ends the job.

How long an attempt may take depends on its node: a small GPU may need 20 s for 4 s of audio. `attempt_limit_ms` allows
three times what the node recently needed for as much audio (see `storm`), and 2 s; at least
`attempt_timeout_ms`, at most 0.6 of the job's time, so that another attempt is possible. An attempt of a text job gets
half of the time that its job has left.

The exception is a *parked* job. An old node, one that does not acknowledge, keeps the audio of a max-duration job in
its buffer until the turn continues or ends. Such a job has no deadline while its turn is open. It ends one attempt's
time after the turn, and never moves: that would split the turn. Its slot is released after one attempt's time.

A lost node or instance is not a matter of time: the caller moves the job and calls `reassigned`.
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
    """Release the slot of a parked job; the job stays open. Due once an attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class JobTimeout:
    attempt: int


Miss = AckTimeout | AttemptTimeout | SlotTimeout | JobTimeout


class JobClock:
    __slots__ = (
        "_acks",
        "_dispatched_at",
        "_may_park",
        "_slot_due_once",
        "_taken",
        "_turn_ended_at",
        "attempt",
        "attempt_limit_ms",
        "created_at",
        "settings",
    )

    def __init__(self, settings: DeadlineSettings, created_at: float, may_park: bool = False) -> None:
        """`may_park`: cut by max_duration or max_length, so an old node keeps it until the next job of its turn."""
        self.settings = settings
        self.created_at = created_at
        self.attempt = 1
        self.attempt_limit_ms = settings.attempt_timeout_ms  # of the attempt under way
        self._may_park = may_park
        self._turn_ended_at: float | None = None
        self._dispatched_at: float | None = None
        self._acks = False
        self._taken = False
        self._slot_due_once = False

    def dispatched(self, now: float, acks: bool) -> None:
        """The attempt begins; `acks`: its node advertises job_ack."""
        self._dispatched_at = now
        self._acks = acks

    def acked(self) -> None:
        """The node has the job: job_ack, job_started, or a first partial."""
        self._taken = True

    def turn_ended(self, now: float) -> None:
        if self._turn_ended_at is None:
            self._turn_ended_at = now

    def reassigned(self) -> None:
        """The attempt is over and the next waits for its node."""
        self.attempt += 1
        self.attempt_limit_ms = self.settings.attempt_timeout_ms
        self._dispatched_at = None
        self._acks = self._taken = self._slot_due_once = False

    def limit_attempt(self, limit_ms: int) -> None:
        """The time of the attempt under way, by what is known of its node."""
        self.attempt_limit_ms = limit_ms

    @property
    def is_dispatched(self) -> bool:
        return self._dispatched_at is not None

    @property
    def parked(self) -> bool:
        return self._may_park and self._dispatched_at is not None and not self._acks

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

    def half_left_ms(self, now: float) -> int:
        return max(int((self.job_deadline - now) * 500), 0)

    def work_s(self, now: float) -> float | None:
        """How long the node has had the attempt; None if no node has it, or it is parked."""
        return None if self._dispatched_at is None or self.parked else now - self._dispatched_at

    def next_deadline(self) -> float | None:
        """None only for a parked job whose turn is open and whose slot was released."""
        at = min(self._times())
        return None if at == inf else at

    def due(self, now: float) -> Miss | None:
        """The deadline that has passed, the most severe first. It stays due until the job is reassigned or ended."""
        job, attempt, ack, slot = self._times()
        if job <= now:
            return JobTimeout(self.attempt)
        if attempt <= now:
            return AttemptTimeout(self.attempt)
        if ack <= now:
            return AckTimeout(self.attempt)
        if slot <= now:
            self._slot_due_once = True
            return SlotTimeout(self.attempt)
        return None

    def _times(self) -> tuple[float, float, float, float]:
        """The deadlines of the job, the attempt, the acknowledgement and the slot; infinity where there is none."""
        if self._dispatched_at is None:
            return self.job_deadline, inf, inf, inf
        attempt_s = self.attempt_limit_ms / 1000
        attempt = self._dispatched_at + attempt_s
        if self.parked:
            end = inf if self._turn_ended_at is None else max(self._turn_ended_at, self._dispatched_at) + attempt_s
            return end, inf, inf, inf if self._slot_due_once else attempt
        waits_for_ack = self._acks and not self._taken
        ack = self._dispatched_at + self.settings.ack_timeout_ms / 1000 if waits_for_ack else inf
        return self.job_deadline, attempt, ack, inf
