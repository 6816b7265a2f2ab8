"""Clients that say nothing, by the ten thousand, in one process: opened, held, cut off all at once, coming back.

One epoll set watched by the loop, and no task, transport or buffer a socket: what shares the machine with the load must
not be its largest part. They come back as the SDK does: after a delay that doubles with each failure and is drawn from
all of it (`jitter`), or after exactly that delay, the first time at once. Everything that did not let one of them in is
counted by its name.
"""

import asyncio
import errno
import heapq
import os
import select
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import count
from random import Random
from time import monotonic
from typing import Any

from dragoman.connection import Backoff
from dragoman.tools.bench.chat_load import FIRST_UID, chat_token
from dragoman.tools.bench.idle_socket import IdleSocket, State
from dragoman.tools.load_process import serve

IDLE_UID = FIRST_UID + 10_000_000  # no other user writes to these
EVENTS = 256  # handled at a time: the bench is to be answered in between
TICK_S = 0.005
SWEEP_S = 0.5
CONNECT_S, ANSWER_S = 10.0, 10.0  # as patient as the SDK
PER_SOURCE = 10_000  # sockets of one source address; it has some 28,000 ports
READ_BYTES = 16_384
NICE = 15  # they would be on machines of their own: whatever is measured beside them comes first
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: gone at once, no TIME_WAIT that would keep the port
_IN, _OUT, _BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP


