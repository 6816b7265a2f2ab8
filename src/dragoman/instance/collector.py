"""Python's collector of cycles, at times of our own.

While it looks everybody waits, and left to itself it looks in the worst moment: when much is being made, as when ten
thousand clients come back at once. What ends here is gone without it, so it looks once a second at what is new since
then, which is little, and puts what is still in use out of its sight. Once an hour it looks at everything, for cycles
that were in use when they were put away: some tenths of a second for ten thousand clients.
"""

import gc
from collections.abc import Callable
from time import monotonic

import structlog

log = structlog.get_logger(__name__)

LOOK_S = 1.0
LOOK_AT_ALL_S = 3600.0
YOUNG, OLD = 1, 2


class Collector:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._looked_at_all_at = clock()
        gc.disable()
        self._put_away(OLD)

    async def run_once(self) -> None:
        began = self._clock()
        everything = began - self._looked_at_all_at >= LOOK_AT_ALL_S
        if everything:
            self._looked_at_all_at = began
            gc.unfreeze()
        found = self._put_away(OLD if everything else YOUNG)
        took_ms = round((self._clock() - began) * 1000, 1)
        if everything:
            log.info("looked for cycles in everything", found=found, took_ms=took_ms)

    @staticmethod
    def _put_away(generation: int) -> int:
        found = gc.collect(generation)
        gc.freeze()
        return found
