"""Runs the handler on the jobs that the server assigns: acks, starts, partials, results, cancellations.

It knows no socket: `send` sends a message if the node is connected, `finish` takes a result that must arrive. A job
goes on when the connection is lost, because the server still accepts its result for a while.
"""

import asyncio
import heapq
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from dragoman.node.job import Job, ModelNotAvailable, Result, encode_failure, encode_result, valid_text
from dragoman.node.threads import Threads
from dragoman.protocol.fields import Message
from dragoman.protocol.node import JobAck, JobAssign, JobStarted, NodePartial

log = logging.getLogger("dragoman.node")

_ABOUT = "%s, %s → %s"

Handler = Callable[[Job], Awaitable[Result | None]] | Callable[[Job], Result | None]


T = TypeVar("T", bound=Hashable)


class Lanes(Generic[T]):
    """Which job starts next: at most `slots` at a time, and the jobs of one lane one after another, by index. Pure.

    A server concludes from a result that all earlier utterances of the session are done, so one session's jobs must
    not overtake each other. Lanes take turns, so a long session does not starve a short one. Jobs need a hash only.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError("a node needs at least one slot")
        self.slots = slots
        self._arrival = count()
        self._waiting: dict[Hashable, list[tuple[int, int, T]]] = {}  # lane → heap of (index, arrival, job)
        self._lane_of: dict[T, Hashable] = {}  # of waiting jobs
        self._turn: dict[Hashable, None] = {}  # lanes with a job to start, in the order of their turns
        self._running: dict[T, Hashable] = {}
        self._busy: set[Hashable] = set()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._lane_of)

    def add(self, job: T, lane: Hashable, index: int) -> None:
        heapq.heappush(self._waiting.setdefault(lane, []), (index, next(self._arrival), job))
        self._lane_of[job] = lane
        if lane not in self._busy:
            self._turn.setdefault(lane)

    def start(self) -> T | None:
        """The job to start now; call until None."""
        if not self._turn or len(self._running) >= self.slots:
            return None
        lane = next(iter(self._turn))
        del self._turn[lane]
        _, _, job = heapq.heappop(self._waiting[lane])
        self._started_or_dropped(job, lane)
        self._running[job] = lane
        self._busy.add(lane)
        return job

    def end(self, job: T) -> None:
        """The job has ended: its slot and its lane are free."""
        lane = self._running.pop(job)
        self._busy.discard(lane)
        if lane in self._waiting:
            self._turn.setdefault(lane)

    def drop(self, job: T) -> bool:
        """Remove a job that waits; False if it does not wait."""
        if job not in self._lane_of:
            return False
        lane = self._lane_of[job]
        self._waiting[lane] = [entry for entry in self._waiting[lane] if entry[2] != job]
        heapq.heapify(self._waiting[lane])
        self._started_or_dropped(job, lane)
        return True

    def _started_or_dropped(self, job: T, lane: Hashable) -> None:
        del self._lane_of[job]
        if not self._waiting[lane]:
            del self._waiting[lane]
            self._turn.pop(lane, None)


class Worker:
    def __init__(
        self,
        handler: Handler,
        slots: int,
        node_id: Callable[[], str],
        send: Callable[[Message], None],
        finish: Callable[[bytes], None],
    ) -> None:
        self._handler = handler
        self._in_thread = not _is_async(handler)
        self._lanes: Lanes[Job] = Lanes(slots)
        self._node_id = node_id
        self._send = send
        self._finish = finish
        self._jobs: dict[str, Job] = {}  # not those that were cancelled, although they may still run
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self._threads = Threads(slots, "dragoman-job") if self._in_thread else None
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    @property
    def running(self) -> int:
        return self._lanes.running

    def assign(self, assign: JobAssign) -> None:
        """Take a job. A job that is known goes on as the new attempt: the audio is the same."""
        job = self._jobs.get(assign.job_id)
        if job is not None:
            self._assign_again(job, assign)
            return
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        job = self._jobs[assign.job_id] = Job(assign, self._partial)
        self._idle.clear()
        self._report(JobAck, job)
        self._lanes.add(job, job.lane, job.utterance_index)
        self._start()

    def _assign_again(self, job: Job, assign: JobAssign) -> None:
        if assign.attempt_id < job.attempt_id:
            return
        job.reassign(assign)
        self._report(JobAck, job)
        if job in self._tasks:
            self._report(JobStarted, job)

    def cancel(self, job_id: str) -> None:
        """Drop a job that waits, interrupt one that runs. Neither gets a result."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        job.cancel()
        self._forget(job)
        # A thread cannot be interrupted: it keeps its slot and its lane until it returns.
        if not self._lanes.drop(job) and not self._in_thread:
            self._tasks[job].cancel()

    async def until_idle(self) -> None:
        await self._idle.wait()

    async def abandon(self) -> None:
        """Cancel everything. Threads cannot be cancelled; they are not waited for."""
        for job_id in list(self._jobs):
            self.cancel(job_id)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.close()

    # ------------------------------------------------------------ one job

    def _start(self) -> None:
        while (job := self._lanes.start()) is not None:
            task = asyncio.get_running_loop().create_task(self._run(job), name=job.job_id)
            self._tasks[job] = task
            # Not a `finally` in the task: a task that is cancelled before its first step never runs it.
            task.add_done_callback(partial(self._ended, job))

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        del self._tasks[job]
        self._lanes.end(job)
        self._forget(job)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%r has no result because of a bug in the node", job, exc_info=error)
        self._start()

    async def _run(self, job: Job) -> None:
        if job.cancelled:
            return
        self._report(JobStarted, job)
        data = await self._answer(job)
        if not job.cancelled:
            self._finish(data)

    async def _answer(self, job: Job) -> bytes:
        began = time.monotonic()
        try:
            given = await self._call(job)
            took_ms = _ms_since(began)
            data = encode_result(job, self._node_id(), given, took_ms)
            empty = "" if given is not None and not given.is_empty else ", empty" if job.is_text else ", nothing said"
            log.info(f"%s done%s: {_ABOUT}, %d ms", job.job_id, empty, *_about(job), took_ms)
            return data
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something that the handler awaited was cancelled, not the job.
            return encode_failure(job, self._node_id(), error, _ms_since(began))
        except Exception as error:
            if isinstance(error, ModelNotAvailable):
                log.info(f"%s refused, %s: {_ABOUT}", job.job_id, error, *_about(job))
            elif not job.cancelled:
                log.exception("the handler failed on %r", job)
            return encode_failure(job, self._node_id(), error, _ms_since(began))

    async def _call(self, job: Job) -> Result | None:
        given: object
        if self._threads is not None:
            given = await self._threads.run(self._handler, job)
        else:
            given = self._handler(job)
        return await given if inspect.isawaitable(given) else given  # type: ignore[return-value]  # encode_result checks it

    def _forget(self, job: Job) -> None:
        if self._jobs.get(job.job_id) is job:
            del self._jobs[job.job_id]
        if not self._jobs:
            self._idle.set()

    # ------------------------------------------------------------ messages before the result

    def _report(self, kind: type[JobAck] | type[JobStarted], job: Job) -> None:
        self._send(kind(job.job_id, job.attempt_id, self._node_id(), job.session_id, job.trace_id))

    def _partial(self, job: Job, text: str, is_final: bool) -> None:
        if threading.get_ident() == self._loop_thread:
            self._send_partial(job, text, is_final)
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send_partial, job, text, is_final)

    def _send_partial(self, job: Job, text: str, is_final: bool) -> None:
        if job.cancelled:
            return
        self._send(
            NodePartial(
                job_id=job.job_id,
                node_id=self._node_id(),
                session_id=job.session_id,
                utterance_index=job.utterance_index,
                text=valid_text(text),
                is_final=is_final,
                trace_id=job.trace_id,
            )
        )


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _about(job: Job) -> tuple[object, ...]:
    """The values of `_ABOUT`."""
    return job.what, job.src_lang, job.tgt_lang


def _ms_since(began: float) -> float:
    return (time.monotonic() - began) * 1000
