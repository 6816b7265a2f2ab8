"""What keeps its place behind what.

A message is written after those that were asked for before it and are in its conversation or by its sender. So where
one has to wait, they wait behind it, and whoever has nothing to do with them does not.
"""

from collections.abc import Iterable
from enum import Enum

from dragoman.archive.rows import pair
from dragoman.archive.types import NewMessage


class Left(Enum):
    """Why a message was not written, though it can be."""

    HELD = "another writer has its conversation, or it comes after one that was left"
    NEW = "it has no conversation yet"


class Behind:
    """Whether a message comes after one of these."""

    def __init__(self, rows: Iterable[NewMessage] = ()) -> None:
        self._pairs: set[tuple[int, int]] = set()
        self._senders: set[int] = set()
        for row in rows:
            self.add(row)

    def add(self, row: NewMessage) -> None:
        self._pairs.add(pair(row))
        self._senders.add(row.from_user)

    def __contains__(self, row: NewMessage) -> bool:
        return row.from_user in self._senders or pair(row) in self._pairs
