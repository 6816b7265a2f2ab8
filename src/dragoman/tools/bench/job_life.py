"""All that one job asks of Redis, in the order in which its driver asks it, by the store's own modules.

    1  binding? · lock · slot · driven      one write
    2  created and dispatched · binding     one write, then the job may go to its node; the lock is not waited for
    3  ack      4  started      5  result   as the node tells them
    6  slot back
    7  released · not driven any more       one write

Each step is one wait. What a step is answered is checked: a job that was refused measured nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import Any

from dragoman import logs
from dragoman.domain.job import Event, Outcome, Reply
from dragoman.instance.instance import Instance
from dragoman.protocol.ids import job_id, request_id, session_id, trace_id, turn_id
from dragoman.protocol.peer import AssignJob, CancelJob
from dragoman.services.speech.job_request import JobRequest
from dragoman.store.inbox import PushReply
from dragoman.store.jobs import Binding, Jobs
from dragoman.store.keys import Keys
from dragoman.store.nodes import ReleaseReply, Reservations
from dragoman.store.redis import Redis
from dragoman.tools.bench.environment import configured
from dragoman.tools.bench.measure import Going
from dragoman.tools.bench.speech_load import NodeLoad, SpeechLoad
from dragoman.tools.processes import CannotRun, serve

NODES = 20
SLOTS = 4096  # more than there are callers: whether a node is full is not the question here
RESERVATION_TTL_MS = 15_000
DRIVER, INCARNATION = "bench-1", "one"
PROBED_JOBS = 20
_FAR_MS = 4_000_000_000_000
_RECEIPT = '{"pool":20,"drawn":["node-00000001","node-00000002"],"chosen":"node-00000001","affinity":"first"}'


class JobLife:
    """One session, whose utterances become jobs one after the other."""

    def __init__(self, redis: Redis, keys: Keys, number: int) -> None:
        self._jobs = Jobs(redis, keys)
        self._slots = Reservations(redis, keys, RESERVATION_TTL_MS)
        self._session = session_id()
        self._node = f"node-{number % NODES:08X}"
        self._index = -1
        self._job = self._request = ""
        self.before_assign: tuple[Callable[[], Awaitable[None]], ...] = (self.ask, self.record)
        self.after_assign = (self.acknowledged, self.started, self.answered, self.give_back, self.close)

    async def begin(self) -> None:
        """Only an instance whose inbox is open drives jobs."""
        await self._jobs.redis.call("SET", self._jobs.keys.open(DRIVER), INCARNATION)

    async def ask(self) -> None:
        self._index += 1
        self._job, self._request = job_id(), request_id(self._session, self._index, "es")
        replies = await asyncio.gather(
            self._jobs.binding(self._request),
            self._jobs.lock(self._request, self._job),
            self._slots.reserve(self._node, self._job, SLOTS),
            self._jobs.drive(DRIVER, INCARNATION, self._job, _FAR_MS),
        )
        self._expect(replies, [None, b"OK", b"OK", b"OK"])

    async def record(self) -> None:
        fields = {
            "session_id": self._session,
            "utterance_index": self._index,
            "request_id": self._request,
            "driver": DRIVER,
            "src": "en",
            "tgt": "es",
            "turn_id": turn_id(),
            "trace_id": trace_id(),
            "receipt": _RECEIPT,
        }
        replies = await asyncio.gather(
            self._jobs.create(self._job, fields, self._node, 1),
            self._jobs.bind(self._request, Binding(self._job, DRIVER)),
        )
        self._expect(replies, [b"OK", b"OK"])
        self._jobs.unlock(self._request, self._job)

    async def acknowledged(self) -> None:
        await self._advance(Event.ACK)

    async def started(self) -> None:
        await self._advance(Event.START)

    async def answered(self) -> None:
        await self._advance(Event.RESULT, Outcome.OK)

    async def give_back(self) -> None:
        self._expect(await self._slots.release(self._node, self._job, SLOTS), ReleaseReply.OK)

    async def close(self) -> None:
        undriven = self._jobs.undriven(DRIVER, self._job)
        await self._advance(Event.RELEASE)
        self._expect(await undriven, 1)

    async def _advance(self, event: Event, outcome: Outcome | None = None) -> None:
        reply = await self._jobs.advance(self._job, event, attempt=1, node=self._node, outcome=outcome)
        self._expect(reply, Reply.OK)

    def _expect(self, reply: object, wanted: object) -> None:
        if reply != wanted:
            raise CannotRun(f"Redis answered a step of {self._job} with {reply!r} instead of {wanted!r}.")


async def live(life: JobLife, going: Going, waits_s: list[float]) -> int:
    """Job after job; notes how long each waited until it could be assigned. Returns how many there were."""
    done = 0
    await life.begin()
    while going.on or not done:
        begun = perf_counter()
        for step in life.before_assign:
            await step()
        waits_s.append(perf_counter() - begun)
        for step in life.after_assign:
            await step()
        done += 1
    return done


async def round_trips(redis: Redis, keys: Keys) -> tuple[float, float]:
    """Waits for Redis of one job before it can be assigned, and in all.

    Counted by the connections: a step in which anything was written is one, to however many masters it went at once.
    """
    life = JobLife(redis, keys, 0)
    await life.begin()
    counts = [0, 0]
    for _ in range(PROBED_JOBS):
        for part, steps in enumerate((life.before_assign, life.after_assign)):
            for step in steps:
                written = redis.flushes
                await step()
                counts[part] += redis.flushes > written
    before, after = (count / PROBED_JOBS for count in counts)
    return before, before + after


# -- round trips -----------------------------------------------------------------------------------
#
# How often a job waits for Redis between its cut and its `job_assign`: counted by the connection of a real instance.
#
# The instance, one node and one session share this process, so that the connection can be asked at both moments. One
# job at a time: every write between the two is then one of this job, and one it waited for. What the instance writes
# for itself now and then may fall in between, so the middle of many jobs counts.


DRAIN_TIMEOUT_S = 10.0


class Probe:
    """Reads the count of writes at the two ends: a job is taken, its assignment is sent."""

    def __init__(self, instance: Instance) -> None:
        self._redis = instance.redis
        self._cut_at = 0
        self.counts: list[int] = []
        dispatcher, router = instance.services.dispatcher, instance.services.router
        take, to_node = dispatcher.take, router.to_node

        def taken(request: JobRequest, state_written: "asyncio.Future[bool] | None" = None) -> None:
            self._cut_at = self._redis.flushes
            take(request, state_written)

        async def sent(owner: str, message: AssignJob | CancelJob) -> PushReply:
            if isinstance(message, AssignJob):
                self.counts.append(self._redis.flushes - self._cut_at)
            return await to_node(owner, message)

        dispatcher.take, router.to_node = taken, sent  # type: ignore[method-assign]


async def measure(redis_url: str, jobs: int) -> dict[str, Any]:
    logs.configure("error", "json")
    config = configured(redis_url, "bench-round-trips", 1)
    instance = await Instance.start(config)
    try:
        url = f"ws://127.0.0.1:{config.server.port}"
        nodes, speakers = NodeLoad(), SpeechLoad()
        await nodes.open([url], 1, 4, ["es"])
        await speakers.open([url], 1, ["es"])
        probe = Probe(instance)
        for _ in range(jobs):
            speakers.sessions[0].send()
            await speakers.rest()
            # What follows a result (slot back, released) is written before the next job begins.
            await instance.services.dispatcher.drained(DRAIN_TIMEOUT_S)
        if len(probe.counts) != jobs:
            raise CannotRun(f"of {jobs} jobs, {len(probe.counts)} were assigned")
        return {"before_assign": median(probe.counts)}
    finally:
        await instance.stop()


if __name__ == "__main__":
    serve({"measure": measure})
