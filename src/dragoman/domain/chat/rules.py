"""What a client may send, and how much of it: pure, one Guard a connection.

`check` looks at one message, in the order clients rely on: who leaves out several things is told of the first.
`AckCredit` counts receipts that are free, `Guard` everything else: frames a second, and violations of the protocol, of
which the fourth within ten seconds is one too many.
"""

from collections import deque
from typing import Final

from dragoman.protocol.chat import MAX_BODY_UNITS, MAX_CLIENT_MSG_ID, Frame, Reason

VIOLATIONS: Final = frozenset({Reason.BAD_JSON, Reason.MISSING_TYPE, Reason.NOT_IMPLEMENTED})
FORGIVEN: Final = 3  # violations within the window that a connection survives
WINDOW_S: Final = 10.0
ACKS_A_MESSAGE: Final = 2
MOST_ACKS: Final = 40_000  # that a connection can save up

_LATER: Final = ("GROUP_", "CALL_")


def check(frame: Frame, me: int) -> Reason | None:
    """Why this SINGLE_CHAT of `me` is not taken; None: it is.

    A clientMsgId that is too long counts as none: it could not be kept, and cutting it would make two messages one.
    """
    if not frame.clientMsgId or len(frame.clientMsgId) > MAX_CLIENT_MSG_ID:
        return Reason.MISSING_MSG_ID
    if frame.to is None:
        return Reason.MISSING_TO
    if not frame.body:
        return Reason.MISSING_BODY
    if utf16_units(frame.body) > MAX_BODY_UNITS:
        return Reason.BODY_TOO_LONG
    if frame.to == me:
        return Reason.CANNOT_SEND_TO_SELF
    return None


def utf16_units(text: str) -> int:
    """The length of a text as browsers and JVMs count it: characters beyond the first plane are two."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def comes_later(type_: str) -> bool:
    """Whether clients may know this type already: it is `not_implemented`, but no violation."""
    return type_.startswith(_LATER) or type_ == "FRIEND_REQUEST"


class AckCredit:
    """Receipts a connection may send beside its frames a second: `delivered` and `read` of each message pushed to it.

    A receiver that catches up gets thousands of messages in a moment, and its receipts come as fast.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    def pushed(self) -> None:
        self._left = min(self._left + ACKS_A_MESSAGE, MOST_ACKS)

    def take(self) -> bool:
        """Whether this receipt is one of them; if not, it counts as any other frame."""
        if not self._left:
            return False
        self._left -= 1
        return True


class Guard:
    """How one connection behaves. Costs a float until something is wrong."""

    __slots__ = ("_ahead_s", "_full_at", "_interval_s", "_owed_s", "_violations")

    def __init__(self, per_s: float, burst: float) -> None:
        """`per_s` frames a second on average, `burst` at once after a pause."""
        self._interval_s = 1 / per_s
        self._ahead_s = burst * self._interval_s
        self._full_at = 0.0  # when the burst will have been given back in full
        self._owed_s = 0.0
        self._violations: deque[float] | None = None

    def unread(self, seconds: float) -> None:
        """We did not read it for so long: what it may have said meanwhile comes at once, on top of the burst."""
        self._owed_s += seconds

    def admit(self, now: float) -> bool:
        """Count a frame; False: it is one too many (`too_many_requests`)."""
        full_at = max(self._full_at, now) + self._interval_s
        if full_at - now > self._ahead_s + 1e-9:
            if self._owed_s < self._interval_s - 1e-9:
                return False
            self._owed_s -= self._interval_s
            return True
        self._full_at = full_at
        return True

    def violate(self, now: float) -> bool:
        """Count a violation; True: it is one too many, and the connection is over."""
        if self._violations is None:
            self._violations = deque(maxlen=FORGIVEN)
        earlier = self._violations
        over = len(earlier) == FORGIVEN and now - earlier[0] <= WINDOW_S
        earlier.append(now)
        return over
