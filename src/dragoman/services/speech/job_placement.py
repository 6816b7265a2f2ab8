"""The nodes of one job: its first one, found in two writes to Redis, and those of later attempts.

    write 1   GET binding · SET lock · reserve on the chosen node · the driver's jobs, unless it was declared dead
    write 2   create + dispatched in one call · SET binding NX · HSETNX affinity if the turn goes on

These keys are in five hash slots, so one script cannot do it; two writes can. Nothing goes to a node before DISPATCHED
is recorded. If the instance crashes between lock and binding, the lock lapses and the slot expires.

The client waits for both writes, so the second is prepared while Redis works on the first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from dragoman.domain.job import Event, Outcome, Reply
from dragoman.domain.job_signals import BareSignal, Duplicate, PlacementResult
from dragoman.domain.placement import Ask, Assign, NoNode, Wait
from dragoman.protocol.codes import TextKind
from dragoman.services.loops import answers, resolve, retry, unawaited
from dragoman.services.speech.job_records import DispatchWrite
from dragoman.services.speech.job_request import JobRequest
from dragoman.services.speech.placer import Placer, Reservation
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.jobs import LOCK_MS
from dragoman.store.nodes import ReleaseReply

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOCK_POLL_S = 0.02
YIELDING_POLL_S = 0.2  # no announcement says that a node has two free slots again
REDIS_PAUSE_S = 0.05


class Waiter(Protocol):
    """The driver, as the placement of its job sees it."""

    def is_wanted(self) -> bool:
        """False: the job was cancelled."""

    def waits(self, why: NoNode) -> None: ...

    def prepare(self) -> None:
        """Called while Redis records the job: there is time to get the message for the node ready."""


class Recorded(Enum):
    """The result of write 2."""

    OK = auto()
    NOT_BOUND = auto()  # our lock had lapsed, and another job has the request
    ENDED = auto()


class JobPlacement:
    def __init__(
        self, placer: Placer, request: JobRequest, state_written: "asyncio.Future[bool] | None" = None
    ) -> None:
        """`state_written`: False if the session was resumed elsewhere, so that this index is not ours to use."""
        self.slot: Assign | None = None  # where the job has a slot now
        self._placer, self._jobs, self._request, self._state_written = placer, placer.jobs, request, state_written
        self._timeout_s = min(placer.settings.placement_wait_ms, request.timeout_ms or inf) / 1000
        self._deadline = 0.0
        self._seen = set[str]()  # nodes that had the job
        self._failed_on = set[str]()  # nodes that failed the job: never asked for it again
        self._choice: Assign | Wait | None = None
        self._reservation: Reservation | None = None
        self._recording: DispatchWrite
        self._asked: list[asyncio.Future[Any]] = []
        self._changes: set[asyncio.Future[None]] = set()  # of the fleet, for which the job waits

    # -- the first node --------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        return bool(self._asked)

    def begin(self) -> None:
        """Start write 1 if there is a candidate: before the loop comes to the task that waits for the answer."""
        choice = self.select()
        if isinstance(choice, Assign):
            self._choose(choice)
            self._asked = self._ask_redis()
            self._jobs.redis.hurry()

    async def place(self, waiter: Waiter) -> PlacementResult:
        """Bind the request, reserve a slot, record the job. Unless it returns a node, the job has no slot."""
        request, self._deadline = self._request, monotonic() + self._timeout_s
        try:
            return await self._place(waiter)
        except StoreError as error:
            log.warning(
                "job not placed: Redis is unavailable",
                job=request.job_id,
                trace_id=request.trace_id,
                error=str(error),
                limited=True,
            )
            if self._reservation is not None and self.slot is None:
                self._reservation.forget()
            return BareSignal.STORE_UNAVAILABLE

    async def _place(self, waiter: Waiter) -> PlacementResult:
        placer, request = self._placer, self._request
        bound, refused = False, set[str]()
        while True:
            choice = self._choice or self._choose(await self._wait_for_node(waiter, refused, self._deadline))
            reservation = self._reservation
            if not bound:
                not_ours = await self._retry(self._bind)
                if not_ours is not None:
                    await self._abandon()
                    return not_ours
                bound = True
            if reservation is not None and not await self._confirm(reservation, refused):
                self.leave_send_order()
                self._choice = None
                continue
            turn = request.turn_queue.turn
            binds_turn = isinstance(choice, Assign) and turn.placed(choice.node_id, request.ends_turn)
            try:
                recorded = await self._retry(partial(self._record, binds_turn, waiter.prepare))
            finally:
                if binds_turn:
                    placer.check_turn_owner(request.session_id, turn.id)
            if recorded is Recorded.OK:
                return choice
            await self._abandon()
            return BareSignal.DECLARED_DEAD if recorded is Recorded.ENDED else await self._lost_binding()

    def _choose(self, choice: Assign | Wait) -> Assign | Wait:
        request = self._request
        self._choice, self._recording = choice, DispatchWrite(self._placer, request, choice)
        self._reservation = None
        if isinstance(choice, Assign):
            self._reservation = Reservation(self._placer, request.job_id, choice)
            self._placer.sending.enter(request.session_id, request.job_id, request.index)
        return choice

    async def _retry(self, step: Callable[[], Awaitable[T]]) -> T:
        return await retry(step, until=self._deadline, pause_s=REDIS_PAUSE_S)

    def _ask_redis(self) -> "list[asyncio.Future[Any]]":
        """Write 1; the reservation was started just before and travels in it."""
        placer, jobs, request = self._placer, self._jobs, self._request
        deadline_ms = int(time.time() * 1000) + placer.settings.job_timeout_ms
        asked: list[asyncio.Future[Any]] = [
            jobs.binding(request.request_id),
            jobs.lock(request.request_id, request.job_id),
            jobs.drive(placer.instance, placer.incarnation(), request.job_id, deadline_ms),
        ]
        return asked if self._state_written is None else [*asked, self._state_written]

    async def _bind(self) -> Duplicate | BareSignal | None:
        """The answer to write 1: None if the request is ours."""
        jobs, request = self._jobs, self._request
        give_up_at = monotonic() + 2 * LOCK_MS / 1000
        while True:
            asked, self._asked = self._asked or self._ask_redis(), []
            found, locked, driven, *_ = await self._answers(*asked, meanwhile=self._recording.prepare)
            if self._state_written is not None and not self._state_written.result():
                return Duplicate("")  # the session is another instance's, and so are its utterances
            binding = jobs.parse_binding(found)
            if binding is not None and binding.job_id != request.job_id:
                return Duplicate(binding.job_id)
            if driven == b"DECLARED_DEAD":
                return BareSignal.DECLARED_DEAD
            if locked is not None or await self._own_lock():
                return None
            # The instance that is creating the job may need this very slot.
            await self._cancel_reservation()
            if monotonic() >= give_up_at:
                raise RedisAway(f"another instance is creating the request {request.request_id} and does not finish")
            await asyncio.sleep(LOCK_POLL_S)

    async def _record(self, binds_turn: bool, meanwhile: Callable[[], None]) -> Recorded:
        """Write 2."""
        jobs, request = self._jobs, self._request
        created, bound, *_ = await self._answers(*self._recording.send(binds_turn), meanwhile=meanwhile)
        if created == b"ENDED":
            return Recorded.ENDED
        if bound is None:
            binding = jobs.parse_binding(await jobs.binding(request.request_id))
            if binding is None or binding.job_id != request.job_id:
                return Recorded.NOT_BOUND
        return Recorded.OK

    async def _answers(self, *futures: "asyncio.Future[Any]", meanwhile: Callable[[], None]) -> list[Any]:
        """What Redis answers within the timeout of the placement: a Redis that hangs counts as unavailable."""
        self._jobs.redis.hurry()
        meanwhile()
        # Not asyncio.timeout, which costs three times as much as a timer: this runs twice per job.
        timer = asyncio.get_running_loop().call_later(self._timeout_s, _abort, futures)
        try:
            return await answers(*futures)
        finally:
            timer.cancel()

    async def _own_lock(self) -> bool:
        """A lock of ours from a try whose answer was lost."""
        return await self._jobs.has_lock(self._request.request_id, self._request.job_id)

    async def _lost_binding(self) -> Duplicate:
        jobs, request = self._jobs, self._request
        reply = await jobs.advance(request.job_id, Event.CANCEL, attempt=None, outcome=Outcome.CANCELLED)
        binding = jobs.parse_binding(await jobs.binding(request.request_id))
        log.info("request bound elsewhere", job=request.job_id, trace_id=request.trace_id, cancelled=reply)
        return Duplicate(binding.job_id if binding is not None else "")

    async def _abandon(self) -> None:
        """Another job answers this request, or none: release whatever this one has."""
        if self.slot is not None:
            await self.release_slot()
        else:
            await self._cancel_reservation()
        unawaited(self._jobs.undriven(self._placer.instance, self._request.job_id))
        unawaited(self._jobs.unlock(self._request.request_id, self._request.job_id))

    async def _cancel_reservation(self) -> None:
        if self._reservation is not None:
            await self._reservation.cancel()

    # -- the order of sending --------------------------------------------------------------------

    async def wait_to_send(self) -> None:
        """Wait until the earlier jobs of the session that have a node were sent."""
        await self._placer.sending.wait(self._request.session_id, self._request.index)

    def leave_send_order(self) -> None:
        self._placer.sending.leave(self._request.session_id, self._request.job_id)

    # -- other nodes -----------------------------------------------------------------------------

    async def replace(
        self, waiter: Waiter, attempt: int, excluded: frozenset[str], until: float
    ) -> Assign | Wait | None:
        """Find the node of a later attempt, at first none of the `excluded`. None: another instance changed the job."""
        deadline, refused = min(monotonic() + self._timeout_s, until), set(excluded)
        while True:
            choice = await self._wait_for_node(waiter, refused, deadline)
            if isinstance(choice, Wait):
                return choice
            if not await self._confirm(Reservation(self._placer, self._request.job_id, choice), refused):
                continue
            advanced = await self._jobs.advance(
                self._request.job_id,
                Event.DISPATCH,
                attempt=attempt,
                node=choice.node_id,
                node_epoch=choice.epoch,
                receipt=msgspec.json.encode(choice.receipt),
            )
            if advanced is Reply.OK:
                return choice
            await self.release_slot()
            return None

    def sent_to(self, node_id: str) -> None:
        self._seen.add(node_id)
        self._request.latest.sent(node_id, self._request.index)

    def failed_on(self, node_id: str) -> None:
        self._failed_on.add(node_id)

    def another_is_free(self) -> bool:
        """Whether a node that has not had the job could take it now."""
        choice = self.select()
        return isinstance(choice, Assign) and choice.node_id not in self._seen

    async def when_another_is_free(self, until: float, waits: Callable[[], bool]) -> bool:
        """False if none was until then, or the job does not wait any more."""
        while waits() and (left_s := until - monotonic()) > 0:
            if self.another_is_free():
                return True
            await self._wait_for_change(left_s)
        return False

    def stop_waiting(self) -> None:
        """The job was cancelled: if it waits for a node, it looks again now."""
        for change in self._changes:
            resolve(change)

    def may_retry(self, failed_on: str) -> bool:
        """Whether another node could take the job, now or when it has a free slot again."""
        choice = self._placer.select(self._ask(failed_on))
        return isinstance(choice, Assign) or choice.reason is NoNode.ALL_FULL

    def select(self, refused: set[str] | None = None) -> Assign | Wait:
        """A candidate on the local view, as it is now."""
        return self._placer.select(self._ask(), refused or ())

    async def _wait_for_node(self, waiter: Waiter, refused: set[str], deadline: float) -> Assign | Wait:
        """A candidate, waiting for one if there is none; not for nodes that all cool down beyond the deadline.

        A text job waits for a slot, but not for a node that serves its pair: its listener can do without.
        """
        view, is_text = self._placer.view, self._request.is_text
        while True:
            choice, now = self.select(refused), monotonic()
            if isinstance(choice, Assign) or now >= deadline:
                return choice
            if choice.reason is NoNode.ALL_COOLING_DOWN and choice.until > deadline:
                return choice
            if choice.reason is NoNode.NO_NODE_IN_POOL and is_text:
                return choice
            waiter.waits(choice.reason)
            wait_s = min(deadline, choice.until, view.fleet.next_expiry()) - now
            await self._wait_for_change(min(wait_s, YIELDING_POLL_S) if self._yields else wait_s, is_speech=not is_text)
            if not waiter.is_wanted():
                return choice
            refused.clear()

    @property
    def _yields(self) -> bool:
        return self._request.text_kind is TextKind.CHAT

    async def _wait_for_change(self, timeout_s: float, *, is_speech: bool = False) -> None:
        """Return at the next change of the fleet, after the timeout, or when the job is cancelled."""
        change = self._placer.view.next_change(self._request.account, is_speech=is_speech)
        self._changes.add(change)
        timer = asyncio.get_running_loop().call_later(max(timeout_s, 0), resolve, change)
        try:
            await change
        finally:
            timer.cancel()
            self._changes.discard(change)

    def _ask(self, *also_failed: str) -> Ask:
        request, settings = self._request, self._placer.settings
        assignment, turn = request.assignment, request.turn_queue.turn
        pipeline = assignment.pipeline
        return Ask(
            src=assignment.src_lang,
            # Any node that recognises the language can do no more than that.
            tgt=assignment.tgt_lang if pipeline.use_nmt or pipeline.use_tts else "",
            lang_a=assignment.lang_a,
            lang_b=assignment.lang_b,
            needs=request.needs,
            voice=pipeline.use_tts,
            # A later attempt goes elsewhere: the turn's node had its chance.
            turn_node=turn.node_id if turn.node_id not in self._seen else None,
            preview_node=request.preview_node if request.preview_node not in self._seen else None,
            turn_bound=turn.node_id is not None or not request.ends_turn,
            seen=frozenset(self._seen),
            failed=frozenset((*self._failed_on, *also_failed)),
            later=request.latest.nodes_after(request.index),
            default_slots=settings.default_slots,
            turn_overcommit=settings.turn_overcommit,
            text=request.is_text,
            yields=self._yields,
            speech_waits=self._placer.view.speech_waits,
        )

    # -- the slot --------------------------------------------------------------------------------

    async def _confirm(self, reservation: Reservation, refused: set[str]) -> bool:
        confirmed = self._placer.confirmed(reservation, await reservation.result(), refused)
        if confirmed:
            self.slot = reservation.choice
        return confirmed

    async def release_slot(self) -> ReleaseReply:
        """Release the job's slot; once, however often it is called."""
        slot, self.slot = self.slot, None
        if slot is None:
            return ReleaseReply.NONE
        try:
            return await self._placer.release(self._request.job_id, slot)
        except StoreError:
            self.slot = slot  # to be tried again
            raise


def _abort(futures: "tuple[asyncio.Future[Any], ...]") -> None:
    for future in futures:
        if not future.done():
            future.set_exception(RedisAway("no answer within the placement timeout"))
