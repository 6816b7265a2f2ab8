"""Waits until replicas have what was accepted: one WAIT for all messages accepted since the last one.

WAIT blocks its connection, so with `chat.two_phase.wait_replicas` messages are accepted on a separate connection.
"""

import asyncio
from collections.abc import Awaitable, Callable

from dragoman.store.errors import RedisAway
from dragoman.store.redis import Redis


class Replicas:
    def __init__(self, connect: Callable[[], Awaitable[Redis]], timeout_ms: int) -> None:
        self._connect, self._timeout_ms = connect, timeout_ms
        self._redis: Redis | None = None
        self._connecting: asyncio.Task[Redis] | None = None
        self._joined: dict[str, asyncio.Future[None]] = {}

    async def redis(self) -> Redis:
        """The connection for accepts and WAITs. A caller that is cancelled does not cancel the connecting."""
        if self._redis is None:
            if self._connecting is None:
                self._connecting = asyncio.ensure_future(self._connect())
                self._connecting.add_done_callback(self._connected)
            try:
                await asyncio.shield(self._connecting)
            except Exception as error:
                raise RedisAway(f"no connection for accepting with replicas: {error}") from None
        assert self._redis is not None
        return self._redis

    def _connected(self, done: "asyncio.Task[Redis]") -> None:
        self._connecting = None
        if not done.cancelled() and done.exception() is None:
            self._redis = done.result()

    async def wait(self, key: str, replicas: int) -> None:
        """Until so many replicas have what was written at `key`; raises RedisAway after the time-out."""
        joined = self._joined.get(key)
        if joined is None:
            loop = asyncio.get_running_loop()
            joined = self._joined[key] = loop.create_future()
            joined.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nothing awaits it
            loop.call_soon(self._ask, key, replicas)
        await asyncio.shield(joined)

    def _ask(self, key: str, replicas: int) -> None:
        joined = self._joined.pop(key)
        assert self._redis is not None
        asked = asyncio.gather(*self._redis.call_where(key, "WAIT", replicas, self._timeout_ms))

        def answered(reply: "asyncio.Future[list[int]]") -> None:
            if reply.cancelled() or (error := reply.exception()) is not None:
                joined.set_exception(error if not reply.cancelled() and error else RedisAway("the wait was cancelled"))
            elif (having := min(map(int, reply.result()))) < replicas:
                joined.set_exception(RedisAway(f"{having} of {replicas} replicas have it"))
            else:
                joined.set_result(None)

        asked.add_done_callback(answered)

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._redis is not None:
            await self._redis.close()
