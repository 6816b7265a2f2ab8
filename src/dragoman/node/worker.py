"""Runs the handler over the jobs the server assigns: acks, starts, partials, results, cancellations.

It knows no socket. `say` sends a message if anybody listens now; `finish` takes a result that must arrive.
A job goes on when the connection is lost: its result is still wanted for a while.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

from dragoman.node import answer
from dragoman.node.job import Job, ModelNotAvailable, Result
from dragoman.node.lanes import Lanes
from dragoman.node.threads import Threads
from dragoman.protocol.fields import Message
from dragoman.protocol.node import JobAck, JobAssign, JobStarted, NodePartial

log = logging.getLogger("dragoman.node")

_ABOUT = "utterance %d of %s, %s → %s"

Handler = Callable[[Job], Awaitable[Result | None]] | Callable[[Job], Result | None]


class Worker:
    def __init__(
        self,
        handler: Handler,
        slots: int,
        node_id: Callable[[], str],
        say: Callable[[Message], None],
        finish: Callable[[bytes], None],
    ) -> None:
        self._handler = handler
        self._in_thread = not _is_async(handler)
        self._lanes: Lanes[Job] = Lanes(slots)
        self._node_id = node_id
        self._say = say
        self._finish = finish
        self._jobs: dict[str, Job] = {}  # wanted ones; a cancelled one may still run, but is not in here
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
        """Take a job. One we have already goes on under the new attempt: the audio is the same."""
        job = self._jobs.get(assign.job_id)
        if job is not None:
            self._assign_again(job, assign)
            return
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        job = self._jobs[assign.job_id] = Job(assign, self._partial)
        self._idle.clear()
        self._tell(JobAck, job)
        self._lanes.add(job, job.lane, job.utterance_index)
        self._start()

    def _assign_again(self, job: Job, assign: JobAssign) -> None:
        if assign.attempt_id < job.attempt_id:
            return
        job.reassigned(assign)
        self._tell(JobAck, job)
        if job in self._tasks:
            self._tell(JobStarted, job)

    def cancel(self, job_id: str) -> None:
        """Drop a job that waits; interrupt one that runs. No answer either way."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        job.cancelled = True
        self._forget(job)
        # A thread cannot be interrupted: it keeps its slot and its lane until it is back.
        if not self._lanes.drop(job) and not self._in_thread:
            self._tasks[job].cancel()

    async def until_idle(self) -> None:
        await self._idle.wait()

    async def abandon(self) -> None:
        """Cancel everything. Threads cannot be: what they do is no longer waited for."""
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
            # Not a `finally` in the task: one cancelled before its first step never gets there.
            task.add_done_callback(partial(self._ended, job))

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        del self._tasks[job]
        self._lanes.end(job)
        self._forget(job)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%r was lost", job, exc_info=error)
        self._start()

    async def _run(self, job: Job) -> None:
        if job.cancelled:
            return
        self._tell(JobStarted, job)
        data = await self._answer(job)
        if not job.cancelled:
            self._finish(data)

    async def _answer(self, job: Job) -> bytes:
        began = time.monotonic()
        try:
            given = await self._call(job)
            took_ms = _ms_since(began)
            data = answer.result(job, self._node_id(), given, took_ms)
            said = "" if given is not None and not given.is_empty else ", nothing said"
            log.info(f"%s done%s: {_ABOUT}, %d ms", job.job_id, said, *_about(job), took_ms)
            return data
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not we were cancelled, but something the handler waited for.
            return answer.failure(job, self._node_id(), error, _ms_since(began))
        except Exception as error:
            if isinstance(error, ModelNotAvailable):
                log.info(f"%s given back, %s: {_ABOUT}", job.job_id, error, *_about(job))
            elif not job.cancelled:
                log.exception("the handler failed on %r", job)
            return answer.failure(job, self._node_id(), error, _ms_since(began))

    async def _call(self, job: Job) -> Result | None:
        given: object
        if self._threads is not None:
            given = await self._threads.run(self._handler, job)
        else:
            given = self._handler(job)
        return await given if inspect.isawaitable(given) else given  # type: ignore[return-value]  # answer checks it

    def _forget(self, job: Job) -> None:
        if self._jobs.get(job.job_id) is job:
            del self._jobs[job.job_id]
        if not self._jobs:
            self._idle.set()

    # ------------------------------------------------------------ what is said on the way

    def _tell(self, kind: type[JobAck] | type[JobStarted], job: Job) -> None:
        self._say(kind(job.job_id, job.attempt_id, self._node_id(), job.session_id, job.trace_id))

    def _partial(self, job: Job, text: str, is_final: bool) -> None:
        if threading.get_ident() == self._loop_thread:
            self._say_partial(job, text, is_final)
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._say_partial, job, text, is_final)

    def _say_partial(self, job: Job, text: str, is_final: bool) -> None:
        if job.cancelled:
            return
        text = answer.plain(text)
        node_id = self._node_id()
        self._say(NodePartial(job.job_id, node_id, job.session_id, job.utterance_index, text, is_final, job.trace_id))


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _about(job: Job) -> tuple[object, ...]:
    """The values of `_ABOUT`."""
    return job.utterance_index, job.session_id, job.src_lang, job.tgt_lang


def _ms_since(began: float) -> float:
    return (time.monotonic() - began) * 1000
