"""Finished results, kept until the server has read them.

Writing to a socket proves nothing. The link pings after a result with its mark; the pong, which cannot overtake, proves
that everything up to the mark was read. What was read stays `linger_s` more: an instance may die between reading
a result and recording it. What nobody read within `keep_s` is of no use to anybody: its job has expired. Pure.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    mark: int
    data: bytes
    finished_at: float
    read_at: float | None = None


class Outbox:
    def __init__(self, keep_s: float = 30.0, linger_s: float = 2.0, max_bytes: int = 64 * 2**20) -> None:
        self._keep_s = keep_s
        self._linger_s = linger_s
        self._max_bytes = max_bytes
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self.last_mark = 0
        self.lost = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def all_read(self) -> bool:
        return not self._entries or self._entries[-1].read_at is not None

    def add(self, data: bytes, now: float) -> int:
        """Keep a result; returns its mark."""
        self.last_mark += 1
        self._entries.append(_Entry(self.last_mark, data, now))
        self._bytes += len(data)
        self.prune(now)
        return self.last_mark

    def read(self, mark: int, now: float) -> None:
        """The server has read everything up to `mark`."""
        for entry in reversed(self._entries):
            if entry.read_at is not None:
                break
            if entry.mark <= mark:
                entry.read_at = now
        self.prune(now)

    def again(self, now: float) -> list[bytes]:
        """What to write to a new connection, oldest first."""
        self.prune(now)
        return [entry.data for entry in self._entries]

    def prune(self, now: float) -> None:
        while self._entries and (self._is_over(self._entries[0], now) or self._bytes > self._max_bytes):
            gone = self._entries.popleft()
            self._bytes -= len(gone.data)
            self.lost += gone.read_at is None

    def _is_over(self, entry: _Entry, now: float) -> bool:
        if entry.read_at is None:
            return now >= entry.finished_at + self._keep_s
        return now >= entry.read_at + self._linger_s
