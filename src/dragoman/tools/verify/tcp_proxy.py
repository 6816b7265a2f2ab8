"""TCP proxies between the instances and Redis, to cut or stall what goes through them.

    async with proxied(redis.url) as proxy:
        instance = await cluster.instance(scheduler__phase2__redis__url=proxy.url)
        stalled = proxy.stall_at(sha.encode())   # from these bytes on, nothing of the instance reaches the server
        await stalled.wait()

`stall_at` finds the exact point between two steps of a process: the process has done the first, and the command that
would do the second never arrives. The servers of a Cluster name each other to their clients: `ports` maps the port of
each server to that of its proxy, so that a client that connects through a proxy stays behind proxies.

As a process (`python -m dragoman.tools.verify.tcp_proxy`, see `load_process`) it has one link an instance:

    {"command": "open", "links": {"v1": ["redis://127.0.0.1:11001", …]}}   {"done": {"v1": ["redis://127.0.0.1:12001"]}}
    {"command": "cut", "link": "v1"}      connections break, and new ones are refused
    {"command": "stall", "link": "v1"}    nothing gets through, and connections stay open
    {"command": "restore", "link": "v1"}

    {"command": "delay", "link": "db", "ms": 20}   answers to COMMIT of PostgreSQL are passed on so much later

It is a process of its own, so that a busy harness does not slow down what it measures.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from dragoman.tools.processes import serve

CHUNK = 1 << 16
# What PostgreSQL answers to COMMIT: a CommandComplete message of 11 bytes.
_COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
_HOST = b"127.0.0.1"
# The address of a server in CLUSTER SLOTS, MOVED and ASK. All ports have five digits, so no size changes.
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
        self._refusing = False
        self._pattern = b""
        self._stalled = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._commit_delay_s = 0.0
        self.port = 0

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    # -- faults ----------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break every connection, and refuse new ones until `restore`."""
        self._refusing = True
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self) -> None:
        """Pass nothing on; connections stay open."""
        self._flowing.clear()
        self._stalled.set()

    def restore(self) -> None:
        self._refusing, self._pattern = False, b""
        self._flowing.set()

    def delay_commits(self, seconds: float) -> None:
        """Pass each answer to COMMIT on so much later, and what follows it on its connection."""
        self._commit_delay_s = seconds

    def stall_at(self, pattern: bytes) -> asyncio.Event:
        """Pass everything on until a client sends `pattern`; then set the event, and pass nothing on of any client."""
        self._pattern, self._stalled = pattern, asyncio.Event()
        return self._stalled

    # -- its work --------------------------------------------------------------------------------

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
        if self._refusing:
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
                        self.stall()
                    tail = seen[-len(self._pattern) :]
                elif not outwards and self._ports is not None:
                    whole = tail + data
                    end = complete(whole)
                    data, tail = renamed(whole[:end], self._ports), whole[end:]
                elif not outwards and self._commit_delay_s and _COMMITTED in data:
                    await asyncio.sleep(self._commit_delay_s)
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.transport.abort()


def complete(data: bytes) -> int:
    """How many bytes can be passed on without cutting a server's address in two. Every answer ends with a line."""
    if data.endswith(b"\r\n") and not data.endswith(_HOST + b"\r\n"):
        return len(data)
    begun = data.rfind(_HOST, max(0, len(data) - _LONGEST_NAME - len(_HOST)))
    return begun if begun >= 0 else max(0, len(data) - len(_HOST) + 1)


def renamed(data: bytes, ports: Mapping[int, int]) -> bytes:
    """The same bytes, with the ports of the proxies."""
    return _NAMED.sub(lambda found: found[1] + b"%d" % ports.get(int(found[2]), int(found[2])), data)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


MODULE = "dragoman.tools.verify.tcp_proxy"


class Links:
    """The proxies of each instance, by its name."""

    def __init__(self) -> None:
        self._links: dict[str, list[TcpProxy]] = {}

    async def open(self, links: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """One proxy for each server of each link; the proxies of a link name only each other."""
        for link, urls in links.items():
            ports: dict[int, int] = {}
            self._links[link] = [TcpProxy(url, ports if len(urls) > 1 else None) for url in urls]
            for url, proxy in zip(urls, self._links[link], strict=True):
                await proxy.start()
                ports[urlsplit(url).port or 0] = proxy.port
        return {link: [proxy.url for proxy in proxies] for link, proxies in self._links.items()}

    async def cut(self, link: str) -> None:
        for proxy in self._links[link]:
            proxy.cut()

    async def stall(self, link: str) -> None:
        for proxy in self._links[link]:
            proxy.stall()

    async def delay(self, link: str, ms: float) -> None:
        for proxy in self._links[link]:
            proxy.delay_commits(ms / 1000)

    async def restore(self, link: str) -> None:
        for proxy in self._links[link]:
            proxy.restore()


if __name__ == "__main__":
    _links = Links()
    serve(
        {
            "open": _links.open,
            "cut": _links.cut,
            "stall": _links.stall,
            "restore": _links.restore,
            "delay": _links.delay,
        }
    )
