"""One peer for so many seconds: a worker in one process, in another a producer that always keeps it some work ahead."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile

from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.load_process import LoadProcess
from dragoman.tools.bench.peers.queue import release
from dragoman.tools.bench.processes import cpu_s
from dragoman.tools.bench.rounds import Quantities
from dragoman.tools.bench.servers import Servers

AHEAD = 2000  # tasks that wait while the worker is measured
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Look:
    at: float
    done: int
    worker_cpu_s: float
    redis_cpu_s: float


async def race(name: str, servers: Servers, warmup_s: float, seconds: float) -> Quantities:
    """Tasks/s, the CPU time of one in the worker and in Redis, and the fewest that were waiting for the worker."""
    if release(name) is None:
        raise BenchError("it is not installed; it comes with the extra `bench`")
    servers.clear()
    with ExitStack() as stack:
        log = stack.enter_context(TemporaryFile())
        worker = stack.enter_context(await LoadProcess.start("dragoman.tools.bench.peers.process", log))
        producer = stack.enter_context(await LoadProcess.start("dragoman.tools.bench.peers.process", log))
        course = Race(worker, producer, servers)
        await worker.act("work", name=name, url=servers.urls[0])
        await producer.act("connect", name=name, url=servers.urls[0])
        await course.run(warmup_s)
        return await course.measure(seconds)


class Race:
    def __init__(self, worker: LoadProcess, producer: LoadProcess, servers: Servers) -> None:
        self._worker, self._producer, self._servers = worker, producer, servers
        self._produced = self._least = 0

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until, self._least = loop.time() + seconds, AHEAD
        while loop.time() < until:
            done = (await self._worker.act("count"))["done"]
            self._least = min(self._least, self._produced - done)
            self._produced = (await self._producer.act("produce", until=done + AHEAD))["produced"]
            await asyncio.sleep(max(min(LOOK_S, until - loop.time()), 0))

    async def measure(self, seconds: float) -> Quantities:
        before = await self._look()
        await self.run(seconds)
        after = await self._look()
        tasks = after.done - before.done
        if tasks <= 0:
            raise BenchError("its worker ran no task")
        return {
            "per_s": tasks / (after.at - before.at),
            "cpu_ms": (after.worker_cpu_s - before.worker_cpu_s) / tasks * 1e3,
            "redis_cpu_ms": (after.redis_cpu_s - before.redis_cpu_s) / tasks * 1e3,
            "least_waiting": self._least,
        }

    async def _look(self) -> Look:
        done = (await self._worker.act("count"))["done"]
        return Look(asyncio.get_running_loop().time(), done, cpu_s(self._worker.pid), self._servers.cpu_s())
