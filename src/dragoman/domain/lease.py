"""The lease that an instance has on itself: it decides whether the instance may act or may have been declared dead.

It is valid for the TTL from the moment the last successful renewal was *sent*. Redis starts to count later, so the
instance stops before another may declare it dead. The check is one comparison before every frame, entry and timer.
"""

from math import inf


class SelfLease:
    __slots__ = ("expires_at", "ttl_s")

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.expires_at = -inf

    def renewed(self, sent_at: float) -> None:
        """A renewal that was sent at `sent_at` succeeded. Answers may overtake each other; the latest sent counts."""
        self.expires_at = max(self.expires_at, sent_at + self.ttl_s)

    def valid(self, now: float) -> bool:
        return now < self.expires_at
