"""A TCP proxy that stands between an instance and a server, to cut or hold what goes through it.

    async with proxied(redis.url) as proxy:
        instance = await cluster.instance(scheduler__phase2__redis__url=proxy.url)
        held = proxy.hold_at(sha.encode())   # from these bytes on, nothing of the instance reaches the server
        await held.wait()

`hold_at` finds the exact point between two steps of a process: the process has done the one, and what would do the
other never arrives. The nodes of a Cluster name each other to their clients: `ports` says which of those are to be
named as what instead, so that a client that came through a proxy stays behind proxies.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CHUNK = 1 << 16
_HOST = b"127.0.0.1"
# How a node is named in CLUSTER SLOTS, and in MOVED and ASK. All ports have five digits, so nothing changes its size.
_NAMED = re.compile(rb"(?<=127\.0\.0\.1)(\r\n:|:)(\d{5})(?=\r\n)")
_LONGEST_NAME = len(b"127.0.0.1\r\n:12345\r\n")


class TcpProxy:
    def __init__(self, url: str, ports: Mapping[int, int] | None = None) -> None:
        self._ports = ports
        parts = urlsplit(url)
        self._scheme, self._host, self._to = parts.scheme, parts.hostname or "127.0.0.1", parts.port or 6379
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._away = False
        self._pattern = b""
        self._held = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    # -- faults ----------------------------------------------------------------------------------

    def cut(self) -> None:
        """Every connection breaks, and nobody gets through until `mend`."""
        self._away = True
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self._flowing.clear()
        self._held.set()

    def mend(self) -> None:
        self._away, self._pattern = False, b""
        self._flowing.set()

    def hold_at(self, pattern: bytes) -> asyncio.Event:
        """Let all pass until a client sends `pattern`; from there on nothing of any client. The event says so."""
        self._pattern, self._held = pattern, asyncio.Event()
        return self._held

    # -- what it does ----------------------------------------------------------------------------

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._away:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink, outwards in ((reader, far_writer, True), (far_reader, writer, False)):
            task = asyncio.create_task(self._pass_on(source, sink, outwards))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, outwards: bool) -> None:
        tail = b""
        try:
            while data := await source.read(CHUNK):
                if outwards and self._pattern:
                    seen = tail + data
                    if self._pattern in seen:
                        self.hold()
                    tail = seen[-len(self._pattern) :]
                elif not outwards and self._ports is not None:
                    whole = tail + data
                    told = complete(whole)
                    data, tail = renamed(whole[:told], self._ports), whole[told:]
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.transport.abort()


def complete(data: bytes) -> int:
    """How much of it can be passed on: no name goes on behind that. Every answer ends with a line."""
    if data.endswith(b"\r\n") and not data.endswith(_HOST + b"\r\n"):
        return len(data)
    begun = data.rfind(_HOST, max(0, len(data) - _LONGEST_NAME - len(_HOST)))
    return begun if begun >= 0 else max(0, len(data) - len(_HOST) + 1)


def renamed(data: bytes, ports: Mapping[int, int]) -> bytes:
    """The same bytes, with other ports behind our address."""
    return _NAMED.sub(lambda found: found[1] + b"%d" % ports.get(int(found[2]), int(found[2])), data)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
