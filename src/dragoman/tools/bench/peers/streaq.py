"""streaQ: streams, its own Lua library, many tasks enqueued in one pipeline."""

from contextlib import AsyncExitStack

from streaq import Worker

from dragoman.tools.bench.peers.queue import CONCURRENCY, QUEUE, RESULT_TTL_S, Peer


class Streaq(Peer):
    def __init__(self, url: str) -> None:
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


make = Streaq
