"""Chooses a node for a job, on the local view, and holds a slot there.

Redis alone knows the slots: a choice is confirmed by the reservation, or refused, and then there is another. Waiting
for a free slot is woken by events: a node came, a slot went back, a reservation may have expired. What else is
written before a job goes to its first node is left to `placing`.
"""

import asyncio
import random
from collections.abc import Callable, Container
from dataclasses import dataclass
from time import monotonic

import msgspec

from dragoman.domain.job import Event, Reply
from dragoman.domain.placement import Ask, Assign, NoNode, Wait, select_node
from dragoman.domain.turn import AffinityResult
from dragoman.services.loops import unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.order import Order
from dragoman.services.speech.sequence import Sequence
from dragoman.store.errors import StoreError
from dragoman.store.jobs import Jobs
from dragoman.store.reservations import Given, Reservations, Reserved, Taken
from dragoman.store.turns import Turns


@dataclass(frozen=True, slots=True)
class PlacerSettings:
    placement_wait_ms: int = 2000
    default_slots: int = 4
    turn_overcommit: int = 4
    job_timeout_ms: int = 60_000


class Placer:
    def __init__(
        self,
        instance: str,
        view: FleetView,
        jobs: Jobs,
        reservations: Reservations,
        turns: Turns,
        metrics: Metrics,
        settings: PlacerSettings,
        rng: random.Random | None = None,
        *,
        incarnation: Callable[[], str],
    ) -> None:
        self.incarnation = incarnation
        self.instance, self.view, self.jobs, self.reservations, self.turns = instance, view, jobs, reservations, turns
        self.metrics, self.settings, self.rng = metrics, settings, rng or random.Random()
        self.sequence = Sequence()
        self.is_wanted: Callable[[Order], bool] = lambda order: True  # False: its session is gone
        self.on_freed: Callable[[str], None] = lambda node_id: None  # a full node has a slot again

    async def replace(self, order: Order, attempt: int, give_up_at: float, refused: set[str]) -> Assign | Wait | None:
        """Find another node for a job that is bound and reassigned, at first none of the `refused`.

        None: the job has moved on meanwhile.
        """
        while True:
            choice = await self.choose(order, refused, give_up_at)
            if isinstance(choice, Wait):
                return choice
            slot = self.reserve(order, choice)
            if slot is None or not self.confirmed(order, slot, await slot.taken(), refused):
                continue
            advanced = await self.jobs.advance(
                order.job_id,
                Event.DISPATCH,
                attempt=attempt,
                node=choice.node_id,
                node_epoch=choice.epoch,
                receipt=msgspec.json.encode(choice.receipt),
            )
            if advanced is Reply.OK:
                return choice
            await self.give_back(order)
            return None

    # -- choosing --------------------------------------------------------------------------------

    def reserve(self, order: Order, choice: Assign | Wait) -> "Slot | None":
        return Slot(self, order.job_id, choice) if isinstance(choice, Assign) else None

    def look(self, order: Order, refused: Container[str] = ()) -> Assign | Wait:
        """A candidate on the local view, as it is now."""
        return select_node(self._ask(order), self.view.fleet, monotonic(), self.rng, self.instance, refused)

    def another_is_free(self, order: Order) -> bool:
        """Whether a node that has not had the job could take it now."""
        choice = self.look(order)
        return isinstance(choice, Assign) and choice.node_id not in order.seen

    def may_retry(self, order: Order, failed_on: str) -> bool:
        """Whether another node could take the job, now or when it has a free slot again."""
        ask = self._ask(order)
        ask.failed |= {failed_on}
        choice = select_node(ask, self.view.fleet, monotonic(), self.rng, self.instance)
        return isinstance(choice, Assign) or choice.reason is NoNode.ALL_FULL

    async def choose(self, order: Order, refused: set[str], give_up_at: float) -> Assign | Wait:
        """The same, waiting for one if there is none; not for nodes that all cool down for longer than that."""
        while True:
            choice, now = self.look(order, refused), monotonic()
            if isinstance(choice, Assign) or now >= give_up_at:
                return choice
            if choice.reason is NoNode.ALL_COOLING_DOWN and choice.until > give_up_at:
                return choice
            order.listener.job_waits(order, choice.reason)
            await self.view.changed(min(give_up_at, choice.until, self.view.fleet.next_lapse()) - now)
            if not self.is_wanted(order):
                return choice
            refused.clear()

    def _ask(self, order: Order) -> Ask:
        assignment, turn = order.assignment, order.line.turn
        return Ask(
            src=assignment.src_lang,
            tgt=assignment.tgt_lang,
            lang_a=assignment.lang_a,
            lang_b=assignment.lang_b,
            needs=order.needs,
            voice=assignment.pipeline.use_tts,
            # A later attempt goes elsewhere: the turn's node had its chance.
            turn_node=turn.node_id if turn.node_id not in order.seen else None,
            turn_bound=turn.node_id is not None or not order.ends_turn,
            seen=frozenset(order.seen),
            failed=frozenset(order.failed_on),
            later=order.later_on,
            default_slots=self.settings.default_slots,
            turn_overcommit=self.settings.turn_overcommit,
        )

    def confirmed(self, order: Order, slot: "Slot", reserved: Reserved, refused: set[str]) -> bool:
        fleet, choice = self.view.fleet, slot.choice
        if reserved.verdict is Taken.FULL:
            if self.view.times_freed(choice.node_id) != slot.times_freed:
                return False  # a slot went back meanwhile: worth another try at once
            refused.add(choice.node_id)
            fleet.full_until(choice.node_id, monotonic() + max(reserved.free_in_ms, 1) / 1000)
            return False
        order.held = choice
        if choice.affinity is not None:
            self.metrics.affinity.labels(choice.affinity).inc()
        return True

    # -- giving back -----------------------------------------------------------------------------

    async def give_back(self, order: Order) -> Given:
        """Give the job's slot back; once, however often it is called."""
        held, order.held = order.held, None
        if held is None:
            return Given.NONE
        self.view.fleet.gave(held.node_id)
        try:
            return await self.reservations.release(held.node_id, order.job_id, self.full_at(held))
        except StoreError:
            order.held = held  # to be tried again; the view forgets it all the same
            self.view.fleet.took(held.node_id)
            raise

    def full_at(self, held: Assign) -> int:
        """From how many on the node is full for a job that may go elsewhere: those are the ones that wait."""
        beyond = self.settings.turn_overcommit if held.affinity is AffinityResult.HIT else 0
        return held.limit - beyond


