"""How many bytes one sender may store within a day, as far as one of its connections knows.

Redis counts them for the whole cluster; what it says is taken over (`learned`). Between two answers of Redis, and while
it is away, what this connection stores is added here. A day begins with the first byte after the last one ended.
"""

from typing import Final

DAY_S: Final = 86_400.0
ROW_BYTES: Final = 256  # what a message costs besides its text: its row, and the entries of it in indexes


def cost(body: str) -> int:
    return len(body.encode()) + ROW_BYTES


class BytesADay:
    """`most` = 0 is any number."""

    __slots__ = ("_most", "_until", "_used")

    def __init__(self, most: int) -> None:
        self._most, self._used, self._until = most, 0, 0.0

    def room_for(self, size: int, now: float) -> bool:
        return not self._most or now >= self._until or self._used + size <= self._most

    def stored(self, size: int, now: float) -> None:
        if now >= self._until:
            self._used, self._until = 0, now + DAY_S
        self._used += size

    def learned(self, used: int, left_s: float, now: float) -> None:
        """What Redis has counted, and how long that counts."""
        self._used, self._until = used, now + left_s
