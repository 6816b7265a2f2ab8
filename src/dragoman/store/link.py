"""One multiplexed connection to one Redis server.

Every command of one turn of the event loop leaves in one write; replies come back in order and are
matched by position, so a thousand callers share one socket without a task or a lock of their own.

    submit ─▶ out[] ─call_soon─▶ one write()         pending ◀─ one Call a command, in order
                                                        │
    data_received ─▶ hiredis ─▶ reply ─▶ popleft() ─────┘─▶ future

Invariants:
- A call is either in `out` + `pending` of a living socket, or its future is settled.
- Nothing travels before the greeting (AUTH, SELECT, SCRIPT LOAD of every script) has been answered,
  so a NOSCRIPT cannot reorder what follows it.
- A lost socket settles everything in flight with UnknownOutcome; callers decide.

A link reconnects for ever, with jitter. Redirection in a Cluster is left to `cluster.py`, which
gets every error reply through `on_error`.
"""

import asyncio
import random
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlparse

import hiredis

from dragoman.store.errors import RedisAway, Refused, UnknownOutcome
from dragoman.store.ops import Op

MAX_IN_FLIGHT = 200_000
MAX_BUFFERED_BYTES = 256 * 1024 * 1024
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0

# Error replies that mean "not executed, and not your fault".
AWAY_WORDS = frozenset({"LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "TRYAGAIN", "BUSY"})

_NOTHING = object()

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
"""A command as RESP. (The library's own type admits one argument only.)"""


class ErrorReply(Exception):
    """An error reply as hiredis hands it over."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a URL does not hold: a password for those without one, and how TLS is spoken (None: the system's way)."""

    password: str = field(default="", repr=False)
    context: ssl.SSLContext | None = None


NO_CREDENTIALS = Credentials()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and how to be let in."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    tls: bool = False
    context: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, url: str, credentials: Credentials = NO_CREDENTIALS) -> "Address":
        """From redis://, rediss:// or unix:// as redis-py writes them."""
        parts = urlparse(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ValueError(f"a Redis URL starts with redis://, rediss:// or unix://, not {parts.scheme or url!r}")
        user, password = unquote(parts.username or ""), unquote(parts.password or "") or credentials.password
        asked_db = parse_qs(parts.query).get("db", [""])[0]
        if parts.scheme == "unix":
            return cls(path=unquote(parts.path), username=user, password=password, db=int(asked_db or 0))
        host, port, db = parts.hostname or "127.0.0.1", parts.port or 6379, int(asked_db or parts.path.strip("/") or 0)
        return cls(host, port, "", user, password, db, tls=parts.scheme == "rediss", context=credentials.context)

    def at(self, host: str, port: int) -> "Address":
        """The same credentials at another place of the same Cluster."""
        return Address(host, port, "", self.username, self.password, 0, self.tls, self.context)

    @property
    def name(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class Call:
    """One command on its way: what was sent, the future that waits for it, and what a redirection needs."""

    __slots__ = ("future", "op", "packed", "redirects", "script", "sent_at", "slot")

    def __init__(
        self, packed: bytes, future: "asyncio.Future[Any]", op: Op, slot: int = -1, script: Any = None
    ) -> None:
        self.packed = packed
        self.future = future
        self.op = op
        self.slot = slot
        self.script = script
        self.redirects = 0
        self.sent_at = 0.0

    def to_slot(self, slot: int) -> None:
        self.slot = slot

    def sent(self, at: float) -> None:
        self.sent_at = at

    def redirected(self) -> None:
        self.redirects += 1

    def use_source(self) -> None:
        """Carry the source of the script, which the server has forgotten, instead of its hash."""
        script, keys, args = self.script
        self.packed, self.script = pack(("EVAL", script.source, len(keys), *keys, *args)), None

    def settle(self, reply: Any) -> None:
        self.op.answered(monotonic() - self.sent_at)
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: Exception) -> None:
        self.op.failed(error)
        if not self.future.done():
            self.future.set_exception(error)


def refusal(error: ErrorReply) -> Exception:
    """The exception an error reply becomes."""
    text = str(error)
    word = text.split(" ", 1)[0]
    return RedisAway(text) if word in AWAY_WORDS else Refused(text)


class _Wire(asyncio.Protocol):
    """The socket: bytes out, replies in. Knows no policy."""

    def __init__(self, link: "Link") -> None:
        self.link = link
        self.reader = hiredis.Reader(replyError=ErrorReply, protocolError=ErrorReply, notEnoughData=_NOTHING)
        self.pending: deque[Call] = deque()
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.transport: asyncio.Transport | None = None
        self.paused = False
        self.received_at = 0.0
        self.why = "connection lost"
        self.lost: asyncio.Future[None] = link.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def submit(self, call: Call) -> None:
        call.sent(monotonic())
        self.pending.append(call)
        self.out_bytes += len(call.packed)
        self.out.append(call.packed)
        if len(self.out) == 1 and not self.paused:
            self.link.loop.call_soon(self.flush)

    def flush(self) -> None:
        if not self.out or self.paused or self.transport is None:
            return
        data = self.out[0] if len(self.out) == 1 else b"".join(self.out)
        self.out = []
        self.out_bytes = 0
        self.link.flushed()
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.flush()

    def data_received(self, data: bytes) -> None:
        reader, pending = self.reader, self.pending
        self.received_at = monotonic()
        reader.feed(data)
        while True:
            try:
                reply = reader.gets()
            except ErrorReply:  # not RESP at all: nothing after it can be trusted
                self.abort()
                return
            if reply is _NOTHING:
                return
            if self.link.on_push is not None and type(reply) is list and reply and reply[0] == b"message":
                self.link.on_push(reply[1], reply[2])
            elif not pending:
                self.abort()
                return
            elif type(reply) is ErrorReply:
                self.link.on_error(pending.popleft(), reply)
            else:
                pending.popleft().settle(reply)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.link.wire_lost(self)
        self.out.clear()
        calls, self.pending = self.pending, deque()
        for call in calls:
            call.fail(UnknownOutcome(f"connection to Redis at {self.link.address.name} lost before the reply"))
        if not self.lost.done():
            self.lost.set_result(None)

    def abort(self, why: str = "connection lost") -> None:
        self.why = why
        if self.transport is not None:
            self.transport.abort()


class Link:
    """A multiplexed connection that comes back."""

    def __init__(
        self,
        address: Address,
        *,
        greeting: Callable[[], Sequence[bytes]] = tuple,
        timeout_s: float | None = 5.0,
        on_error: Callable[[Call, ErrorReply], None] | None = None,
        on_lost: Callable[["Link"], None] | None = None,
        on_push: Callable[[bytes, bytes], None] | None = None,
        name: str = "dragoman",
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.address = address
        self.timeout_s = timeout_s
        self.greeting = greeting
        self.on_error = on_error or (lambda call, error: call.fail(refusal(error)))
        self.on_lost = on_lost
        self.on_push = on_push
        self.name = name
        self.flushes = 0
        self.reconnects = 0
        self.last_error = "not connected yet"
        self.connected = asyncio.Event()
        self._wire: _Wire | None = None
        self._closed = False
        self._task = self.loop.create_task(self._run(), name=f"redis-link {address.name}")
        self._watch: asyncio.TimerHandle | None = None

    def submit(self, call: Call) -> None:
        wire = self._wire
        if wire is None:
            call.fail(RedisAway(f"no connection to Redis at {self.address.name}: {self.last_error}"))
        elif len(wire.pending) >= MAX_IN_FLIGHT or wire.out_bytes > MAX_BUFFERED_BYTES:
            call.fail(RedisAway(f"too much in flight to Redis at {self.address.name}"))
        else:
            wire.submit(call)

    def hurry(self) -> None:
        """Write what waits for the end of the turn, if the server has answered all that was written before."""
        wire = self._wire
        if wire is not None and len(wire.pending) == len(wire.out):
            wire.flush()

    @property
    def in_flight(self) -> int:
        return len(self._wire.pending) if self._wire is not None else 0

    async def close(self) -> None:
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def drop(self) -> None:
        """Cut the socket; the link reconnects."""
        if self._wire is not None:
            self._wire.abort()

    def flushed(self) -> None:
        self.flushes += 1

    def wire_lost(self, wire: _Wire) -> None:
        if self._wire is wire:
            self._wire = None
            self.connected.clear()
            self.last_error = wire.why
            self.reconnects += 1
            if self.on_lost is not None and not self._closed:
                self.on_lost(self)

    async def _run(self) -> None:
        retry_s = 0.0
        while True:
            wire: _Wire | None = None
            try:
                # Not wait_for: until 3.12 it swallows a cancellation that meets the result, and close() hangs.
                async with asyncio.timeout(self.timeout_s or 5.0):
                    wire = await self._open()
                    await self._greet(wire)
                if wire.lost.done():
                    raise UnknownOutcome("connection lost right after the greeting")
                self._wire = wire
                self.connected.set()
                retry_s = 0.0
                self._watch_time()
                await wire.lost
            except (OSError, TimeoutError, RedisAway, Refused, UnknownOutcome, ssl.SSLError) as error:
                self.last_error = str(error) or type(error).__name__
            finally:
                if wire is not None:
                    wire.abort()
                if self._watch is not None:
                    self._watch.cancel()
            await asyncio.sleep(retry_s * random.uniform(0.5, 1.5))
            retry_s = min(max(retry_s * 2, FIRST_RETRY_S), LONGEST_RETRY_S)

    async def _open(self) -> _Wire:
        address = self.address
        if address.path:
            _, wire = await self.loop.create_unix_connection(lambda: _Wire(self), address.path)
        else:
            context = (address.context or ssl.create_default_context()) if address.tls else None
            _, wire = await self.loop.create_connection(lambda: _Wire(self), address.host, address.port, ssl=context)
        return wire

    async def _greet(self, wire: _Wire) -> None:
        address = self.address
        commands: list[bytes] = []
        if address.password:
            who = (address.username, address.password) if address.username else (address.password,)
            commands.append(pack(("AUTH", *who)))
        if address.db:
            commands.append(pack(("SELECT", address.db)))
        commands.append(pack(("CLIENT", "SETNAME", self.name)))
        commands += self.greeting()
        op = Op("greeting")
        calls = [Call(packed, self.loop.create_future(), op) for packed in commands]
        for call in calls:
            wire.submit(call)
        replies = await asyncio.gather(*(call.future for call in calls), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply

    def _watch_time(self) -> None:
        """Cut a socket that received nothing for `timeout_s` while a command waits: one timer per link, none per call.

        A long queue of commands may take longer than that, as long as replies keep coming.
        """
        wire = self._wire
        if wire is None or self.timeout_s is None:
            return
        if wire.pending and monotonic() - max(wire.pending[0].sent_at, wire.received_at) > self.timeout_s:
            wire.abort(f"no answer in {self.timeout_s:g} s")
            return
        self._watch = self.loop.call_later(self.timeout_s / 4, self._watch_time)
