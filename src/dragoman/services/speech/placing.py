"""One job on its way to its first node: the order of one job.

    write 1   GET binding · SET lock · reserve on the chosen node · the driver's jobs, if it was not buried
    write 2   create + dispatched in one call · SET binding NX · HSETNX affinity if the turn goes on

Five slots, so no one script; two writes. Nothing goes to a node before DISPATCHED is recorded. A crash
between lock and binding frees the request when the lock lapses; a slot taken before a crash expires.

This is what a client waits for, so nobody sits idle: while Redis works on one write, what follows it is made ready.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from time import monotonic
from typing import Any, TypeVar

import msgspec
import structlog

from dragoman.domain.job import Event, Outcome
from dragoman.domain.placement import Assign, Wait
from dragoman.services.loops import answers, unawaited
from dragoman.services.speech.order import Order
from dragoman.services.speech.placer import Placer, Slot
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.jobs import LOCK_MS, Binding
from dragoman.store.redis import Kept
from dragoman.store.reservations import Given

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_AGAIN_S = 0.02
REDIS_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Exists:
    """The request was bound before: this job answers it."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """We were taken for dead before the job was recorded: who buried us has ended it, or has never heard of it."""


@dataclass(frozen=True, slots=True)
class RedisDown:
    """Redis was away for as long as we may wait."""


class Recorded(Enum):
    """What became of write 2."""

    OK = auto()
    NOT_BOUND = auto()  # our lock had lapsed, and somebody else's job has the request
    ENDED = auto()


class Placing:
    """A job may begin before the task that drives it does; `place` does whatever has not begun.

    `meanwhile` is what the caller has to get ready for the node: it is done while the job is being recorded.
    """

    def __init__(self, placer: Placer, order: Order, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._placer, self._order, self._meanwhile = placer, order, meanwhile
        self._jobs = placer.jobs
        self._patience_s = placer.settings.placement_wait_ms / 1000
        self._give_up_at = 0.0
        self._choice: Assign | Wait | None = None
        self._slot: Slot | None = None
        self._recording: Recording
        self._asked: list[asyncio.Future[Any]] = []
        self.binds_turn = False  # the node of the turn was, or is being, written with this job

    @property
    def begun(self) -> bool:
        return bool(self._asked)

    def begin(self) -> None:
        """Write 1 leaves now, if a node is in sight: before the loop comes to the task that waits for the answer."""
        choice = self._placer.look(self._order)
        if isinstance(choice, Assign):
            self._go_for(choice)
            self._asked = self._ask()
            self._jobs.redis.hurry()

    async def place(self) -> Assign | Wait | Exists | Ended | RedisDown:
        """Bind the request, reserve a slot, record the job. On Exists and Ended nothing is held any more."""
        order, self._give_up_at = self._order, monotonic() + self._patience_s
        try:
            return await self._place()
        except StoreError as error:
            log.warning(
                "Redis away while placing", job=order.job_id, trace_id=order.trace_id, error=str(error), limited=True
            )
            if self._slot is not None and order.held is None:
                self._slot.forget()
            return RedisDown()
        finally:
            self._meanwhile = _nothing  # the caller's, who has us: together they would wait for the collector

    async def _place(self) -> Assign | Wait | Exists | Ended:
        placer, order = self._placer, self._order
        bound, refused = False, set[str]()
        while True:
            choice = self._choice or self._go_for(await placer.choose(order, refused, self._give_up_at))
            slot = self._slot
            if not bound:
                not_ours = await self._patiently(self._bind)
                if not_ours is not None:
                    await self._abandon()
                    return not_ours
                bound = True
            if slot is not None and not placer.confirmed(order, slot, await slot.taken(), refused):
                placer.sequence.leave(order)
                self._choice = None
                continue
            self.binds_turn = isinstance(choice, Assign) and order.line.turn.placed(choice.node_id, order.ends_turn)
            recorded = await self._patiently(lambda: self._record(self.binds_turn))
            if recorded is Recorded.OK:
                return choice
            await self._abandon()
            return Ended() if recorded is Recorded.ENDED else await self._lost_binding()

    def _go_for(self, choice: Assign | Wait) -> Assign | Wait:
        placer, order = self._placer, self._order
        self._choice, self._recording = choice, Recording(placer, order, choice)
        self._slot = placer.reserve(order, choice)
        if self._slot is not None:
            placer.sequence.enter(order)
        return choice

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent step while Redis is away, as long as a job may wait for its place."""
        while True:
            try:
                return await step()
            except StoreError:
                if monotonic() >= self._give_up_at:
                    raise
                await asyncio.sleep(REDIS_PAUSE_S)

    def _ask(self) -> "list[asyncio.Future[Any]]":
        """Write 1; the reservation was started just before and travels in it."""
        placer, jobs, order = self._placer, self._jobs, self._order
        deadline_ms = int(time.time() * 1000) + placer.settings.job_timeout_ms
        asked: list[asyncio.Future[Any]] = [
            jobs.binding(order.request_id),
            jobs.lock(order.request_id, order.job_id),
            jobs.drive(placer.instance, placer.incarnation(), order.job_id, deadline_ms),
        ]
        return asked if order.advanced is None else [*asked, order.advanced]

    async def _bind(self) -> Exists | Ended | None:
        """The answer to write 1: the request is ours, or somebody else's."""
        jobs, order = self._jobs, self._order
        give_up_at = monotonic() + 2 * LOCK_MS / 1000
        while True:
            asked, self._asked = self._asked or self._ask(), []
            found, locked, driven, *_ = await self._answers(*asked, meanwhile=self._recording.prepare)
            if order.advanced is not None and not order.advanced.result():
                return Exists("")  # the session is somebody else's: so is what it says
            binding = jobs.parse_binding(found)
            if binding is not None and binding.job_id != order.job_id:
                return Exists(binding.job_id)
            if driven == b"BURIED":
                return Ended()
            if locked is not None or await self._own_lock():
                return None
            # Whoever creates it may need this very slot.
            await self._let_go()
            if monotonic() >= give_up_at:
                raise RedisAway(f"the request {order.request_id} is being created by somebody who does not finish")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _record(self, binds_turn: bool) -> Recorded:
        """Write 2."""
        jobs, order = self._jobs, self._order
        created, bound, *_ = await self._answers(*self._recording.send(binds_turn), meanwhile=self._meanwhile)
        if created == b"ENDED":
            return Recorded.ENDED
        if bound is None:
            binding = jobs.parse_binding(await jobs.binding(order.request_id))
            if binding is None or binding.job_id != order.job_id:
                return Recorded.NOT_BOUND
        return Recorded.OK

    async def _answers(self, *futures: "asyncio.Future[Any]", meanwhile: Callable[[], None]) -> list[Any]:
        """What Redis answers while a job may wait for its place: a Redis that hangs is one that is away."""
        self._jobs.redis.hurry()
        meanwhile()
        # Not asyncio.timeout: this is done twice a job, and one timer costs a third of it.
        timer = asyncio.get_running_loop().call_later(self._patience_s, _give_up, futures)
        try:
            return await answers(*futures)
        finally:
            timer.cancel()

    async def _own_lock(self) -> bool:
        """A lock of ours from a try whose answer was lost."""
        key = self._jobs.keys.request_lock(self._order.request_id)
        return bool(await self._jobs.redis.call("GET", key) == self._order.job_id.encode())

    async def _lost_binding(self) -> Exists:
        jobs, order = self._jobs, self._order
        reply = await jobs.advance(order.job_id, Event.CANCEL, attempt=None, outcome=Outcome.CANCELLED)
        binding = jobs.parse_binding(await jobs.binding(order.request_id))
        log.info("request bound elsewhere", job=order.job_id, trace_id=order.trace_id, cancelled=reply)
        return Exists(binding.job_id if binding is not None else "")

    async def _abandon(self) -> None:
        """Somebody else's job answers this request, or none: give up whatever ours has taken."""
        placer, order = self._placer, self._order
        if order.held is not None:
            node_id = order.held.node_id
            if await placer.give_back(order) is Given.FREED:
                placer.on_freed(node_id)
        else:
            await self._let_go()
        unawaited(self._jobs.undriven(placer.instance, order.job_id))
        unawaited(self._jobs.unlock(order.request_id, order.job_id))

    async def _let_go(self) -> None:
        slot = self._slot
        if slot is not None and await slot.let_go() is Given.FREED:
            self._placer.on_freed(slot.choice.node_id)


