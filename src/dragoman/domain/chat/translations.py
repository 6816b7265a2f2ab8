"""The requests for translations on one instance: which is looked up next, which becomes a job, which is late. Pure.

    ask ─▶ asked ──to_look_up──▶ (the row is read) ─ready──▶ waits for a job ──next_job──▶ running ─ended─▶ answered
             ▲                        │
             └────────unsaved─────────┘

- Users take turns, both for the look-up and for a job.
- Requests for the same message and language share one job.
- `late` answers what has waited for too long, in every state. So each request is answered exactly once.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from dragoman.domain.limits.fair_queue import FairQueue
from dragoman.domain.limits.rates import RatePerKey


class Receiver(Protocol):
    """Gets the answer."""

    @property
    def user(self) -> int: ...


R = TypeVar("R", bound=Receiver)


class Waits(Enum):
    """What an open request waits for."""

    TURN = auto()
    ROW = auto()  # the message is not saved yet, or does not exist
    NODE = auto()


@dataclass(eq=False, slots=True)
class Request(Generic[R]):
    receiver: R
    id: int
    lang: str
    deadline: float
    automatic: bool  # the user did not ask for this message
    waits: Waits = Waits.TURN

    @property
    def user(self) -> int:
        return self.receiver.user


@dataclass(eq=False, slots=True)
class Work(Generic[R]):
    """One job."""

    id: int
    src_lang: str
    lang: str
    text: str
    requests: list[Request[R]] = field(default_factory=list)


class TranslationQueue(Generic[R]):
    def __init__(self, timeout_s: float, per_minute: int, max_waiting: int, max_jobs: int) -> None:
        self._timeout_s, self._max_waiting, self._max_jobs = timeout_s, max_waiting, max_jobs
        self._rate = RatePerKey(per_minute)
        self._open: OrderedDict[Request[R], None] = OrderedDict()  # by deadline
        self._asked: FairQueue[Request[R]] = FairQueue()
        self._unsaved: list[Request[R]] = []
        self._work: dict[tuple[int, str], Work[R]] = {}  # waiting or running
        self._jobs: FairQueue[Work[R]] = FairQueue()
        self._running = 0

    def __len__(self) -> int:
        """Requests without an answer."""
        return len(self._open)

    @property
    def idle(self) -> bool:
        return not (self._open or self._running)

    @property
    def unsaved_count(self) -> int:
        return len(self._unsaved)

    def ask(self, receiver: R, id: int, lang: str, now: float, *, automatic: bool = False) -> bool:
        """False: too many requests, of this user or of all."""
        if len(self._open) >= self._max_waiting or not self._rate.take(receiver.user, now):
            return False
        request = Request(receiver, id, lang, now + self._timeout_s, automatic)
        self._open[request] = None
        self._asked.push(request.user, request)
        return True

    # -- the look-up -------------------------------------------------------------------------------

    def to_look_up(self, count: int) -> list[Request[R]]:
        """The next requests whose messages are to be read."""
        found: list[Request[R]] = []
        while len(found) < count and (request := self._asked.pop()) is not None:
            if request in self._open:
                found.append(request)
        return found

    def unsaved(self, request: Request[R]) -> None:
        """The message is not there: it is looked up again after `look_again`."""
        if request in self._open:
            request.waits = Waits.ROW
            self._unsaved.append(request)

    def look_again(self) -> None:
        unsaved, self._unsaved = self._unsaved, []
        for request in unsaved:
            self._asked.push(request.user, request)

    # -- jobs --------------------------------------------------------------------------------------

    def ready(self, request: Request[R], src_lang: str, text: str) -> None:
        """The message is to be translated."""
        if request not in self._open:
            return
        key = (request.id, request.lang)
        work = self._work.get(key)
        if work is None:
            work = self._work[key] = Work(request.id, src_lang, request.lang, text)
            request.waits = Waits.TURN
            self._jobs.push(request.user, work)
        else:
            request.waits = work.requests[0].waits if work.requests else Waits.NODE
        work.requests.append(request)

    def next_job(self) -> Work[R] | None:
        """The next one, if there is room; `ended` follows. What has no open request is left out."""
        while self._running < self._max_jobs and (work := self._jobs.pop()) is not None:
            work.requests = self._still_open(work.requests)
            if not work.requests:
                del self._work[work.id, work.lang]
                continue
            for request in work.requests:
                request.waits = Waits.NODE
            self._running += 1
            return work
        return None

    def ended(self, work: Work[R]) -> list[Request[R]]:
        """The requests that get the result."""
        self._running -= 1
        del self._work[work.id, work.lang]
        return self._still_open(work.requests)

    # -- answers -----------------------------------------------------------------------------------

    def answered(self, request: Request[R]) -> bool:
        """Once for each request: False if it has an answer."""
        if request not in self._open:
            return False
        del self._open[request]
        return True

    def late(self, now: float) -> list[Request[R]]:
        """The open requests whose time is over; they stay open until they are answered."""
        late = []
        for request in self._open:
            if request.deadline > now:
                break
            late.append(request)
        return late

    def deadline(self) -> float | None:
        """When `late` is to be asked next."""
        first = next(iter(self._open), None)
        return None if first is None else first.deadline

    def _still_open(self, requests: Iterable[Request[R]]) -> list[Request[R]]:
        return [request for request in requests if request in self._open]