class WithoutJitter(Random):
    """Draws what everybody else draws: a storm without jitter."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Client:
    __slots__ = ("address", "backoff", "protocol", "since", "sock", "source")

    def __init__(self, protocol: IdleSocket, address: tuple[str, int], source: str) -> None:
        self.protocol, self.address, self.source = protocol, address, source
        self.sock: socket.socket | None = None
        self.since = 0.0
        self.backoff: Backoff | None = None


class IdleLoad:
    """All of this process."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.closed: Counter[str] = Counter()  # that were in
        self.refused: Counter[str] = Counter()  # before they were accepted, by the reason
        self.accepted = self.resumed = 0
        self._by_fd: dict[int, Client] = {}
        self._open = 0
        self._returning = False
        self._rng = Random(1)
        self._due: list[tuple[float, int, Client]] = []
        self._order = count()
        self._waiting: Iterator[Client] = iter(())  # to be opened for the first time
        self._dropped_at = self._all_back_at = self._changed_at = 0.0
        self._epoll = select.epoll()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._epoll.fileno(), self._ready)
        self._loop, self._ticking = loop, False
        loop.call_later(SWEEP_S, self._sweep)

    # -- commands of the bench -------------------------------------------------------------------

    async def open(
        self, urls: list[str], speech: int, chat: int, secret: str, issuer: str, opening: int, quiet_s: float
    ) -> dict[str, Any]:
        """So many more, `opening` at a time, dealt out to `urls`; returns when no more come in."""
        new = list(self._made(urls, speech, chat, secret, issuer))
        self.clients += new
        self._waiting = iter(new)
        for _ in range(opening):
            self._open_next()
        until = self._changed_at = monotonic()
        while self._open < len(self.clients) and self._changed_at + quiet_s > until:
            await asyncio.sleep(TICK_S)
            until = monotonic()
        return await self.count()

    def _made(self, urls: list[str], speech: int, chat: int, secret: str, issuer: str) -> Iterator[Client]:
        for number in range(len(self.clients), len(self.clients) + speech + chat):
            host, _, port = urls[number % len(urls)].rpartition("/")[2].rpartition(":")
            is_chat = number - len(self.clients) >= speech
            token = chat_token(IDLE_UID + number, secret, issuer).encode() if is_chat else b""
            protocol = IdleSocket(b"/ws" if is_chat else b"/ws/session", token)
            yield Client(protocol, (host, int(port)), f"127.0.0.{1 + number // PER_SOURCE}")

    async def drop(self, jitter: bool) -> None:
        """All at once, and back."""
        self._returning, self._rng = True, Random(1) if jitter else WithoutJitter(1)
        self._due.clear()
        self.refused.clear()
        self.accepted = self.resumed = 0
        self._dropped_at, self._all_back_at = monotonic(), 0.0
        for client in self.clients:
            self._cut(client)
            client.backoff = Backoff(rng=self._rng)
            self._later(client, client.backoff.delay_s() if jitter else 0.0)

    async def count(self) -> dict[str, Any]:
        back_s = self._all_back_at - self._dropped_at if self._all_back_at else None
        counts = {"sockets": len(self.clients), "open": self._open, "closed": dict(self.closed)}
        counts |= {"refused": dict(self.refused), "accepted": self.accepted, "resumed": self.resumed}
        return counts | {"back_s": back_s}

    # -- one of them -----------------------------------------------------------------------------

    def _connect(self, client: Client) -> None:
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:  # no more files
            self._failed(client, errno.errorcode.get(error.errno or 0, "error"))
            return
        client.protocol.begin()
        client.since, client.sock = monotonic(), sock
        if client.source != "127.0.0.1":
            sock.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            sock.bind((client.source, 0))
        code = sock.connect_ex(client.address)
        if code not in (0, errno.EINPROGRESS):
            self._failed(client, errno.errorcode.get(code, "error"))
            return
        self._by_fd[sock.fileno()] = client
        self._epoll.register(sock.fileno(), _IN | _OUT)

    def _ready(self) -> None:
        for fd, events in self._epoll.poll(0, EVENTS):
            client = self._by_fd.get(fd)
            if client is None or client.sock is None:
                continue
            try:
                self._handle(client, client.sock, events)
            except OSError as error:
                self._lost(client, errno.errorcode.get(error.errno or 0, "error"))

    def _handle(self, client: Client, sock: socket.socket, events: int) -> None:
        protocol = client.protocol
        if protocol.state is State.CONNECTING:
            if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, "")
            self._epoll.modify(sock.fileno(), _IN)
            sock.send(protocol.connected())
            return
        if not events & (_IN | _BROKEN):
            return
        was_open = protocol.state is State.OPEN
        data = sock.recv(READ_BYTES)
        if not data:
            protocol.lost()
        elif answer := protocol.receive(data):
            sock.send(answer)  # small, and to a buffer that is empty
        if protocol.state is State.OVER:
            self._lost(client, protocol.why, was_open=was_open)
        elif protocol.state is State.OPEN and not was_open:
            self._came_in(client)

    def _came_in(self, client: Client) -> None:
        self._open += 1
        self.accepted += 1
        self.resumed += client.protocol.resumed
        self._changed_at = monotonic()
        if self._open == len(self.clients) and self._returning and not self._all_back_at:
            self._all_back_at = self._changed_at
        self._open_next()

    def _lost(self, client: Client, why: str, was_open: bool | None = None) -> None:
        if client.protocol.state is State.OPEN if was_open is None else was_open:
            self._open -= 1
            self.closed[why] += 1
        else:
            self.refused[why] += 1
        self._cut(client, was_counted=True)
        self._again(client)

    def _failed(self, client: Client, why: str) -> None:
        self.refused[why] += 1
        self._cut(client)
        self._again(client)

    def _again(self, client: Client) -> None:
        if self._returning:
            backoff = client.backoff = client.backoff or Backoff(rng=self._rng)
            self._later(client, backoff.delay_s())
        else:
            self._open_next()

    def _cut(self, client: Client, was_counted: bool = False) -> None:
        if client.protocol.state is State.OPEN and not was_counted:
            self._open -= 1
        client.protocol.state = State.OVER
        if client.sock is not None:
            self._by_fd.pop(client.sock.fileno(), None)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.sock.close()
            client.sock = None

    # -- when ------------------------------------------------------------------------------------

    def _open_next(self) -> None:
        client = next(self._waiting, None)
        if client is not None:
            self._later(client, 0.0)

    def _later(self, client: Client, delay_s: float) -> None:
        heapq.heappush(self._due, (monotonic() + delay_s, next(self._order), client))
        if not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = monotonic()
        for _ in range(EVENTS):
            if not self._due or self._due[0][0] > now:
                break
            self._connect(heapq.heappop(self._due)[2])
        self._ticking = bool(self._due)
        if self._ticking:
            self._loop.call_later(min(max(self._due[0][0] - monotonic(), 0.0), TICK_S), self._tick)

    def _sweep(self) -> None:
        """A client that waits too long gives up this attempt."""
        self._loop.call_later(SWEEP_S, self._sweep)
        now = monotonic()
        for client in [one for one in self._by_fd.values() if one.protocol.state is not State.OPEN]:
            timeout_s = CONNECT_S + ANSWER_S if client.protocol.state is State.GREETING else CONNECT_S
            if now - client.since > timeout_s:
                self._lost(client, f"no answer while {client.protocol.state.name.lower()}", was_open=False)


def main() -> None:
    made: list[IdleLoad] = []

    def all() -> IdleLoad:  # it needs the loop that runs
        if not made:
            made.append(IdleLoad())
        return made[0]

    async def open(**options: Any) -> dict[str, Any]:
        return await all().open(**options)

    async def drop(jitter: bool) -> None:
        await all().drop(jitter)

    async def count() -> dict[str, Any]:
        return await all().count()

    os.nice(NICE)
    serve({"open": open, "drop": drop, "count": count})


if __name__ == "__main__":
    main()
