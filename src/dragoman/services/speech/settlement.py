"""What Redis has to know when a job ends: FINISHED; then its slot goes back, RELEASED, no longer ours to be found.

In this order: a slot given back early would be sold twice. Redis may be away: all of it is tried until it is written.
"""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from dragoman.domain.job import Event
from dragoman.services.loops import answers
from dragoman.services.speech.order import End, Order
from dragoman.store.errors import StoreError
from dragoman.store.reservations import Given

if TYPE_CHECKING:
    from dragoman.services.speech.dispatcher import Dispatcher

log = structlog.get_logger(__name__)

REDIS_PAUSE_S = 0.25
FOR_EVER = float("inf")
MAX_MESSAGE = 300  # characters of a node's own words that are kept with its job


class Settlement:
    def __init__(self, order: Order, shop: "Dispatcher") -> None:
        self._order, self._shop = order, shop

    async def finish(self, event: Event, end: End, attempt: int | None, node: str, until: float = FOR_EVER) -> bool:
        """Record FINISHED; False if Redis was away until then."""
        why: dict[str, Any] = {"receipt": msgspec.json.encode(end.receipt)} if end.receipt is not None else {}
        if end.message:
            why["message"] = end.message[:MAX_MESSAGE]
        while True:
            try:
                await self._shop.jobs.advance(
                    self._order.job_id, event, attempt=attempt, node=node, outcome=end.outcome, code=end.code, **why
                )
                return True
            except StoreError:
                if monotonic() >= until:
                    return False
                await asyncio.sleep(REDIS_PAUSE_S)

    async def release(self) -> None:
        """Slot back, RELEASED, no longer ours to be found."""
        jobs, job_id, how = self._shop.jobs, self._order.job_id, self._order.release_state
        state: dict[str, Any] = {"release_state": how} if how else {}
        while True:
            try:
                released = jobs.advancing(job_id, Event.RELEASE, attempt=None, **state)
                undriven = jobs.undriven(self._shop.instance, job_id)
                await self.give_slot_back()  # in the same flush as the two above
                await answers(released, undriven)
                return
            except StoreError:
                await asyncio.sleep(REDIS_PAUSE_S)

    async def pay_later(self, event: Event, end: End, attempt: int | None, node: str) -> None:
        """All of it, when Redis is back."""
        await self.finish(event, end, attempt, node)
        await self.release()

    async def give_slot_back(self) -> None:
        held = self._order.held
        if await self._shop.placer.give_back(self._order) is Given.FREED and held is not None:
            self._shop.slot_freed(held.node_id)

    async def try_to_give_slot_back(self) -> None:
        """The job goes on: with Redis away its slot goes back when it ends."""
        try:
            await self.give_slot_back()
        except StoreError as error:
            log.warning("a slot waits for Redis", job=self._order.job_id, error=str(error), limited=True)
