"""Finds a node for a job and makes it known: the order of one job.

    flush 1   GET binding · SET lock · reserve on the chosen node · ZADD to the driver's jobs
    flush 2   create + dispatched in one call · SET binding NX · HSETNX affinity if the turn goes on

Five slots, so no one script; two writes. Nothing goes to a node before DISPATCHED is recorded. A crash
between lock and binding frees the request when the lock lapses; a slot taken before a crash expires.
Waiting for a free slot is woken by events: a node came, a slot went back, a reservation may have expired.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

import msgspec
import structlog

from dragoman.domain.job import Event, Outcome, Reply
from dragoman.domain.placement import Ask, Assign, Wait, select_node
from dragoman.domain.turn import AffinityResult
from dragoman.services.loops import answers, unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.order import Order
from dragoman.services.speech.sequence import Sequence
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.jobs import LOCK_MS, Binding, Jobs
from dragoman.store.reservations import Given, Reservations, Reserved, Taken
from dragoman.store.turns import Turns

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_AGAIN_S = 0.02
REDIS_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class PlacerSettings:
    placement_wait_ms: int = 2000
    default_slots: int = 4
    turn_overcommit: int = 4
    job_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Exists:
    """The request was bound before: this job answers it."""

    job_id: str


@dataclass(frozen=True, slots=True)
class RedisDown:
    """Redis was away for as long as we may wait."""


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
    ) -> None:
        self.instance, self.view, self.jobs, self.reservations, self.turns = instance, view, jobs, reservations, turns
        self.metrics, self.settings, self.rng = metrics, settings, rng or random.Random()
        self.sequence = Sequence()
        self.is_wanted: Callable[[Order], bool] = lambda order: True  # False: its session is gone
        self.on_freed: Callable[[str], None] = lambda node_id: None  # a full node has a slot again

    # -- the first attempt -----------------------------------------------------------------------

    async def place(self, order: Order) -> Assign | Wait | Exists | RedisDown:
        """Bind the request, reserve a slot, record the job. On Exists nothing is held any more."""
        give_up_at = monotonic() + self.settings.placement_wait_ms / 1000
        bound, slot = False, None
        refused: set[str] = set()
        try:
            while True:
                choice = await self._choose(order, refused, give_up_at)
                slot = self._reserve(order, choice)
                if slot is not None:
                    self.sequence.enter(order)
                if not bound:
                    existing = await self._patiently(lambda: self._bind(order, slot), give_up_at)  # noqa: B023
                    if existing is not None:
                        await self._abandon(order, slot)
                        return existing
                    bound = True
                if slot is not None and not self._taken(order, slot, await slot.taken(), refused):
                    self.sequence.leave(order)
                    continue
                binds = self._binds_turn(order, choice)
                if not await self._patiently(lambda: self._record(order, choice, binds), give_up_at):  # noqa: B023
                    await self._abandon(order, slot)
                    return await self._lost_binding(order)
                return choice
        except StoreError as error:
            log.warning("Redis away while placing", job=order.job_id, trace_id=order.trace_id, error=str(error))
            if slot is not None and order.held is None:
                slot.forget()
            return RedisDown()

    def _reserve(self, order: Order, choice: Assign | Wait) -> "_Slot | None":
        return _Slot(self, order.job_id, choice) if isinstance(choice, Assign) else None

    async def _patiently(self, step: Callable[[], Awaitable[T]], give_up_at: float) -> T:
        """Repeat an idempotent step while Redis is away, as long as a job may wait for its place."""
        while True:
            try:
                return await step()
            except StoreError:
                if monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(REDIS_PAUSE_S)

    async def _bind(self, order: Order, slot: "_Slot | None" = None) -> Exists | None:
        """Flush 1; the reservation was started just before and travels in the same write."""
        jobs, request = self.jobs, order.request_id
        deadline_ms = int(time.time() * 1000) + self.settings.job_timeout_ms
        first: list[asyncio.Future[Any]] = [jobs.driven(self.instance, order.job_id, deadline_ms)]
        if order.advanced is not None:
            first.append(order.advanced)
        give_up_at = monotonic() + 2 * LOCK_MS / 1000
        while True:
            asked = (jobs.binding(request), jobs.lock(request, order.job_id))
            found, locked, *_ = await self._in_time(*asked, *first)
            if order.advanced is not None and not order.advanced.result():
                return Exists("")  # the session is somebody else's: so is what it says
            binding = jobs.parse_binding(found)
            if binding is not None and binding.job_id != order.job_id:
                return Exists(binding.job_id)
            if locked is not None or await self._own_lock(order):
                return None
            # Whoever creates it may need this very slot.
            await self._let_go(slot)
            if monotonic() >= give_up_at:
                raise RedisAway(f"the request {request} is being created by somebody who does not finish")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _in_time(self, *futures: "asyncio.Future[Any]") -> list[Any]:
        """What Redis answers while a job may wait for its place: a Redis that hangs is one that is away."""
        try:
            async with asyncio.timeout(self.settings.placement_wait_ms / 1000):
                return await answers(*futures)
        except TimeoutError:
            raise RedisAway("no answer while a job waits for its place") from None

    async def _own_lock(self, order: Order) -> bool:
        """A lock of ours from a try whose answer was lost."""
        key = self.jobs.keys.request_lock(order.request_id)
        return bool(await self.jobs.redis.call("GET", key) == order.job_id.encode())

    @staticmethod
    def _binds_turn(order: Order, choice: Assign | Wait) -> bool:
        return isinstance(choice, Assign) and order.line.turn.placed(choice.node_id, order.ends_turn)

    async def _record(self, order: Order, choice: Assign | Wait, binds_turn: bool) -> bool:
        """Flush 2. False: somebody else's job has the binding, because our lock had lapsed."""
        jobs = self.jobs
        fields = self._fields(order)
        fields["receipt"] = msgspec.json.encode(choice.receipt)
        node, epoch = (choice.node_id, choice.epoch) if isinstance(choice, Assign) else ("", 0)
        writes: list[asyncio.Future[Any]] = [
            jobs.create(order.job_id, fields, node, epoch),
            jobs.bind(order.request_id, Binding(order.job_id, self.instance)),
        ]
        if binds_turn:
            writes += self.turns.binding(order.session_id, order.line.turn.id, node)
        _, bound, *_ = await self._in_time(*writes)
        if bound is None:
            binding = jobs.parse_binding(await jobs.binding(order.request_id))
            return binding is not None and binding.job_id == order.job_id
        return True

    async def _lost_binding(self, order: Order) -> Exists:
        reply = await self.jobs.advance(order.job_id, Event.CANCEL, attempt=None, outcome=Outcome.CANCELLED)
        binding = self.jobs.parse_binding(await self.jobs.binding(order.request_id))
        log.info("request bound elsewhere", job=order.job_id, trace_id=order.trace_id, cancelled=reply)
        return Exists(binding.job_id if binding is not None else "")

    def _fields(self, order: Order) -> dict[str, object]:
        assignment = order.assignment
        return {
            "job_id": order.job_id,
            "request_id": order.request_id,
            "session_id": order.session_id,
            "utterance_index": order.index,
            "src_lang": assignment.src_lang,
            "tgt_lang": assignment.tgt_lang,
            "turn_id": order.line.turn.id,
            "trace_id": order.trace_id,
            "driver": self.instance,
        }

    # -- later attempts --------------------------------------------------------------------------

    async def replace(self, order: Order, attempt: int, give_up_at: float, refused: set[str]) -> Assign | Wait | None:
        """Find another node for a job that is bound and reassigned, at first none of the `refused`.

        None: the job has moved on meanwhile.
        """
        while True:
            choice = await self._choose(order, refused, give_up_at)
            if isinstance(choice, Wait):
                return choice
            slot = self._reserve(order, choice)
            if slot is None or not self._taken(order, slot, await slot.taken(), refused):
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

    async def _choose(self, order: Order, refused: set[str], give_up_at: float) -> Assign | Wait:
        """A candidate on the local view, waiting for one if there is none."""
        while True:
            now = monotonic()
            choice = select_node(self._ask(order), self.view.fleet, now, self.rng, self.instance, refused)
            if isinstance(choice, Assign) or now >= give_up_at:
                return choice
            order.listener.job_waits(order, choice.reason)
            await self.view.changed(min(give_up_at, self.view.fleet.next_lapse()) - now)
            if not self.is_wanted(order):
                return choice
            refused.clear()

    def _ask(self, order: Order) -> Ask:
        assignment, turn = order.assignment, order.line.turn
        return Ask(
            job_id=order.job_id,
            session_id=order.session_id,
            utterance_index=order.index,
            src=assignment.src_lang,
            tgt=assignment.tgt_lang,
            lang_a=assignment.lang_a,
            lang_b=assignment.lang_b,
            needs=order.needs,
            # A later attempt goes elsewhere: the turn's node had its chance.
            turn_node=turn.node_id if turn.node_id not in order.seen else None,
            turn_bound=turn.node_id is not None or not order.ends_turn,
            seen=frozenset(order.seen),
            default_slots=self.settings.default_slots,
            turn_overcommit=self.settings.turn_overcommit,
        )

    def _taken(self, order: Order, slot: "_Slot", reserved: Reserved, refused: set[str]) -> bool:
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

    async def _abandon(self, order: Order, slot: "_Slot | None") -> None:
        """Somebody else's job answers this request: give up whatever ours has taken."""
        if order.held is not None:
            node_id = order.held.node_id
            if await self.give_back(order) is Given.FREED:
                self.on_freed(node_id)
        else:
            await self._let_go(slot)
        unawaited(self.jobs.undriven(self.instance, order.job_id))
        unawaited(self.jobs.unlock(order.request_id, order.job_id))

    async def _let_go(self, slot: "_Slot | None") -> None:
        if slot is not None and await slot.let_go() is Given.FREED:
            self.on_freed(slot.choice.node_id)


class _Slot:
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
