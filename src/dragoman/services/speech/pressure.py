"""Asks a client to pause when its jobs wait: at most once a second, since more often would itself be load.

Only PAUSE with `resume_after_ms` is sent. After BUSY or SLOW_DOWN the original web client stops its timer as soon as
its queue is empty, and sends nothing more until it reconnects.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from weakref import WeakMethod

from dragoman.domain.placement import NoNode
from dragoman.services.speech.order import Order

BACKPRESSURE_PAUSE_S = 1.0
PAUSE_MS = 1000  # the client is asked again after that, if its jobs still wait
SLOW_PLACEMENT_S = 0.5
BEHIND_S = 1.0  # from the cut to its node: nodes are free, and we are late


class Pressure:
    def __init__(self, pause: Callable[[str, int], None]) -> None:
        self._pause = WeakMethod(pause)  # of a session that has us: it is gone when it is over
        self._pressed_at = float("-inf")

    def job_waits(self, why: NoNode, still: Callable[[], bool]) -> None:
        if why is NoNode.ALL_FULL:
            self.press("all nodes are busy")
        else:
            asyncio.get_running_loop().call_later(SLOW_PLACEMENT_S, self._waits, still)

    def _waits(self, still: Callable[[], bool]) -> None:
        if still():
            self.press("waiting for a node")

    def job_dispatched(self, order: Order) -> None:
        if order.assignment.attempt_id == 1 and monotonic() - order.cut_at >= BEHIND_S:
            self.press("the server is busy")

    def press(self, message: str) -> None:
        now = monotonic()
        if now - self._pressed_at >= BACKPRESSURE_PAUSE_S:
            self._pressed_at = now
            pause = self._pause()
            if pause is not None:
                pause(message, PAUSE_MS)
