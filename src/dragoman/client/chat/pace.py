"""How fast frames may go out: a server closes connections that send more than it allows. Pure: time is an argument."""


class Pace:
    """`per_s` on average, `burst` at once."""

    def __init__(self, per_s: float = 200.0, burst: int = 100) -> None:
        self._interval_s = 1 / per_s
        self._span_s = burst * self._interval_s
        self._free_at = float("-inf")  # when the last of those sent is paid for

    def wait_s(self, now: float) -> float:
        """0: one may go."""
        return max(0.0, self._free_at + self._interval_s - self._span_s - now)

    def sent(self, now: float) -> None:
        self._free_at = max(self._free_at, now) + self._interval_s
