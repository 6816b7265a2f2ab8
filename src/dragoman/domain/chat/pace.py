"""How long a shard that was just read waits until it is read again.

Few messages go their way at once. When there are many it is cheaper to have those of a moment share a read, the pushes,
the scripts and a transaction: so the shards of an instance may be read `FREE_PER_S` times a second all together, and
beyond that each only every `PACE_S`.
"""

PACE_S = 0.04
FREE_PER_S = 100.0
BURST = 10.0  # reads that may come together before they count as many


class Pace:
    """One for all shards of an instance."""

    __slots__ = ("_at", "_reads")

    def __init__(self) -> None:
        self._reads = 0.0  # that are not free yet
        self._at = 0.0

    def pause(self, began: float, now: float) -> float:
        """Seconds, after a read that gave something: begun at `began`, seen to by `now`."""
        left = max(self._reads - (now - self._at) * FREE_PER_S, 0.0)
        self._reads, self._at = min(left + 1, 2 * BURST), now
        return max(began + PACE_S - now, 0.0) if self._reads > BURST else 0.0
