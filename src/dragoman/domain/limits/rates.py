"""What one key may use within a time: a rate per minute, work per second, and bytes per day."""

from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice
from typing import Final

DAY_S: Final = 86_400.0
ROW_BYTES: Final = 256  # what a message costs besides its text: its row and its index entries


class _Keys:
    """When each key has all its uses again, in a table of bounded size.

    A full table forgets the key whose last use is oldest: that key has most of its uses back anyway.
    """

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def full_at(self, key: Hashable, now: float) -> float:
        return max(self._full_at.get(key, now), now)

    def set(self, key: Hashable, full_at: float, now: float) -> None:
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        # The oldest keys that are full again, two at a time so that the table shrinks, and the oldest of too many.
        for oldest in tuple(islice(self._full_at, 2)):
            if self._full_at[oldest] <= now or len(self._full_at) > self._max_keys:
                del self._full_at[oldest]


class RatePerKey:
    """A key that was not used for a minute may be used `per_minute` times at once; then one use comes back in each part
    of a minute."""

    def __init__(self, per_minute: int, max_keys: int = 100_000) -> None:
        self._interval_s, self._keys = 60.0 / per_minute, _Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, key: Hashable, now: float, uses: float = 1) -> bool:
        """Whether `key` may be used now; asking costs nothing."""
        return self._after_use(key, now, uses) - now <= 60.0 + 1e-6

    def take(self, key: Hashable, now: float, uses: float = 1) -> bool:
        """Whether `key` may be used now; a refused use costs nothing."""
        if not self.has(key, now, uses):
            return False
        self._keys.set(key, self._after_use(key, now, uses), now)
        return True

    def _after_use(self, key: Hashable, now: float, uses: float) -> float:
        return self._keys.full_at(key, now) + uses * self._interval_s


class WorkPerKey:
    """Spreads the work of each key over time: after a burst, a key has to wait between two pieces of work.

    Work is counted after it was done, so a piece of any size is possible. What a key does instead of waiting makes it
    wait longer, but not longer than `max_wait_s`: then more is not counted.
    """

    def __init__(self, per_s: float, burst: float, max_wait_s: float, max_keys: int = 100_000) -> None:
        self._interval_s, self._burst_s, self._max_wait_s = 1 / per_s, burst / per_s, max_wait_s
        self._keys = _Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def done(self, key: Hashable, work: float, now: float) -> float:
        """Count work of `key`; returns the seconds until it may do more."""
        full_at = self._keys.full_at(key, now) + work * self._interval_s
        wait_s = full_at - now - self._burst_s
        self._keys.set(key, min(full_at, now + self._burst_s + self._max_wait_s), now)
        return max(wait_s, 0.0)


def cost(body: str) -> int:
    return len(body.encode()) + ROW_BYTES


class BytesPerDay:
    """How many bytes one sender may store within a day, as far as one of its connections knows; `max_bytes` = 0 is any.

    Redis counts for the whole cluster; `learned` takes over its count. Between two answers of Redis, and while it is
    unavailable, this connection adds what it stores itself. A day begins with the first byte after the last day ended.
    """

    __slots__ = ("_max_bytes", "_until", "_used")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._used, self._until = max_bytes, 0, 0.0

    def room_for(self, size: int, now: float) -> bool:
        return not self._max_bytes or now >= self._until or self._used + size <= self._max_bytes

    def stored(self, size: int, now: float) -> None:
        if now >= self._until:
            self._used, self._until = 0, now + DAY_S
        self._used += size

    def learned(self, used: int, left_s: float, now: float) -> None:
        """Takes over what Redis has counted, and for how long that counts."""
        self._used, self._until = used, now + left_s
