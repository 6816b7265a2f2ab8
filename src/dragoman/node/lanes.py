"""Which job starts next: at most `slots` at a time, and the jobs of one lane one after another, lowest index first.

The server takes "a later result of this session came, so the earlier one is done" for true; it is true only because
of the second rule. Lanes that wait take turns, so a long session does not starve a short one. Pure.
"""

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Lanes(Generic[T]):
    """Jobs are told apart by identity or equality, whatever they are."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError("a node needs at least one slot")
        self.slots = slots
        self._arrival = count()
        self._waiting: dict[Hashable, list[tuple[int, int, T]]] = {}  # lane → heap of (index, arrival, job)
        self._lane_of: dict[T, Hashable] = {}  # of the jobs that wait
        self._turn: dict[Hashable, None] = {}  # lanes with something to start, in the order of their turn
        self._running: dict[T, Hashable] = {}
        self._busy: set[Hashable] = set()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._lane_of)

    def add(self, job: T, lane: Hashable, index: int) -> None:
        heapq.heappush(self._waiting.setdefault(lane, []), (index, next(self._arrival), job))
        self._lane_of[job] = lane
        if lane not in self._busy:
            self._turn.setdefault(lane)

    def start(self) -> T | None:
        """The job to start now; call until None."""
        if not self._turn or len(self._running) >= self.slots:
            return None
        lane = next(iter(self._turn))
        del self._turn[lane]
        _, _, job = heapq.heappop(self._waiting[lane])
        self._left_waiting(job, lane)
        self._running[job] = lane
        self._busy.add(lane)
        return job

    def end(self, job: T) -> None:
        """The job has run; its slot and its lane are free."""
        lane = self._running.pop(job)
        self._busy.discard(lane)
        if lane in self._waiting:
            self._turn.setdefault(lane)

    def drop(self, job: T) -> bool:
        """Forget a job that waits; False if it does not."""
        if job not in self._lane_of:
            return False
        lane = self._lane_of[job]
        self._waiting[lane] = [entry for entry in self._waiting[lane] if entry[2] != job]
        heapq.heapify(self._waiting[lane])
        self._left_waiting(job, lane)
        return True

    def _left_waiting(self, job: T, lane: Hashable) -> None:
        del self._lane_of[job]
        if not self._waiting[lane]:
            del self._waiting[lane]
            self._turn.pop(lane, None)
