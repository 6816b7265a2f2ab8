"""How many frames one connection may send: any WebSocket, and chat, which also counts receipts and violations."""

from collections import deque
from typing import Final

TOLERATED_VIOLATIONS: Final = 3  # within the window; the next one closes the connection
VIOLATION_WINDOW_S: Final = 10.0
ACKS_PER_MESSAGE: Final = 2
MAX_ACK_CREDIT: Final = 40_000
PORTIONS: Final = 8


class FrameBucket:
    """A token bucket that gives out its tokens in portions.

    The caller counts a portion down by itself, so a frame costs a subtraction: no call and no clock. A caller that was
    idle may still have a portion, so the bucket fills up only to the burst less one portion.
    """

    __slots__ = ("_filled_at", "_full", "_left", "_per_s", "_portion")

    def __init__(self, per_s: float, burst: int, now: float) -> None:
        """`per_s` frames per second on average, `burst` at once; the bucket is full at first."""
        self._per_s, self._left, self._filled_at = per_s, float(burst), now
        self._portion = max(burst // PORTIONS, 1)
        self._full = burst - self._portion

    def portion(self, now: float) -> float:
        """Tokens for the next frames. With less than 1 the frame is one too many."""
        filled = min(self._left + (now - self._filled_at) * self._per_s, self._full)
        tokens = min(max(self._left, filled), self._portion)
        self._left, self._filled_at = max(self._left, filled) - tokens, now
        return tokens


class AckCredit:
    """Receipts that a chat connection may send beside its frames per second: two for each message pushed to it.

    A receiver that catches up gets thousands of messages in a moment, and its receipts (`delivered` and `read`) come
    as fast.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    def pushed(self) -> None:
        self._left = min(self._left + ACKS_PER_MESSAGE, MAX_ACK_CREDIT)

    def take(self) -> bool:
        """Whether this receipt is covered; if not, it counts as any other frame."""
        if not self._left:
            return False
        self._left -= 1
        return True


class ChatFrameLimit:
    """Counts the frames and the protocol violations of one chat connection."""

    __slots__ = ("_burst_s", "_full_at", "_interval_s", "_unread_s", "_violations")

    def __init__(self, per_s: float, burst: float) -> None:
        """`per_s` frames per second on average, `burst` at once after a pause."""
        self._interval_s = 1 / per_s
        self._burst_s = burst * self._interval_s
        self._full_at = 0.0  # when the whole burst is available again
        self._unread_s = 0.0
        self._violations: deque[float] | None = None  # most connections have none

    def add_unread(self, seconds: float) -> None:
        """The server did not read the connection for so long: the frames of that time arrive at once."""
        self._unread_s += seconds

    def admit(self, now: float) -> bool:
        """Count a frame; False: it is one too many (`too_many_requests`)."""
        full_at = max(self._full_at, now) + self._interval_s
        if full_at - now > self._burst_s + 1e-9:
            if self._unread_s < self._interval_s - 1e-9:
                return False
            self._unread_s -= self._interval_s
            return True
        self._full_at = full_at
        return True

    def violate(self, now: float) -> bool:
        """Count a violation; True: it is one too many, and the connection must be closed."""
        if self._violations is None:
            self._violations = deque(maxlen=TOLERATED_VIOLATIONS)
        earlier = self._violations
        too_many = len(earlier) == TOLERATED_VIOLATIONS and now - earlier[0] <= VIOLATION_WINDOW_S
        earlier.append(now)
        return too_many
