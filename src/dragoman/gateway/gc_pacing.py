"""Makes Python's cyclic garbage collector look at new connections a few at a time.

The collector counts allocations less deallocations. While as many connections close as open, it does not run; then it
looks at thousands of connections at once, which takes 20 to 100 ms in which no client is served. It would find nothing:
a closed connection is freed without it.
"""

import gc

PORTION = 2_000  # objects looked at together: about a millisecond
ACCEPTED, UPGRADED, ANSWERED = 8, 25, 31  # objects that a connection begins with, and that a WebSocket or HTTP adds


class GcPacing:
    def __init__(self) -> None:
        self._made = 0

    def made(self, objects: int) -> None:
        self._made += objects
        if self._made >= PORTION:
            self._made = 0
            gc.collect(1)
