"""Task queues that run a no-op task on the same Redis: the throughput of a good queue on this machine.

Each is set up as its own documentation says, at its best: uvloop, hiredis where it can, a stored result for every task.
The worker and the producer are load processes; the package of a queue is imported only there.
"""

import asyncio
import logging
import tempfile
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dragoman.tools.bench.environment import Servers
from dragoman.tools.bench.measure import Quantities
from dragoman.tools.processes import CannotRun, LoadProcess, cpu_s, serve

MODULE = "dragoman.tools.bench.task_queues"
CONCURRENCY = 100
RESULT_TTL_S = 3600
QUEUE = "bench"
AHEAD = 2000  # tasks that wait while the worker is measured
BATCH = 100  # enqueued at a time
POLL_S = 0.1

DISTRIBUTIONS = {"taskiq": "taskiq-redis", "streaq": "streaq", "saq": "saq"}  # by the name of the queue


def release(name: str) -> str | None:
    """None if it is not installed."""
    try:
        return version(DISTRIBUTIONS[name])
    except PackageNotFoundError:
        return None


# -- the queues ------------------------------------------------------------------------------------


class TaskQueue(ABC):
    """One task queue on the Redis at `url`, as its worker or as its producer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.done = 0

    @abstractmethod
    async def work(self) -> None:
        """Run one worker, CONCURRENCY tasks at a time, until cancelled; every task run is counted in `done`."""

    @abstractmethod
    async def connect(self) -> None:
        """Before anything is enqueued."""

    @abstractmethod
    async def enqueue(self, count: int) -> None:
        """So many no-op tasks."""


class Saq(TaskQueue):
    """SAQ: lists and blocking moves. It has no streams; it is here as the fastest of its kind."""

    def __init__(self, url: str) -> None:
        import redis.asyncio
        from saq.queue.redis import RedisQueue

        super().__init__(url)
        # redis-py's own time-out of 5 s would end its blocking reads.
        self._queue = RedisQueue(redis.asyncio.from_url(url, socket_timeout=None), name=QUEUE)

    async def _noop(self, _: Any) -> None:
        self.done += 1

    async def work(self) -> None:
        from saq import Worker

        await self._queue.connect()
        await Worker(self._queue, [("noop", self._noop)], concurrency=CONCURRENCY).start()

    async def connect(self) -> None:
        await self._queue.connect()

    async def enqueue(self, count: int) -> None:
        await asyncio.gather(*(self._queue.enqueue("noop", ttl=RESULT_TTL_S) for _ in range(count)))


class Streaq(TaskQueue):
    """streaQ: streams, its own Lua library, many tasks enqueued in one pipeline."""

    def __init__(self, url: str) -> None:
        from streaq import Worker

        super().__init__(url)
        self._worker: Worker[None] = Worker(
            redis_url=url, queue_name=QUEUE, concurrency=CONCURRENCY, handle_signals=False
        )
        self._open = AsyncExitStack()

        async def noop() -> None:
            self.done += 1

        self._task = self._worker.task(name="noop", ttl=RESULT_TTL_S, silent=True)(noop)

    async def work(self) -> None:
        await self._worker.run_async()

    async def connect(self) -> None:
        await self._open.enter_async_context(self._worker)

    async def enqueue(self, count: int) -> None:
        await self._worker.enqueue_many([self._task.enqueue() for _ in range(count)])


class Taskiq(TaskQueue):
    """taskiq: the stream broker of taskiq-redis, results in the same Redis."""

    def __init__(self, url: str) -> None:
        from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

        super().__init__(url)
        # redis-py's own time-out of 5 s would end its blocking reads.
        results: RedisAsyncResultBackend[None] = RedisAsyncResultBackend(
            url, result_ex_time=RESULT_TTL_S, socket_timeout=None
        )
        self._broker = RedisStreamBroker(url, queue_name=QUEUE, consumer_id="0", socket_timeout=None)
        self._broker = self._broker.with_result_backend(results)

        async def noop() -> None:
            self.done += 1

        self._task = self._broker.register_task(noop, task_name="noop")

    async def work(self) -> None:
        from taskiq.receiver import Receiver

        self._broker.is_worker_process = True
        await Receiver(self._broker, max_async_tasks=CONCURRENCY).listen(asyncio.Event())

    async def connect(self) -> None:
        await self._broker.startup()

    async def enqueue(self, count: int) -> None:
        await asyncio.gather(*(self._task.kiq() for _ in range(count)))


QUEUES: dict[str, type[TaskQueue]] = {"taskiq": Taskiq, "streaq": Streaq, "saq": Saq}


# -- the process of a worker, and that of a producer -----------------------------------------------


class QueueProcess:
    def __init__(self) -> None:
        self._queue: TaskQueue
        self._work: asyncio.Task[None] | None = None
        self._produced = 0

    async def work(self, name: str, url: str) -> None:
        self._queue = QUEUES[name](url)
        self._work = asyncio.create_task(self._queue.work())

    async def connect(self, name: str, url: str) -> None:
        self._queue = QUEUES[name](url)
        await self._queue.connect()

    async def produce(self, until: int) -> dict[str, Any]:
        """Go on until so many have been enqueued in all."""
        while self._produced < until:
            count = min(BATCH, until - self._produced)
            await self._queue.enqueue(count)
            self._produced += count
        return {"produced": self._produced}

    async def count(self) -> dict[str, Any]:
        if self._work is not None and self._work.done():
            self._work.result()
            raise RuntimeError("the worker has ended")
        return {"done": self._queue.done}


# -- the measurement -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    done: int
    worker_cpu_s: float
    redis_cpu_s: float


async def measure(name: str, servers: Servers, warmup_s: float, seconds: float) -> Quantities:
    """Tasks/s, the CPU time of one in the worker and in Redis, and the fewest that were waiting for the worker."""
    if release(name) is None:
        raise CannotRun("it is not installed; it comes with the extra `bench`")
    servers.clear()
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-"))) / "queue.log"
        worker, producer = (stack.enter_context(LoadProcess(MODULE, log)) for _ in range(2))
        race = Race(worker, producer, servers)
        await worker.call("work", name=name, url=servers.urls[0])
        await producer.call("connect", name=name, url=servers.urls[0])
        await race.run(warmup_s)
        return await race.measure(seconds)


class Race:
    """A worker, and a producer that always keeps AHEAD tasks waiting for it."""

    def __init__(self, worker: LoadProcess, producer: LoadProcess, servers: Servers) -> None:
        self._worker, self._producer, self._servers = worker, producer, servers
        self._produced = self._fewest = 0

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until, self._fewest = loop.time() + seconds, AHEAD
        while loop.time() < until:
            done = (await self._worker.call("count"))["done"]
            self._fewest = min(self._fewest, self._produced - done)
            self._produced = (await self._producer.call("produce", until=done + AHEAD))["produced"]
            await asyncio.sleep(max(min(POLL_S, until - loop.time()), 0))

    async def measure(self, seconds: float) -> Quantities:
        before = await self._sample()
        await self.run(seconds)
        after = await self._sample()
        tasks = after.done - before.done
        if tasks <= 0:
            raise CannotRun("its worker ran no task")
        return {
            "per_s": tasks / (after.at - before.at),
            "cpu_ms": (after.worker_cpu_s - before.worker_cpu_s) / tasks * 1e3,
            "redis_cpu_ms": (after.redis_cpu_s - before.redis_cpu_s) / tasks * 1e3,
            "least_waiting": self._fewest,
        }

    async def _sample(self) -> Sample:
        done = (await self._worker.call("count"))["done"]
        return Sample(asyncio.get_running_loop().time(), done, cpu_s(self._worker.pid), self._servers.cpu_s())


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    process = QueueProcess()
    serve({"work": process.work, "connect": process.connect, "produce": process.produce, "count": process.count})
