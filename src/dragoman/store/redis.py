"""One small interface over a single Redis, a Unix socket and a Cluster.

`call` and `evaluate` return futures: start several, await them together, and they leave in one write.
The key always comes first after the command, because in a Cluster it decides where the command goes.

    redis = await connect(["redis://127.0.0.1:6379"], cluster=False)
    value, added = await gather(redis.call("GET", key), redis.call("SADD", other, member))

They leave at the end of the loop's turn. Who has more to do in this turn says `hurry`, and Redis works meanwhile; who
knows what to ask next can have it ready by then (`keeping`).

Blocking reads and subscriptions have connections of their own (`Dedicated`, `Subscriber`).
"""

import asyncio
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dragoman.store import script as scripts
from dragoman.store.errors import RedisAway, Refused, StoreError
from dragoman.store.link import NO_CREDENTIALS, Address, Call, Credentials, ErrorReply, Link, pack, refusal
from dragoman.store.ops import Ops
from dragoman.store.script import Script, tag_of

SLOTS = 16384
LEAVE_REPLICA_S = 1.0  # from one try to find the server to write to until the next

# To a blocked client: its key is, or has just gone, somewhere else.
_ELSEWHERE = frozenset({"MOVED", "ASK", "UNBLOCKED"})


def slot_of(key: str) -> int:
    return crc_hqx(tag_of(key).encode(), 0) % SLOTS


def load_scripts() -> list[bytes]:
    """The greeting of every new connection: all scripts, before anything else."""
    return [pack(("SCRIPT", "LOAD", script.source)) for script in scripts.ALL.values()]


class Redis(ABC):
    """What the rest of the store sees."""

    def __init__(self, *, timeout_s: float, name: str) -> None:
        self.ops = Ops()
        self.timeout_s = timeout_s
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._keeper: Kept | None = None

    def call(self, command: str, key: str, *args: Any) -> "asyncio.Future[Any]":
        """One command on one key."""
        future = self._loop.create_future()
        packed = pack((command, key, *args))
        self._pass_on(Call(packed, future, self.ops[command]), key)
        return future

    def call_at(self, key: str, *command: Any) -> "asyncio.Future[Any]":
        """A command whose key is not its first argument (XGROUP CREATE …), sent to where `key` lives."""
        future = self._loop.create_future()
        self._pass_on(Call(pack(command), future, self.ops[str(command[0])]), key)
        return future

    def call_where(self, key: str, *command: Any) -> "list[asyncio.Future[Any]]":
        """A command without a key, at every server that may have taken what was written at `key`."""
        return [self.call_at(key, *command)]

    def evaluate(self, script: Script, keys: list[str], args: list[Any]) -> "asyncio.Future[Any]":
        """One script; `Script.__call__` is the way to it."""
        future = self._loop.create_future()
        packed = pack(("EVALSHA", script.sha, len(keys), *keys, *args))
        call = Call(packed, future, self.ops[script.name], script=(script, keys, args))
        self._pass_on(call, keys[0])
        return future

    @contextmanager
    def keeping(self) -> Iterator["Kept"]:
        """Calls made inside are made ready and kept for `Kept.send`. Nothing may be awaited inside."""
        kept = self._keeper = Kept(self._submit)
        try:
            yield kept
        finally:
            self._keeper = None

    def _pass_on(self, call: Call, key: str) -> None:
        if self._keeper is None:
            self._submit(call, key)
        else:
            self._keeper.calls.append((call, key))

    def _as_eval(self, call: Call) -> None:
        """Make a call whose script the server has forgotten carry its source."""
        script, keys, args = call.script
        call.packed = pack(("EVAL", script.source, len(keys), *keys, *args))
        call.script = None

    @abstractmethod
    def _submit(self, call: Call, key: str) -> None: ...

    @abstractmethod
    def hurry(self) -> None:
        """Write now what would leave at the end of the loop's turn, to every server that has nothing else to do.

        A busy one gets to it no sooner, and more may join what waits: together is cheaper.
        """

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether every part of Redis can be reached right now."""

    @property
    @abstractmethod
    def flushes(self) -> int:
        """Writes to Redis so far: what a round trip costs is counted here."""

    @property
    @abstractmethod
    def reconnects(self) -> int:
        """How often a connection was lost so far: a change means that Redis, or the way to it, was away."""

    @abstractmethod
    async def wait_connected(self) -> None: ...

    @abstractmethod
    def address_of(self, key: str) -> Address:
        """Where `key` lives now; for connections of one's own."""

    @abstractmethod
    def addresses(self) -> list[Address]:
        """Every server that holds data."""

    @abstractmethod
    async def on_each(self, *command: Any) -> list[Any]:
        """A command without a key, on every server that holds data."""

    @abstractmethod
    async def close(self) -> None: ...

    def doubt(self) -> None:
        """Somebody was sent elsewhere: what is known of who holds which key may be old."""
        return

    async def publish(self, channel: str, data: bytes) -> None:
        """Tell whoever listens now; nobody may rely on it."""
        await self.call("PUBLISH", channel, data)


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

    def _on_error(self, call: Call, error: ErrorReply) -> None:
        if call.script is not None and str(error).startswith("NOSCRIPT"):
            self._as_eval(call)
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


class Kept:
    """Calls that are ready to be sent. Their futures are answered after that, or never."""

    def __init__(self, submit: Callable[[Call, str], None]) -> None:
        self.calls: list[tuple[Call, str]] = []
        self._submit = submit

    def send(self) -> None:
        calls, self.calls = self.calls, []
        for call, key in calls:
            self._submit(call, key)


class Dedicated:
    """A connection of one's own, for commands that block. Follows its key when a Cluster moves it."""

    LOOK_S = 0.2

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
            # Perhaps nobody else of this client calls on that slot: the next try must find the table renewed.
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
        """The link to where the key lives, up; looks again meanwhile, for its master may never come back."""
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
                async with asyncio.timeout(self.LOOK_S):
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
    """Listens to channels for ever, on whichever server answers. What is said while it is away is missed."""

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
        from dragoman.store.cluster import ClusterRedis

        return ClusterRedis(urls, timeout_s=timeout_s, name=name, credentials=credentials)
    return SingleRedis(urls[0], timeout_s=timeout_s, name=name, credentials=credentials)
