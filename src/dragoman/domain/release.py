"""The release window: when a result goes to its listener, and when a missing one is given up.

First come, first sent. A result goes out the moment it arrives, whatever is missing below it. A result that goes out
starts the timeout of every missing lower index: each is a *gap*, and is skipped when its deadline passes. Only a sent
result does so. A job that failed or came back empty says nothing about lower ones: clients cut trailing silence into
utterances that a node answers at once, while it still works on the speech before them.

Invariants: every index ends in exactly one `Settled`; `expected` is the lowest index that has not; every index from
`expected` up to the highest sent one is settled or a gap; a gap without a deadline (its job runs on another node) stays
open until the caller settles it by the end of its job.

One window a listener and speaker. The caller knows which jobs are still worked on, and passes it in `working` and
`job_moved`. Time must not run backwards between calls.
"""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from heapq import heappop, heappush


class Settled(StrEnum):
    SENT = auto()
    BACKFILLED = auto()
    EMPTY = auto()
    FAILED = auto()
    SKIPPED = auto()


class Drop(StrEnum):
    DUPLICATE = auto()  # sent or empty before
    LATE = auto()  # skipped or failed before
    AHEAD = auto()  # more than `span` above `expected`


@dataclass(frozen=True, slots=True)
class Send:
    backfilled: bool


_IN_ORDER, _BACKFILLED = Send(backfilled=False), Send(backfilled=True)
_OUT = frozenset({Settled.SENT, Settled.BACKFILLED})
_LOST = frozenset({Settled.SKIPPED, Settled.FAILED})


class ReleaseWindow:
    __slots__ = (
        "_above",
        "_deadlines",
        "_gaps",
        "_highest_sent",
        "_lost",
        "_opened_to",
        "_timeout_s",
        "counts",
        "expected",
        "span",
    )

    def __init__(self, ack_timeout_ms: int = 5000, span: int = 1024, expected: int = 0) -> None:
        self.expected = expected
        self.span = span
        self.counts: Counter[Settled | Drop] = Counter()
        self._timeout_s = ack_timeout_ms / 1000
        self._above: dict[int, Settled] = {}  # settled, above `expected`
        self._lost: dict[int, None] = {}  # skipped or failed, below `expected`: tells late from duplicate
        self._gaps: dict[int, float | None] = {}
        self._deadlines: list[tuple[float, int]] = []  # heap; an entry counts only while its gap has that deadline
        self._highest_sent = -1
        self._opened_to = expected  # everything below is settled or a gap

    @property
    def highest_sent(self) -> int:
        """-1 before the first."""
        return self._highest_sent

    def receive(self, index: int, now: float, working: Container[int] = ()) -> Send | Drop:
        """Settle `index` by its result; what is missing below it gets `ack_timeout_ms` from now.

        Indexes in `working` get a gap without a deadline: their job waits for a node, or is on another one than
        this result came from. Skips first what is overdue; call `poll(now)` before to learn which.
        """
        if (drop := self._refusal(index, now)) is not None:
            self.counts[drop] += 1
            return drop
        backfilled = index < self._highest_sent
        if not backfilled:
            self._highest_sent = index
        self._open_gaps(index, now, working)
        self._settle(index, Settled.BACKFILLED if backfilled else Settled.SENT)
        return _BACKFILLED if backfilled else _IN_ORDER

    def settle_empty(self, index: int, now: float) -> Drop | None:
        """The node found nothing to say. Nothing is sent, and no timeout of lower indexes starts."""
        if (drop := self._refusal(index, now)) is not None:
            self.counts[drop] += 1
            return drop
        self._settle(index, Settled.EMPTY)
        return None

    def settle_failed(self, index: int, now: float, how: Settled = Settled.FAILED) -> Drop | None:
        """The job ended without an answer, or (SKIPPED) another owner of the session has skipped the index.

        That says nothing about lower ones, and a refusal drops no result.
        """
        if (drop := self._refusal(index, now)) is not None:
            return drop
        self._settle(index, how)
        return None

    def job_moved(self, index: int) -> None:
        """The job of an open gap went to another node: its result may take as long as a job may."""
        if index in self._gaps:
            self._gaps[index] = None

    def poll(self, now: float) -> list[int]:
        """Skip every gap whose deadline has passed; return their indexes."""
        skipped: list[int] = []
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            deadline, index = heappop(heap)
            if self._gaps.get(index) == deadline:
                self._settle(index, Settled.SKIPPED)
                skipped.append(index)
        return skipped

    def deadline(self) -> float | None:
        """When to poll next; None while no gap has a deadline."""
        heap = self._deadlines
        while heap and self._gaps.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def gaps(self) -> Mapping[int, float | None]:
        """The open gaps with their deadlines; a live view, to read."""
        return self._gaps

    def is_settled(self, index: int) -> bool:
        return index < self.expected or index in self._above

    def snapshot(self) -> tuple[int, dict[int, Settled]]:
        """`expected` and what is settled above it: what a resume on another instance needs."""
        return self.expected, dict(self._above)

    @classmethod
    def restore(
        cls,
        expected: int,
        settled: Mapping[int, Settled],
        now: float,
        working: Container[int] = (),
        ack_timeout_ms: int = 5000,
        span: int = 1024,
    ) -> "ReleaseWindow":
        """The window of a snapshot. Gaps start again at `now`: the time without an owner does not count."""
        window = cls(ack_timeout_ms, span, expected)
        window._above = dict(settled)
        window._highest_sent = max((i for i, how in settled.items() if how in _OUT), default=-1)
        window._open_gaps(window._highest_sent, now, working)
        window._advance()
        return window

    def _refusal(self, index: int, now: float) -> Drop | None:
        # A result handled after its deadline is late even if the timer has not had its turn.
        if self._deadlines:
            self.poll(now)
        if index < self.expected:
            return Drop.LATE if index in self._lost else Drop.DUPLICATE
        if index > self.expected + self.span:
            return Drop.AHEAD
        settled = self._above.get(index)
        if settled is None:
            return None
        return Drop.LATE if settled in _LOST else Drop.DUPLICATE

    def _open_gaps(self, index: int, now: float, working: Container[int]) -> None:
        # `_opened_to` only rises, so an index is visited once in the window's life.
        for missing in range(max(self.expected, self._opened_to), index):
            if missing in self._above:
                continue
            if missing in working:
                self._gaps[missing] = None
            else:
                self._give_deadline(missing, now)
        self._opened_to = max(self._opened_to, index)

    def _give_deadline(self, index: int, now: float) -> None:
        deadline = now + self._timeout_s
        self._gaps[index] = deadline
        heappush(self._deadlines, (deadline, index))

    def _settle(self, index: int, how: Settled) -> None:
        self.counts[how] += 1
        self._gaps.pop(index, None)
        self._above[index] = how
        if index == self.expected:
            self._advance()

    def _advance(self) -> None:
        while (how := self._above.pop(self.expected, None)) is not None:
            if how in _LOST:
                self._lost[self.expected] = None
            self.expected += 1
        if len(self._lost) > 2 * self.span:
            # A result from further back than this is called a duplicate instead of late; it is dropped either way.
            self._lost = dict.fromkeys(i for i in self._lost if i >= self.expected - self.span)
