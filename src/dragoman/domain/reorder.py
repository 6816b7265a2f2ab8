"""Puts numbered utterances in order: a client may send them over several sockets at once.

Nodes want rising indexes. An early utterance waits `reorder_ms` for the ones before it and is then dispatched without
them. A late one is dispatched at once. Every index is dispatched at most once.

The release window decides how far back and ahead an index may be; the caller passes its `expected` with each offer.
"""

from enum import StrEnum, auto
from typing import Generic, TypeVar

T = TypeVar("T")


class IndexRefused(StrEnum):
    USED = auto()  # received before, or settled
    AHEAD = auto()  # more than `span` above `expected`


class Reorder(Generic[T]):
    __slots__ = ("_early", "_missing", "_timeout_s", "next_index", "span")

    def __init__(self, reorder_ms: int = 300, span: int = 1024, next_index: int = 0) -> None:
        self.next_index = next_index  # everything below was dispatched or is missing
        self.span = span
        self._timeout_s = reorder_ms / 1000
        self._early: dict[int, tuple[float, T]] = {}  # in order of arrival, so of deadlines
        self._missing: set[int] = set()

    def offer(self, index: int, utterance: T, now: float, expected: int = 0) -> list[T] | IndexRefused:
        """What is dispatched now, in order; empty if this one waits."""
        if index < expected or index in self._early or (index < self.next_index and index not in self._missing):
            return IndexRefused.USED
        if index > expected + self.span:
            return IndexRefused.AHEAD
        if index < self.next_index:
            self._missing.discard(index)
            return [utterance, *self.poll(now)]
        if len(self._missing) > 2 * self.span:
            self._missing = {i for i in self._missing if i >= expected}
        self._early[index] = (now + self._timeout_s, utterance)
        return self.poll(now)

    def poll(self, now: float) -> list[T]:
        """What is dispatched now: the unbroken run from `next_index`, and all up to the highest one that is overdue."""
        overdue = -1
        for index, (deadline, _) in self._early.items():
            if deadline > now:
                break
            overdue = max(overdue, index)
        out: list[T] = []
        while self.next_index <= overdue or self.next_index in self._early:
            if (waited := self._early.pop(self.next_index, None)) is None:
                self._missing.add(self.next_index)
            else:
                out.append(waited[1])
            self.next_index += 1
        return out

    def deadline(self) -> float | None:
        return next((deadline for deadline, _ in self._early.values()), None)
