"""How long to wait before connecting again: doubling, with full jitter, so that clients of a dead instance do not
arrive at the next one together.

Only a connection that lasted counts as a success: a server that takes a session and drops it at once is not hammered.
"""

from random import Random


class Backoff:
    def __init__(
        self, first_s: float = 0.25, longest_s: float = 5.0, steady_s: float = 5.0, rng: Random | None = None
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._steady_s = steady_s
        self._rng = rng or Random()
        self._failures = 0

    def delay_s(self) -> float:
        ceiling = min(self._longest_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return self._rng.uniform(0, ceiling)

    def lasted(self, seconds: float) -> None:
        if seconds >= self._steady_s:
            self._failures = 0
