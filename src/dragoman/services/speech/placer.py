"""What the placements of all jobs share: the choice of a node, its slots, the order of sending.

Redis alone knows the slots. A node is chosen on the local view, and the reservation confirms the choice or refuses it.
A job that waits for a free slot is woken by events: a node came, a slot was released, a reservation may have expired.
"""

import asyncio
import random
from collections.abc import Callable, Container
from dataclasses import dataclass
from time import monotonic

from dragoman.domain.placement import AffinityResult, Ask, Assign, Wait, select_node
from dragoman.protocol.peer import SlotFreed
from dragoman.services.loops import Tasks, retry, unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.services.speech.fleet_view import FleetView
from dragoman.store.errors import StoreError
from dragoman.store.instances import Owners
from dragoman.store.jobs import Jobs, Turns
from dragoman.store.nodes import ReleaseReply, Reservations, Reserved, ReserveReply


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
        owners: Owners,
        announcer: Announcer,
        metrics: Metrics,
        tasks: Tasks,
        settings: PlacerSettings,
        rng: random.Random | None = None,
        *,
        incarnation: Callable[[], str],
    ) -> None:
        self.instance, self.view, self.jobs, self.turns = instance, view, jobs, turns
        self.settings, self.incarnation, self.sending = settings, incarnation, SendOrder()
        self._reservations, self._owners, self._announcer = reservations, owners, announcer
        self._metrics, self._tasks, self._rng = metrics, tasks, rng or random.Random()

    def select(self, ask: Ask, refused: Container[str] = ()) -> Assign | Wait:
        """A candidate on the local view, as it is now."""
        return select_node(ask, self.view.fleet, monotonic(), self._rng, self.instance, refused)

    # -- slots -----------------------------------------------------------------------------------

    def ask_for_slot(self, job_id: str, choice: Assign) -> "asyncio.Future[bytes]":
        """The slot counts in the view from now on: the jobs of one moment would otherwise all choose the same node."""
        self.view.fleet.reserve_slot(choice.node_id)
        return self._reservations.reserve(choice.node_id, job_id, choice.limit)

    def confirmed(self, reservation: "Reservation", reserved: Reserved, refused: set[str]) -> bool:
        choice = reservation.choice
        if reserved.verdict is ReserveReply.FULL:
            if self.view.times_freed(choice.node_id) != reservation.times_freed:
                return False  # a slot was released meanwhile: try again at once
            refused.add(choice.node_id)
            if choice.kept_free:
                return False  # speech may still have a slot there
            self.view.fleet.full_until(choice.node_id, monotonic() + max(reserved.free_in_ms, 1) / 1000)
            return False
        if choice.affinity is not None:
            self._metrics.affinity.labels(choice.affinity).inc()
        return True

    async def release(self, job_id: str, choice: Assign) -> ReleaseReply:
        """Release a slot, and announce it if the node was full."""
        self.view.fleet.release_slot(choice.node_id)
        try:
            return await self.release_uncounted(job_id, choice)
        except StoreError:
            self.view.fleet.reserve_slot(choice.node_id)
            raise

    async def release_uncounted(self, job_id: str, choice: Assign) -> ReleaseReply:
        """The same for a slot that the view does not count any more."""
        # A turn's job may exceed the slots. The jobs that wait may not, so the node is full for them before that.
        beyond = self.settings.turn_overcommit if choice.affinity is AffinityResult.HIT else 0
        reply = await self._reservations.release(choice.node_id, job_id, choice.limit - beyond)
        if reply is ReleaseReply.FREED:
            self._announcer.announce(SlotFreed(choice.node_id))
        return reply

    async def renew(self, node_id: str, job_ids: list[str]) -> list[str]:
        """Renew reservations; returns the jobs whose reservation has expired."""
        return await self._reservations.renew(node_id, job_ids)

    # -- turns -----------------------------------------------------------------------------------

    def check_turn_owner(self, session_id: str, turn_id: str) -> None:
        self._tasks.spawn(self._check_turn_owner(session_id, turn_id), "turn-bound")

    async def _check_turn_owner(self, session_id: str, turn_id: str) -> None:
        """An instance that resumes a session first writes that it owns the session, then reads its turn. This instance
        has written the turn, then reads the owner: if that is another, it may have missed this turn and never end it.
        """

        async def check() -> None:
            if await self._owners.session_owner(session_id) != self.instance:
                await self.turns.end(session_id, turn_id)

        await retry(check)  # for ever: the key has no TTL


class Reservation:
    """A slot being reserved. The request starts at once, so that it travels with whatever is written next."""

    def __init__(self, placer: Placer, job_id: str, choice: Assign) -> None:
        self.choice = choice
        self.times_freed = placer.view.times_freed(choice.node_id)
        self._placer, self._job_id = placer, job_id
        self._reply: asyncio.Future[bytes] | None = placer.ask_for_slot(job_id, choice)

    async def result(self) -> Reserved:
        """What Redis answered; asked anew if it was cancelled meanwhile."""
        self._reply = self._reply or self._placer.ask_for_slot(self._job_id, self.choice)
        try:
            reserved = Reserved.parse(await self._reply)
        except StoreError:
            self.forget()
            raise
        if reserved.verdict is ReserveReply.FULL:
            self.forget()
        return reserved

    def forget(self) -> None:
        """Remove it from the view. If Redis reserved the slot, the reservation expires."""
        if self._reply is not None:
            unawaited(self._reply)
            self._reply = None
            self._placer.view.fleet.release_slot(self.choice.node_id)

    async def cancel(self) -> None:
        """Release the slot if Redis reserved it; once."""
        reply = self._reply
        self.forget()
        if reply is not None and Reserved.parse(await reply).verdict is not ReserveReply.FULL:
            await self._placer.release_uncounted(self._job_id, self.choice)


class SendOrder:
    """Jobs of one session are sent in order of index: old nodes do not translate an utterance after a later one.

    Jobs are placed concurrently, and replies of Redis may overtake each other: the keys of two jobs can be on two
    servers. A job enters when it has a candidate node, and is sent when no earlier job is in the queue. A job that
    waits for a node is not in the queue, so it delays no other.
    """

    def __init__(self) -> None:
        self._ahead: dict[str, dict[str, tuple[int, asyncio.Future[None]]]] = {}  # session → job → its index

    def enter(self, session_id: str, job_id: str, index: int) -> None:
        jobs = self._ahead.setdefault(session_id, {})
        if job_id not in jobs:
            jobs[job_id] = index, asyncio.get_running_loop().create_future()

    def leave(self, session_id: str, job_id: str) -> None:
        """The job was sent, or needs another node, or has ended."""
        jobs = self._ahead.get(session_id)
        if jobs is None:
            return
        _, left = jobs.pop(job_id, (0, None))
        if left is not None:
            left.set_result(None)
        if not jobs:
            del self._ahead[session_id]

    async def wait(self, session_id: str, index: int) -> None:
        while before := [left for earlier, left in self._ahead[session_id].values() if earlier < index]:
            await asyncio.wait(before)
