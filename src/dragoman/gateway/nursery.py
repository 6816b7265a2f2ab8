"""Has Python's collector of cycles look at new connections a few at a time.

It counts what is made less what is freed. While as many leave as come in it waits, therefore, and then looks at
thousands of connections at once: 20 to 100 ms in which nobody is served. It would find nothing: what ends here is gone
without it.
"""

import gc

PORTION = 2_000  # objects looked at together: about a millisecond
ACCEPTED, UPGRADED, ANSWERED = 8, 25, 31  # objects that a connection begins with, and that a WebSocket or HTTP adds


class Nursery:
    def __init__(self) -> None:
        self._made = 0

    def made(self, objects: int) -> None:
        self._made += objects
        if self._made >= PORTION:
            self._made = 0
            gc.collect(1)
