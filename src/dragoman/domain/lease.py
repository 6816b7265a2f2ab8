"""The lease an instance holds on itself: may it act, or must it assume that others think it dead?

Valid until the moment its last successful renewal was *sent*, plus the TTL: Redis began to count later than that, so
the instance stops before anyone else may call it dead. One comparison, made before every frame, entry and timer.
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
