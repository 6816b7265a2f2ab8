"""What the store needs of Redis, whether it is one server or a Cluster.

`call` and `evaluate` return futures: start several, await them together, and they leave in one write at the end of the
loop's turn. The key always comes first after the command, because in a Cluster it decides where the command goes.
A caller that has more to do in this turn calls `hurry`, so that Redis works meanwhile; a caller that knows what to ask
next can have it ready by then (`keeping`).
"""

import asyncio
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from dragoman.store import script as scripts
from dragoman.store.errors import Refused
from dragoman.store.link import Address, Call, pack
from dragoman.store.ops import Ops
from dragoman.store.script import Script, tag_of

T = TypeVar("T")
R = TypeVar("R")

SLOTS = 16384
SLICE = 100  # some 3 ms of work


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

    async def get_each(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of string keys, in any slots."""
        # Gathered: if one reply fails, asyncio would report the ones after it as never retrieved.
        return list(await asyncio.gather(*(self.call("GET", key) for key in keys)))

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

    async def info(self) -> list[dict[str, str]]:
        """INFO of every server that holds data."""
        found = [text.decode().splitlines() for text in await self.on_each("INFO")]
        return [dict(line.split(":", 1) for line in lines if ":" in line) for lines in found]

    async def server_settings(self) -> list[dict[str, str]] | None:
        """All settings of every server that holds data; None if Redis does not show them to this client."""
        try:
            found = await self.on_each("CONFIG", "GET", "*")
        except Refused:
            return None
        return [{k.decode(): v.decode() for k, v in zip(each[::2], each[1::2], strict=True)} for each in found]

    @abstractmethod
    async def close(self) -> None: ...

    def doubt(self) -> None:
        """A command was redirected: the table of slots may be out of date."""
        return

    async def publish(self, channel: str, data: bytes) -> None:
        """Publish to the current subscribers; delivery is not guaranteed."""
        await self.call("PUBLISH", channel, data)


class Kept:
    """Calls that are ready to be sent. Their futures are answered after that, or never."""

    def __init__(self, submit: Callable[[Call, str], None]) -> None:
        self.calls: list[tuple[Call, str]] = []
        self._submit = submit

    def send(self) -> None:
        calls, self.calls = self.calls, []
        for call, key in calls:
            self._submit(call, key)


async def in_slices(items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """The answers, in order, SLICE calls at a time. Raises the first error after all calls: in a Cluster one master may
    be unavailable.

    10,000 renewals in one turn of the event loop take a second, in which no job is placed and no message accepted.
    """
    rest, found, errors = iter(items), list[R](), list[BaseException]()
    while some := list(islice(rest, SLICE)):
        for answer in await asyncio.gather(*(ask(one) for one in some), return_exceptions=True):
            if isinstance(answer, BaseException):
                errors.append(answer)
            else:
                found.append(answer)
    if errors:
        raise errors[0]
    return found
