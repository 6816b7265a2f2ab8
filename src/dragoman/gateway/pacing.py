"""Spreads the work of many new connections over time: their handshakes, and the garbage collector's work.

After a network failure thousands of clients reconnect in the same second. A handshake, with the first message that
follows it, is a millisecond of work: all at once they would delay every connected client for seconds. A waiting
connection is accepted and cheap, and a client that gives up is noticed, so no work is done for it. The queue of the
kernel would do neither.
"""

import asyncio
import gc
from collections.abc import Callable
from time import thread_time
from typing import Protocol

HANDSHAKE_S = 0.001  # the cost of one, with the first message that follows it
SHARE = 0.5  # of the time between two checks, if that was long
HANDSHAKE_PAUSE_S, CROWDED_PAUSE_S = 0.001, 0.005


class PendingHandshake(Protocol):
    def do_handshake(self) -> None: ...


class HandshakeQueue:
    """Handshakes in the order of their requests.

    One handshake every millisecond or two lets the loop come to rest in between. If other work keeps the loop busy,
    waiting handshakes get half of the CPU time of this process. While connections close faster than their ends are
    handled (`crowded`), there is one handshake every 5 ms: the network is still failing.
    """

    def __init__(self, clock: Callable[[], float] = thread_time, crowded: Callable[[], bool] = lambda: False) -> None:
        self._clock, self._crowded = clock, crowded
        self._waiting: dict[PendingHandshake, None] = {}
        self._called = False
        self._checked_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def queue(self, pending: PendingHandshake) -> None:
        self._waiting[pending] = None
        if not self._called:
            self._called, self._checked_at = True, self._clock()
            asyncio.get_running_loop().call_soon(self._check)

    def remove(self, pending: PendingHandshake) -> None:
        self._waiting.pop(pending, None)

    def handle_all(self) -> None:
        """Without a pause: the listener closes."""
        while self._waiting:
            self._handle_first()

    def _check(self) -> None:
        now = self._clock()
        crowded = self._crowded()
        count = 1 if crowded else _count_for(now - self._checked_at)
        for _ in range(min(len(self._waiting), count)):
            self._handle_first()
        self._checked_at = now
        self._called = bool(self._waiting)
        if self._called:
            asyncio.get_running_loop().call_later(CROWDED_PAUSE_S if crowded else HANDSHAKE_PAUSE_S, self._check)

    def _handle_first(self) -> None:
        pending = next(iter(self._waiting))
        del self._waiting[pending]
        pending.do_handshake()


def _count_for(busy_s: float) -> int:
    return max(int(busy_s * SHARE / HANDSHAKE_S), 1)


OBJECTS_PER_RUN = 2_000  # about a millisecond
ACCEPTED, UPGRADED, ANSWERED = 8, 25, 31  # objects that a connection begins with, and that a WebSocket or HTTP adds


class GcPacing:
    """Runs Python's cyclic garbage collector on a few new connections at a time.

    The collector counts allocations less deallocations. While as many connections close as open, it does not run; then
    it examines thousands of connections at once, which takes 20 to 100 ms in which no client is served. It would find
    nothing: a closed connection is freed without it.
    """

    def __init__(self) -> None:
        self._created = 0

    def created(self, objects: int) -> None:
        self._created += objects
        if self._created >= OBJECTS_PER_RUN:
            self._created = 0
            gc.collect(1)
