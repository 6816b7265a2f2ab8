"""SAQ: lists and blocking moves. It has no streams; it is here as the fastest of its kind."""

import asyncio
from typing import Any

import redis.asyncio
from saq import Worker
from saq.queue.redis import RedisQueue

from dragoman.tools.bench.peers.queue import CONCURRENCY, QUEUE, RESULT_TTL_S, Peer


class Saq(Peer):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        # redis-py's own time-out of 5 s would end its blocking reads.
        self._queue = RedisQueue(redis.asyncio.from_url(url, socket_timeout=None), name=QUEUE)

    async def _noop(self, _: Any) -> None:
        self.done += 1

    async def work(self) -> None:
        await self._queue.connect()
        await Worker(self._queue, [("noop", self._noop)], concurrency=CONCURRENCY).start()

    async def connect(self) -> None:
        await self._queue.connect()

    async def enqueue(self, count: int) -> None:
        await asyncio.gather(*(self._queue.enqueue("noop", ttl=RESULT_TTL_S) for _ in range(count)))


make = Saq
