"""Lets those in who wait at the door, a few in each turn of the loop, first come, first served.

After a network was away thousands of clients come back in the same second. A handshake, and the hello that follows it,
is a millisecond of work: all at once they would keep everybody who is being served waiting for seconds. So they wait
here, accepted and cheap; and who gives up is noticed and forgotten, so that no work is done for a client that is gone.
What waits in the kernel's queue instead is neither counted nor noticed, and is answered long after it has left.

One every millisecond or two, so that the loop comes to rest in between and whoever else has something to do is served
at once; and more when others have much to do: then they get half of the time, and do not wait for ever. That time is of
our own CPU: that other processes had the core is no reason to do more at once. While more come to leave than can be
seen off (`crowded`), which is what took that time, it is one now and then: the network is still going, and both at once
would be felt by those who stayed.
"""

import asyncio
from collections.abc import Callable
from time import thread_time
from typing import Protocol

ADMISSION_S = 0.001  # what one costs, its hello and all that follows included
SHARE = 0.5  # of the time between two looks, when that was long
PAUSE_S, CROWDED_PAUSE_S = 0.001, 0.005


class Visitor(Protocol):
    def come_in(self) -> None: ...


class Doorman:
    def __init__(self, clock: Callable[[], float] = thread_time, crowded: Callable[[], bool] = lambda: False) -> None:
        self._clock, self._crowded = clock, crowded
        self._waiting: dict[Visitor, None] = {}
        self._called = False
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def queue(self, visitor: Visitor) -> None:
        self._waiting[visitor] = None
        if not self._called:
            self._called, self._looked_at = True, self._clock()
            asyncio.get_running_loop().call_soon(self._look)

    def forget(self, visitor: Visitor) -> None:
        self._waiting.pop(visitor, None)

    def hurry(self) -> None:
        """All of them, now."""
        while self._waiting:
            self._let_in()

    def _look(self) -> None:
        now = self._clock()
        crowded = self._crowded()
        most = 1 if crowded else _how_many(now - self._looked_at)
        for _ in range(min(len(self._waiting), most)):
            self._let_in()
        self._looked_at = now
        self._called = bool(self._waiting)
        if self._called:
            asyncio.get_running_loop().call_later(CROWDED_PAUSE_S if crowded else PAUSE_S, self._look)

    def _let_in(self) -> None:
        visitor = next(iter(self._waiting))
        del self._waiting[visitor]
        visitor.come_in()


def _how_many(busy_s: float) -> int:
    return max(int(busy_s * SHARE / ADMISSION_S), 1)
