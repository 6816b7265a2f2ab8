"""The peer of `bench store`: redis-py behind the methods of the store's own client, for the same workloads.

redis-py asyncio is set up at its best: the hiredis parser, RESP2, 64 connections for which callers queue, no time-out a
call (which would cost it a timer each), and `execute_command` instead of the methods that only build its arguments. In
a Cluster its pool raises when it is full, so a semaphore of 64 stands before it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import redis.asyncio
from redis.utils import HIREDIS_AVAILABLE

from dragoman.store.script import Script
from dragoman.tools.processes import CannotRun

REDIS_PY = "redis-py"
CONNECTIONS = 64


class Client(Protocol):
    """What a workload needs: `store.redis.Redis` has it, and so has the peer."""

    def call(self, command: str, key: str, *args: Any) -> Awaitable[Any]: ...

    def evaluate(self, script: Script, keys: list[str], args: list[Any]) -> "asyncio.Future[Any]": ...

    async def close(self) -> None: ...


async def connect_redis_py(urls: Sequence[str], *, cluster: bool, scripts: Sequence[Script]) -> Client:
    if not HIREDIS_AVAILABLE:
        raise CannotRun("redis-py does not find hiredis, and without it there is no comparison.")
    peer: Single | Clustered = Clustered(urls[0]) if cluster else Single(urls[0])
    try:
        for script in scripts:
            await peer.redis.script_load(script.source)
    except BaseException:
        await peer.close()
        raise
    return peer


class Single:
    def __init__(self, url: str) -> None:
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url, max_connections=CONNECTIONS, timeout=None, protocol=2, socket_timeout=None
        )
        self.redis = redis.asyncio.Redis.from_pool(pool)
        self.call: Callable[..., Awaitable[Any]] = self.redis.execute_command

    def evaluate(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        return self.call("EVALSHA", script.sha, len(keys), *keys, *args)

    async def close(self) -> None:
        await self.redis.aclose()


class Clustered:
    def __init__(self, url: str) -> None:
        self.redis = redis.asyncio.RedisCluster.from_url(url, protocol=2, socket_timeout=None)
        self._gate = asyncio.Semaphore(CONNECTIONS)

    async def call(self, command: str, key: str, *args: Any) -> Any:
        async with self._gate:
            return await self.redis.execute_command(command, key, *args)

    async def _evaluate(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        async with self._gate:
            return await self.redis.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)

    def evaluate(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        return self._evaluate(script, keys, args)

    async def close(self) -> None:
        await self.redis.aclose()