class Recording:
    """Write 2, which is made ready while Redis works on write 1."""

    def __init__(self, placer: Placer, order: Order, choice: Assign | Wait) -> None:
        self._placer, self._order, self._choice = placer, order, choice
        self._node, self._epoch = (choice.node_id, choice.epoch) if isinstance(choice, Assign) else ("", 0)
        self._ready: tuple[Kept, list[asyncio.Future[Any]]] | None = None

    def prepare(self) -> None:
        self._ready = self._ready or self._prepared()

    def send(self, binds_turn: bool) -> "list[asyncio.Future[Any]]":
        """Create, bind, and what the turn needs; once prepared it is sent once, after that it is made anew."""
        (kept, writes), self._ready = self._ready or self._prepared(), None
        kept.send()
        if binds_turn:
            writes += self._placer.turns.binding(self._order.session_id, self._order.line.turn.id, self._node)
        return writes

    def _prepared(self) -> "tuple[Kept, list[asyncio.Future[Any]]]":
        jobs, order = self._placer.jobs, self._order
        with jobs.redis.keeping() as kept:
            create = jobs.create(order.job_id, self._fields(), self._node, self._epoch)
            bind = jobs.bind(order.request_id, Binding(order.job_id, self._placer.instance))
            for noted in jobs.note(order.job_id):
                unawaited(noted)
        return kept, [create, bind]

    def _fields(self) -> dict[str, object]:
        order, assignment = self._order, self._order.assignment
        return {
            "job_id": order.job_id,
            "request_id": order.request_id,
            "session_id": order.session_id,
            "tenant": order.tenant,
            "utterance_index": order.index,
            "src_lang": assignment.src_lang,
            "tgt_lang": assignment.tgt_lang,
            "turn_id": order.line.turn.id,
            "trace_id": order.trace_id,
            "driver": self._placer.instance,
            # What is recorded begins when there is a place: how long that took is told beside it.
            "waited_ms": int((monotonic() - order.cut_at) * 1000),
            "receipt": msgspec.json.encode(self._choice.receipt),
        }


def _nothing() -> None: ...


def _give_up(futures: "tuple[asyncio.Future[Any], ...]") -> None:
    for future in futures:
        if not future.done():
            future.set_exception(RedisAway("no answer while a job waits for its place"))
