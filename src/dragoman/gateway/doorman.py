"""Lets those in who wait at the door, a few in each turn of the loop, first come, first served.

After a network was away thousands of clients come back in the same second. A handshake, and the hello that follows it,
is a millisecond of work: all at once they would keep everybody who is being served waiting for seconds. So they wait
here, accepted and cheap; and who gives up is noticed and forgotten, so that no work is done for a client that is gone.
What waits in the kernel's queue instead is neither counted nor noticed, and is answered long after it has left.

One a turn, and more when turns are long because of others: then half of each turn is for those who wait. So a turn is
at most twice as long as it would be without them, and a busy loop does not leave them waiting for ever.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol

ADMISSION_S = 0.001  # what one costs, its hello and all that follows included
SHARE = 0.5  # of a turn


class Visitor(Protocol):
    def come_in(self) -> None: ...


class Doorman:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._waiting: dict[Visitor, None] = {}
        self._called = False
        self._turn_began = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def queue(self, visitor: Visitor) -> None:
        self._waiting[visitor] = None
        if not self._called:
            self._turn_began = self._clock()
            self._call()

    def forget(self, visitor: Visitor) -> None:
        self._waiting.pop(visitor, None)

    def hurry(self) -> None:
        """All of them, now."""
        while self._waiting:
            self._let_in()

    def _call(self) -> None:
        self._called = True
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._called = False
        now = self._clock()
        for _ in range(min(len(self._waiting), _how_many(now - self._turn_began))):
            self._let_in()
        self._turn_began = now
        if self._waiting:
            self._call()

    def _let_in(self) -> None:
        visitor = next(iter(self._waiting))
        del self._waiting[visitor]
        visitor.come_in()


def _how_many(turn_s: float) -> int:
    return max(int(turn_s * SHARE / ADMISSION_S), 1)
