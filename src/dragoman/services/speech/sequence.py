"""Jobs of one session go out in order of index: old nodes do not translate what comes after a later one.

Each is placed on its own, and what Redis answers may overtake: the keys of two jobs can be on two servers. A job
with a node in sight goes in here, and is sent when none before it is in here any more. One that waits for a node
is not: it holds up nobody.
"""

import asyncio

from dragoman.services.speech.order import Order


class Sequence:
    def __init__(self) -> None:
        self._ahead: dict[str, dict[str, tuple[int, asyncio.Future[None]]]] = {}  # session → job → its index

    def enter(self, order: Order) -> None:
        jobs = self._ahead.setdefault(order.session_id, {})
        if order.job_id not in jobs:
            jobs[order.job_id] = order.index, asyncio.get_running_loop().create_future()

    def leave(self, order: Order) -> None:
        """It was sent, or has to look for another node, or is over."""
        jobs = self._ahead.get(order.session_id)
        if jobs is None:
            return
        _, gone = jobs.pop(order.job_id, (0, None))
        if gone is not None:
            gone.set_result(None)
        if not jobs:
            del self._ahead[order.session_id]

    async def my_turn(self, order: Order) -> None:
        while before := [gone for index, gone in self._ahead[order.session_id].values() if index < order.index]:
            await asyncio.wait(before)
