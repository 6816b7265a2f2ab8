"""Which messages of a sender are on their way, as its connection knows it. Pure.

The truth is the count in Redis. This copy decides while Redis is away, whether a message may be saved at once: past one
that is on its way it would break its sender's order. So the copy may say too many, and must not say too few, however
often and however late a word of a message comes:

- messages of a sender end in the order of their ids, so a word of one is a word of all before it, and
- a word of one that has ended already says nothing.
"""

from collections import deque


class Unsaved:
    __slots__ = ("_before", "_ended", "_ids", "newest")

    def __init__(self) -> None:
        self._ids: deque[int] = deque()  # accepted on this connection, and not ended
        self._before: int | None = None  # of earlier connections: so many, whose ids are not known; None: nor that
        self._ended = 0  # the highest id of which we know
        self.newest = 0  # that was accepted

    @property
    def count(self) -> int | None:
        """None: not known."""
        return None if self._before is None else self._before + len(self._ids)

    def accepted(self, id: int) -> None:
        self.newest = id
        if self._before is not None:
            self._ids.append(id)

    def ended(self, id: int) -> None:
        """It is a row, or never will be."""
        if id <= self._ended or self._before is None:
            return
        self._ended = id
        if self._ids and self._ids[0] <= id:
            self._before = 0
            while self._ids and self._ids[0] <= id:
                self._ids.popleft()
        else:
            self._before = max(self._before - 1, 0)

    def counted(self, unsaved: int, newest: int) -> None:
        """By Redis, asked when `newest` was the last that was accepted: what came after it may not be in the count."""
        older = sum(id <= newest for id in self._ids)
        while older > unsaved:
            self._ended = max(self._ended, self._ids.popleft())
            older -= 1
        self._before = unsaved - older

    def lost_count(self) -> None:
        """One may be on its way, or not."""
        self._ids.clear()
        self._before = None