class Slot:
    """A reservation under way, started at once so that it travels with whatever is written next.

    It counts in the view from then on: the jobs of one moment would otherwise all see the same node as the emptiest.
    """

    def __init__(self, placer: Placer, job_id: str, choice: Assign) -> None:
        self.choice = choice
        self.times_freed = placer.view.times_freed(choice.node_id)
        self._placer, self._job_id = placer, job_id
        self._reply: asyncio.Future[bytes] | None = self._ask()

    def _ask(self) -> "asyncio.Future[bytes]":
        self._placer.view.fleet.took(self.choice.node_id)
        return self._placer.reservations.reserve(self.choice.node_id, self._job_id, self.choice.limit)

    async def taken(self) -> Reserved:
        """What Redis said; asked anew if it was let go meanwhile."""
        self._reply = self._reply or self._ask()
        try:
            reserved = Reserved.parse(await self._reply)
        except StoreError:
            self.forget()
            raise
        if reserved.verdict is Taken.FULL:
            self.forget()
        return reserved

    def forget(self) -> None:
        """It counts no longer; what Redis may have of it expires."""
        if self._reply is not None:
            unawaited(self._reply)
            self._reply = None
            self._placer.view.fleet.gave(self.choice.node_id)

    async def let_go(self) -> Given:
        """Give it back if it was taken; once."""
        reply = self._reply
        self.forget()
        if reply is None or Reserved.parse(await reply).verdict is Taken.FULL:
            return Given.NONE
        return await self._placer.reservations.release(
            self.choice.node_id, self._job_id, self._placer.full_at(self.choice)
        )
