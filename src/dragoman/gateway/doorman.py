"""Lets those in who wait at the door, a few in each turn of the loop, first come, first served.

After a network was away thousands of clients come back in the same second. A handshake, and the hello that follows it,
is a millisecond of work: all at once they would keep everybody who is being served waiting for seconds. So they wait
here, accepted and cheap; and who gives up is noticed and forgotten, so that no work is done for a client that is gone.
What waits in the kernel's queue instead is neither counted nor noticed, and is answered long after it has left.
"""

import asyncio
from typing import Protocol

HANDSHAKES = 4  # in one turn


class Visitor(Protocol):
    def come_in(self) -> None: ...


class Doorman:
    def __init__(self) -> None:
        self._waiting: dict[Visitor, None] = {}
        self._called = False

    def __len__(self) -> int:
        return len(self._waiting)

    def queue(self, visitor: Visitor) -> None:
        self._waiting[visitor] = None
        self._call()

    def forget(self, visitor: Visitor) -> None:
        self._waiting.pop(visitor, None)

    def hurry(self) -> None:
        """All of them, now."""
        while self._waiting:
            self._let_in()

    def _call(self) -> None:
        if self._waiting and not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._called = False
        for _ in range(min(len(self._waiting), HANDSHAKES)):
            self._let_in()
        self._call()

    def _let_in(self) -> None:
        visitor = next(iter(self._waiting))
        del self._waiting[visitor]
        visitor.come_in()
