"""The record of a job in Redis, as its driver writes it, and the metrics of jobs.

`DispatchWrite` is the write that makes a job DISPATCHED; `job_placement` sends it before the job goes to a node.

At the end of a job FINISHED comes first; then its slot is released, RELEASED is recorded and the job leaves the
driver's list. A slot released before FINISHED could be reserved for another job while this one still runs. If Redis is
unavailable, every write is repeated until it has worked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from time import monotonic
from typing import Any

import msgspec

from dragoman.domain.job import Event, Reply
from dragoman.domain.job_signals import End, Finish
from dragoman.domain.placement import Assign, Wait
from dragoman.protocol.codes import ErrorCode
from dragoman.services.loops import Tasks, answers, retry, unawaited
from dragoman.services.metrics import Metrics
from dragoman.services.speech.job_request import JobRequest
from dragoman.services.speech.placer import Placer
from dragoman.store.errors import StoreError
from dragoman.store.jobs import Binding, Jobs
from dragoman.store.redis import Kept

REDIS_PAUSE_S = 0.25
MAX_MESSAGE = 300  # characters of a node's error message that are recorded with its job
STAGES = ("placed", "dispatched", "acked", "result", "ended")
ReleaseSlot = Callable[[], Awaitable[object]]
_CODES = frozenset(str(code) for code in ErrorCode)


class JobRecords:
    def __init__(self, instance: str, jobs: Jobs, tasks: Tasks) -> None:
        self._instance, self._jobs, self._tasks = instance, jobs, tasks

    def progress(self, job_id: str, event: Event, attempt: int, node_id: str) -> None:
        """ACK or START. The driver does not wait for it."""
        unawaited(self._jobs.advancing(job_id, event, attempt=attempt, node=node_id))

    def unlock(self, request: JobRequest) -> None:
        unawaited(self._jobs.unlock(request.request_id, request.job_id))

    async def reassign(self, job_id: str, attempt: int, reason: str) -> Reply:
        return await self._jobs.advance(job_id, Event.REASSIGN, attempt=attempt, code=reason)

    async def late_result(self, job_id: str, node_id: str) -> bool:
        return await self._jobs.late_result(job_id, node_id)

    def note_release_state(self, job_id: str, state: str) -> None:
        """Of a job that another instance drove."""
        self._tasks.spawn(self._note_release_state(job_id, state), "release-state")

    async def _note_release_state(self, job_id: str, state: str) -> None:
        await retry(lambda: self._jobs.note_release_state(job_id, state), pause_s=REDIS_PAUSE_S)

    async def finish(self, job_id: str, step: Finish, until: float) -> Reply | None:
        """Record FINISHED; None if Redis was unavailable until then."""
        end = step.end
        why: dict[str, Any] = {"receipt": msgspec.json.encode(end.receipt)} if end.receipt is not None else {}
        if end.message:
            why["message"] = end.message[:MAX_MESSAGE]

        def advance() -> Awaitable[Reply]:
            ended: dict[str, Any] = {"outcome": end.outcome, "code": end.code, **why}
            return self._jobs.advance(job_id, step.event, attempt=step.attempt, node=step.node_id, **ended)

        try:
            return await retry(advance, until=until, pause_s=REDIS_PAUSE_S)
        except StoreError:
            return None

    async def close(self, job_id: str, release_state: str, release_slot: ReleaseSlot) -> None:
        """Release the slot, record RELEASED, take the job off the driver's list: in one write."""
        state = dict[str, Any](release_state=release_state) if release_state else {}

        async def release() -> None:
            released = self._jobs.advancing(job_id, Event.RELEASE, attempt=None, **state)
            undriven = self._jobs.undriven(self._instance, job_id)
            try:
                await release_slot()
            except StoreError:
                unawaited(released)
                unawaited(undriven)
                raise
            await answers(released, undriven)

        await retry(release, pause_s=REDIS_PAUSE_S)

    def finish_later(self, job_id: str, step: Finish, release_state: str, release_slot: ReleaseSlot) -> None:
        """All of it, when Redis is available again."""
        self._tasks.spawn(self._finish_later(job_id, step, release_state, release_slot), "finish-job")

    async def _finish_later(self, job_id: str, step: Finish, release_state: str, release_slot: ReleaseSlot) -> None:
        await self.finish(job_id, step, inf)
        await self.close(job_id, release_state, release_slot)


class JobMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._ended, self._failovers, self._dropped = metrics.jobs, metrics.failovers, metrics.dropped
        self._stages = {name: metrics.stage.labels(name) for name in STAGES}

    def stage(self, name: str, request: JobRequest) -> None:
        self._stages[name].observe(monotonic() - request.cut_at)

    def ended(self, end: End) -> None:
        """The code of a result is the node's own; a metric's label must not be anything a node makes up."""
        code = end.code
        if end.result is not None and code and code not in _CODES:
            code = "OTHER"
        self._ended.labels(end.outcome, code).inc()

    def failover(self, reason: str) -> None:
        self._failovers.labels(reason).inc()

    def dropped(self, reason: str, count: int = 1) -> None:
        self._dropped.labels(reason).inc(count)


class DispatchWrite:
    """Write 2, which is prepared while Redis works on write 1."""

    def __init__(self, placer: Placer, request: JobRequest, choice: Assign | Wait) -> None:
        self._placer, self._request, self._choice = placer, request, choice
        self._node, self._epoch = (choice.node_id, choice.epoch) if isinstance(choice, Assign) else ("", 0)
        self._ready: tuple[Kept, list[asyncio.Future[Any]]] | None = None

    def prepare(self) -> None:
        self._ready = self._ready or self._prepared()

    def send(self, binds_turn: bool) -> "list[asyncio.Future[Any]]":
        """Create, bind, and what the turn needs. A repetition is prepared anew."""
        (kept, writes), self._ready = self._ready or self._prepared(), None
        kept.send()
        if binds_turn:
            turn_id = self._request.turn_queue.turn.id
            writes += self._placer.turns.binding(self._request.session_id, turn_id, self._node)
        return writes

    def _prepared(self) -> "tuple[Kept, list[asyncio.Future[Any]]]":
        jobs, request = self._placer.jobs, self._request
        with jobs.redis.keeping() as kept:
            create = jobs.create(request.job_id, self._fields(), self._node, self._epoch)
            bind = jobs.bind(request.request_id, Binding(request.job_id, self._placer.instance))
            for noted in jobs.note(request.job_id):
                unawaited(noted)
        return kept, [create, bind]

    def _fields(self) -> dict[str, object]:
        request, assignment = self._request, self._request.assignment
        return {
            "job_id": request.job_id,
            "request_id": request.request_id,
            "session_id": request.session_id,
            "tenant": request.tenant,
            "utterance_index": request.index,
            "src_lang": assignment.src_lang,
            "tgt_lang": assignment.tgt_lang,
            "turn_id": request.turn_queue.turn.id,
            "trace_id": request.trace_id,
            "driver": self._placer.instance,
            # The record begins when the job has a node: how long that took is written beside it.
            "waited_ms": int((monotonic() - request.cut_at) * 1000),
            "receipt": msgspec.json.encode(self._choice.receipt),
            **({"text_kind": request.text_kind.value} if request.text_kind is not None else {}),
            **({"room": msgspec.json.encode(request.room)} if request.room is not None else {}),
        }
