"""Connections to Redis: one server, a Cluster (`cluster.py`), and separate ones for blocking reads and subscriptions.

redis = await connect(["redis://127.0.0.1:6379"], cluster=False)
value, added = await gather(redis.call("GET", key), redis.call("SADD", other, member))
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from dragoman.store.cluster import ClusterRedis
from dragoman.store.errors import RedisAway, Refused, StoreError
from dragoman.store.interface import Kept, Redis, load_scripts, slot_of
from dragoman.store.link import NO_CREDENTIALS, Address, Call, Credentials, ErrorReply, Link, pack, refusal

__all__ = ["Dedicated", "Kept", "Redis", "SingleRedis", "Subscriber", "connect", "slot_of"]

LEAVE_REPLICA_S = 1.0  # from one try to find the server to write to until the next

# To a blocked client: its key is, or has just gone, somewhere else.
_ELSEWHERE = frozenset({"MOVED", "ASK", "UNBLOCKED"})


class SingleRedis(Redis):
    """One server, over TCP, TLS or a Unix socket."""

    def __init__(
        self, url: str, *, timeout_s: float = 5.0, name: str = "dragoman", credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        super().__init__(timeout_s=timeout_s, name=name)
        self._address = Address.parse(url, credentials)
        self._left_at = float("-inf")
        self._link = Link(self._address, greeting=load_scripts, timeout_s=timeout_s, on_error=self._on_error, name=name)

    def _submit(self, call: Call, key: str) -> None:
        self._link.submit(call)

    async def get_each(self, keys: Sequence[str]) -> list[bytes | None]:
        return list(await self.call_at(keys[0], "MGET", *keys)) if keys else []

    def _on_error(self, call: Call, error: ErrorReply) -> None:
        if call.script is not None and str(error).startswith("NOSCRIPT"):
            call.use_source()
            self._link.submit(call)
        else:
            call.fail(refusal(error))
            if str(error).startswith("READONLY"):
                self._leave_replica()

    def _leave_replica(self) -> None:
        """This server was the one to write to, and another is now: its name, or a proxy, leads there. Not at every
        answer, since it may take a while until it does."""
        now = asyncio.get_running_loop().time()
        if now - self._left_at >= LEAVE_REPLICA_S:
            self._left_at = now
            self._link.drop()

    @property
    def connected(self) -> bool:
        return self._link.connected.is_set()

    @property
    def flushes(self) -> int:
        return self._link.flushes

    @property
    def reconnects(self) -> int:
        return self._link.reconnects

    @property
    def last_error(self) -> str:
        return self._link.last_error

    def hurry(self) -> None:
        self._link.hurry()

    async def wait_connected(self) -> None:
        await self._link.connected.wait()

    def address_of(self, key: str) -> Address:
        return self._address

    def addresses(self) -> list[Address]:
        return [self._address]

    async def on_each(self, *command: Any) -> list[Any]:
        future = self._loop.create_future()
        self._link.submit(Call(pack(command), future, self.ops[str(command[0])]))
        return [await future]

    async def close(self) -> None:
        await self._link.close()


class Dedicated:
    """A connection of one's own, for commands that block. Follows its key when a Cluster moves it."""

    CHECK_ADDRESS_S = 0.2

    def __init__(self, redis: Redis, key: str, name: str) -> None:
        self._redis, self._key, self._name = redis, key, name
        self._link: Link | None = None
        self._op = redis.ops[name]

    async def call(self, *command: Any, patience_s: float) -> Any:
        """One blocking command; past `patience_s` the socket is cut and RedisAway raised."""
        loop, link = asyncio.get_running_loop(), await self._reach()
        future = loop.create_future()
        link.submit(Call(pack(command), future, self._op))
        timer = loop.call_later(patience_s, self._cut, link, future, patience_s)
        try:
            return await future
        except Refused as error:
            if error.word not in _ELSEWHERE:
                raise
            # This may be the only call to that slot: the next try must find the table renewed.
            self._redis.doubt()
            raise RedisAway(str(error)) from None
        except RedisAway as error:
            if str(error).startswith("READONLY"):
                link.drop()
            raise
        finally:
            timer.cancel()

    @staticmethod
    def _cut(link: Link, future: "asyncio.Future[Any]", patience_s: float) -> None:
        if not future.done():
            future.set_exception(RedisAway(f"no answer from Redis at {link.address.name} in {patience_s:g} s"))
        link.drop()

    async def _reach(self) -> Link:
        """The connected link to the server of the key; the address is read again meanwhile: its master may be gone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._redis.timeout_s
        while True:
            address = self._redis.address_of(self._key)
            if self._link is not None and self._link.address != address:
                await self.close()
            if self._link is None:
                self._link = Link(address, timeout_s=None, name=f"{self._redis.name}-{self._name}")
            link = self._link
            try:
                async with asyncio.timeout(self.CHECK_ADDRESS_S):
                    await link.connected.wait()
            except TimeoutError:
                if loop.time() > until:
                    raise RedisAway(f"no connection to Redis at {address.name}: {link.last_error}") from None
            if self._link is not link:
                raise RedisAway(f"the connection to Redis at {address.name} was closed")
            if link.connected.is_set():
                return link

    async def close(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()


class Subscriber:
    """Listens to channels on the first server that answers. Messages published while it is disconnected are missed."""

    CHECK_S = 2.0

    def __init__(self, redis: Redis, channel: str, on_message: Callable[[bytes], None], *more: str) -> None:
        self._redis, self._channels, self._on_message = redis, (channel, *more), on_message
        self._link: Link | None = None
        self.subscribed = asyncio.Event()

    @property
    def listening(self) -> bool:
        return self._link is not None and self._link.connected.is_set()

    async def run(self) -> None:
        """Subscribe, check that the line is alive, and go to another server when it is not."""
        turn = 0
        try:
            while True:
                addresses = self._redis.addresses()
                if addresses:
                    await self._listen(addresses[turn % len(addresses)])
                    turn += 1
                else:
                    await asyncio.sleep(self.CHECK_S / 10)
        finally:
            if self._link is not None:
                await self._link.close()

    async def _listen(self, address: Address) -> None:
        link = self._link = Link(
            address,
            greeting=lambda: [pack(("SUBSCRIBE", channel)) for channel in self._channels],
            timeout_s=self.CHECK_S,
            on_push=lambda _, data: self._on_message(data),
            name=f"{self._redis.name}-subscriber",
        )
        op = self._redis.ops["SUBSCRIBE"]
        try:
            async with asyncio.timeout(self.CHECK_S):
                await link.connected.wait()
            self.subscribed.set()
            while link.connected.is_set():
                future = asyncio.get_running_loop().create_future()
                link.submit(Call(pack(("PING",)), future, op))
                await future
                await asyncio.sleep(self.CHECK_S)
        except (TimeoutError, StoreError):
            pass
        finally:
            self.subscribed.clear()
            self._link = None
            await link.close()


async def connect(
    urls: Sequence[str],
    *,
    cluster: bool,
    timeout_s: float = 5.0,
    name: str = "dragoman",
    credentials: Credentials = NO_CREDENTIALS,
) -> Redis:
    """A client for one server or for a Cluster; it may still be connecting when this returns."""
    if cluster:
        return ClusterRedis(urls, timeout_s=timeout_s, name=name, credentials=credentials)
    return SingleRedis(urls[0], timeout_s=timeout_s, name=name, credentials=credentials)
