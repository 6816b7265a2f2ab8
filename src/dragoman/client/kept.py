"""What was sent and may have to be sent again, by its number. Pure.

Nobody tells how far the server has come while the connection lasts, so the newest `max_bytes` are kept: more than
a server collects before it cuts. What is given up for that is known by its number, so that a loss can be told.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: dict[int, tuple[T, int]] = {}
        self._bytes = 0
        self.given_up = -1  # the highest number that had to go

    def __len__(self) -> int:
        return len(self._items)

    def add(self, number: int, item: T, size: int) -> None:
        """Numbers rise."""
        self._items[number] = (item, size)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self.given_up = next(iter(self._items))
            self.forget(self.given_up)

    def forget(self, number: int) -> None:
        _, size = self._items.pop(number, (None, 0))
        self._bytes -= size

    def forget_to(self, number: int) -> None:
        for covered in [one for one in self._items if one <= number]:
            self.forget(covered)

    def items(self) -> list[T]:
        return [item for item, _ in self._items.values()]
