"""The peers of `bench store`: other Redis clients behind the two methods of the store's own, for the same workloads.

redis-py asyncio is set up at its best: the hiredis parser, RESP2, 64 connections for which callers queue, no time-out a
call (which would cost it a timer each), and `execute_command` instead of the methods that only build its arguments. In
a Cluster its pool raises when it is full, so a semaphore of 64 stands before it.

coredis sends the calls of all callers over the connections of its pool without waiting for replies. valkey-glide does
so over one connection of a core in Rust, which has threads of its own. Both run with their defaults, on one server;
in a Cluster only redis-py is compared.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any, Protocol
from urllib.parse import urlsplit

import redis.asyncio
from redis.utils import HIREDIS_AVAILABLE

from dragoman.store.script import Script
from dragoman.tools.processes import CannotRun

REDIS_PY = "redis-py"
CONNECTIONS = 64


class Client(Protocol):
    """What a workload needs: `store.redis.Redis` has it, and so have the peers here."""

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


COREDIS, GLIDE = "coredis", "valkey_glide"
# Of valkey-glide: its defaults, 250 ms and 1,000 calls, would refuse the callers of a busy machine.
_TIMEOUT_MS, _IN_FLIGHT = 60_000, 100_000
MULTIPLEXING = {COREDIS: "coredis", GLIDE: "valkey-glide"}  # as they are shown, by the name in figures


def releases() -> dict[str, str]:
    return {REDIS_PY: version("redis"), **{name: version(name) for name in MULTIPLEXING.values()}}


async def connect_multiplexing(who: str, urls: Sequence[str], scripts: Sequence[Script]) -> Client:
    parts = urlsplit(urls[0])
    host, port = parts.hostname or "127.0.0.1", parts.port or 6379
    made: _Coredis | _Glide = await (_Coredis.connect if who == COREDIS else _Glide.connect)(host, port)
    try:
        for script in scripts:
            await made.load(script)
    except BaseException:
        await made.close()
        raise
    return made


class _Coredis:
    """Its context belongs to a task of its own: if its connections fail, it cancels the task that entered it."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._calls: dict[str, Callable[..., Awaitable[Any]]] = {"SET": redis.set, "GET": redis.get}
        self._closing, self._open = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._stay_open())

    @classmethod
    async def connect(cls, host: str, port: int) -> "_Coredis":
        import coredis

        made = cls(coredis.Redis(host, port))
        await asyncio.wait([made._task, made._open], return_when=asyncio.FIRST_COMPLETED)
        if made._task.done():
            made._task.result()
        return made

    async def _stay_open(self) -> None:
        async with self._redis:
            self._open.set_result(None)
            await self._closing.wait()

    async def load(self, script: Script) -> None:
        await self._redis.script_load(script.source)

    def call(self, command: str, key: str, *args: Any) -> Awaitable[Any]:
        return self._calls[command](key, *args)

    def evaluate(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        return self._redis.evalsha(script.sha, keys=keys, args=args)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(self._task, return_exceptions=True)


class _Glide:
    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    async def connect(cls, host: str, port: int) -> "_Glide":
        from glide import GlideClient, GlideClientConfiguration, NodeAddress

        config = GlideClientConfiguration(
            [NodeAddress(host, port)], request_timeout=_TIMEOUT_MS, inflight_requests_limit=_IN_FLIGHT
        )
        return cls(await GlideClient.create(config))

    async def load(self, script: Script) -> None:
        if not await self._client.custom_command(["SCRIPT", "LOAD", script.source]):
            raise CannotRun("valkey-glide could not load a script.")

    def call(self, command: str, key: str, *args: Any) -> Awaitable[Any]:
        return self._client.custom_command([command, key, *map(_text, args)])  # type: ignore[no-any-return]

    async def _evaluate(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        reply = await self._client.custom_command(["EVALSHA", script.sha, str(len(keys)), *keys, *map(_text, args)])
        return reply.encode() if isinstance(reply, str) else reply

    def evaluate(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        return self._evaluate(script, keys, args)

    async def close(self) -> None:
        await self._client.close()


def _text(value: Any) -> str | bytes:
    """Its core takes strings only."""
    return value if isinstance(value, str | bytes) else str(value)
