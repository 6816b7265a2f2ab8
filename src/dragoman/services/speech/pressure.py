"""Asks a client to hold on when its jobs wait: at most once a second, since more often would itself be load."""

import asyncio
from collections.abc import Callable
from time import monotonic
from weakref import WeakMethod

from dragoman.domain.placement import NoNode
from dragoman.protocol.codes import BackpressureAction
from dragoman.protocol.session import Backpressure
from dragoman.services.speech.order import Order

BACKPRESSURE_PAUSE_S = 1.0
SLOW_PLACEMENT_S = 0.5
BEHIND_S = 1.0  # from the cut to its node: nodes are free, and we are late


class Pressure:
    def __init__(self, send: Callable[[Backpressure], None]) -> None:
        self._send = WeakMethod(send)  # of a session that has us: it is gone when it is over
        self._pressed_at = float("-inf")

    def job_waits(self, why: NoNode, still: Callable[[], bool]) -> None:
        if why is NoNode.ALL_FULL:
            self.press(BackpressureAction.BUSY, "all nodes are busy")
        else:
            asyncio.get_running_loop().call_later(SLOW_PLACEMENT_S, self._waits, still)

    def _waits(self, still: Callable[[], bool]) -> None:
        if still():
            self.press(BackpressureAction.SLOW_DOWN, "waiting for a node")

    def job_dispatched(self, order: Order) -> None:
        if order.assignment.attempt_id == 1 and monotonic() - order.cut_at >= BEHIND_S:
            self.press(BackpressureAction.SLOW_DOWN, "the server is busy")

    def press(self, action: BackpressureAction, message: str, resume_after_ms: int | None = None) -> None:
        now = monotonic()
        if now - self._pressed_at >= BACKPRESSURE_PAUSE_S:
            self._pressed_at = now
            send = self._send()
            if send is not None:
                send(Backpressure(action=action, message=message, resume_after_ms=resume_after_ms))
