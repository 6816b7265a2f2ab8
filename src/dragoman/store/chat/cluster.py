"""What all instances agree on about chat: layout, database, switches, worker numbers; and which replicas have it."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from dragoman.domain.chat.switches import NAMES
from dragoman.store.errors import RedisAway
from dragoman.store.instances import DELETE_IF_EQUAL, RENEW_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

WORKERS = 1024
# Longer than any outage without a restart: while Redis is unavailable, messages still get ids.
WORKER_TTL_MS = 3_600_000


class Layout(msgspec.Struct, frozen=True):
    """What cannot change while messages are on their way."""

    shards: int
    accepted: str
    to_save: str
    deliver_group: str
    save_group: str
    v: int = 1


class ChatCluster:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys

    async def agree(self, layout: Layout) -> Layout:
        """Record the layout if there is none; returns the recorded one."""
        key = self.keys.chat_layout
        await self.redis.call("SET", key, msgspec.json.encode(layout), "NX")
        return msgspec.json.decode(await self.redis.call("GET", key), type=Layout)

    async def agree_on_archive(self, identity: str) -> str:
        """Record the database of messages and accounts if there is none; returns the recorded one."""
        key = self.keys.chat_archive
        await self.redis.call("SET", key, identity, "NX")
        counts: bytes = await self.redis.call("GET", key)
        return counts.decode()

    # -- switches --------------------------------------------------------------------------------

    async def switches(self) -> dict[str, str]:
        """Those changed while running, as text; what a later release may have added is left out."""
        flat = await self.redis.call("HGETALL", self.keys.chat_switches)
        texts = {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}
        return {name: text for name, text in texts.items() if name in NAMES}

    async def switch(self, texts: dict[str, str]) -> None:
        if texts:
            await self.redis.call("HSET", self.keys.chat_switches, *(part for pair in texts.items() for part in pair))

    async def forget_switches(self, names: list[str]) -> None:
        if names:
            await self.redis.call("HDEL", self.keys.chat_switches, *names)

    # -- worker numbers --------------------------------------------------------------------------

    async def claim_worker(self, incarnation: str) -> int:
        """A number no other living instance makes ids with."""
        for number in random.sample(range(WORKERS), WORKERS):
            if await self.redis.call("SET", self.keys.worker(number), incarnation, "NX", "PX", WORKER_TTL_MS):
                return number
        raise RuntimeError(f"all {WORKERS} worker numbers are taken")

    async def keep_worker(self, number: int, incarnation: str) -> bool:
        """Prolong it, or write it again after Redis forgot; False if another instance has it."""
        key = self.keys.worker(number)
        word = await RENEW_IF_EQUAL(self.redis, key=key, value=incarnation, ttl=WORKER_TTL_MS)
        if word == b"NONE":
            return bool(await self.redis.call("SET", key, incarnation, "NX", "PX", WORKER_TTL_MS))
        return bool(word == b"OK")

    async def release_worker(self, number: int, incarnation: str) -> None:
        await DELETE_IF_EQUAL(self.redis, key=self.keys.worker(number), value=incarnation)


# -- replicas --------------------------------------------------------------------------------------
#
# Waits until replicas have what was accepted: one WAIT for all messages accepted since the last one.
#
# WAIT blocks its connection, so with `chat.two_phase.wait_replicas` messages are accepted on a separate connection.


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
