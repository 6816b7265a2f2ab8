"""taskiq: the stream broker of taskiq-redis, results in the same Redis."""

import asyncio

from taskiq.receiver import Receiver
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from dragoman.tools.bench.peers.queue import CONCURRENCY, QUEUE, RESULT_TTL_S, Peer


class Taskiq(Peer):
    def __init__(self, url: str) -> None:
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
        self._broker.is_worker_process = True
        await Receiver(self._broker, max_async_tasks=CONCURRENCY).listen(asyncio.Event())

    async def connect(self) -> None:
        await self._broker.startup()

    async def enqueue(self, count: int) -> None:
        await asyncio.gather(*(self._task.kiq() for _ in range(count)))


make = Taskiq
