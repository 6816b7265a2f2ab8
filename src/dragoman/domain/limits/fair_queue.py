"""A queue that several keys share fairly.

The keys take turns, so an entry waits for at most one entry of each other key, however many those have. A key may use
the whole queue while it is alone. When the queue is full, a new entry displaces the newest entry of the key that has
most, unless its own key would then have as many: no key can fill the queue for the others.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    def __init__(self, size: float = inf) -> None:
        self._size, self._count = size, 0
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()  # the key whose turn is next comes first

    def __len__(self) -> int:
        return self._count

    def push(self, key: Hashable, item: T) -> T | None:
        """Returns the entry for which there is no room: `item` itself, a displaced one, or None."""
        displaced = None
        if self._count >= self._size:
            longest = max(self._waiting, key=lambda one: len(self._waiting[one]), default=key)
            if len(self._waiting.get(longest, ())) <= len(self._waiting.get(key, ())) + 1:
                return item
            displaced = self._waiting[longest].pop()
            self._count -= 1
        self._waiting.setdefault(key, deque()).append(item)
        self._count += 1
        return displaced

    def pop(self) -> T | None:
        """The oldest entry of the key whose turn it is."""
        if not self._waiting:
            return None
        key, items = self._waiting.popitem(last=False)
        item = items.popleft()
        self._count -= 1
        if items:
            self._waiting[key] = items
        return item

    def remove(self, key: Hashable, item: T) -> None:
        """Take an entry out of its turn; does nothing if it is not there any more."""
        items = self._waiting.get(key)
        if items is None or item not in items:
            return
        items.remove(item)
        self._count -= 1
        if not items:
            del self._waiting[key]
