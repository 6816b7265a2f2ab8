"""So many tries a minute for each key, in a table that does not grow with the keys somebody makes up.

A key that has not tried for a while may try `per_minute` times at once; then one try comes back each part of a minute.
When the table is full the key that tried longest ago is forgotten: it has most of its tries back anyway.
"""

from collections import OrderedDict
from collections.abc import Hashable


class Allowances:
    def __init__(self, per_minute: int, most: int = 100_000) -> None:
        self._interval_s, self._most = 60.0 / per_minute, most
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()  # when a key has all its tries again

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: Hashable, now: float) -> bool:
        """Whether `key` may try now; a try that is refused costs nothing."""
        full_at = max(self._full_at.get(key, now), now) + self._interval_s
        if full_at - now > 60.0 + 1e-6:
            return False
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        self._forget(now)
        return True

    def _forget(self, now: float) -> None:
        """The oldest that are full again, two at a time so that the table shrinks, and the oldest of too many."""
        for _ in range(2):
            key, full_at = next(iter(self._full_at.items()))
            if full_at <= now or len(self._full_at) > self._most:
                del self._full_at[key]
