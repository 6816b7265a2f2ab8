"""The other side of a gateway, for tests: endpoints that note what they hear, and a client made of bytes."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.gateway import Authorizer, Connection, EndpointFactory, Listener, Route
from dragoman.gateway.proxies import Proxies

TIMEOUT_S = 60.0
KEY = "dGhlIHNhbXBsZSBub25jZQ=="

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass
class Echo:
    """Sends back what it gets, and notes what happened."""

    events: list[str] = field(default_factory=list)
    conns: list[Connection] = field(default_factory=list)

    def opened(self, conn: Connection) -> None:
        self.events.append("opened")
        self.conns.append(conn)

    def text(self, conn: Connection, data: bytes) -> None:
        self.events.append("text")
        conn.send(data)

    def binary(self, conn: Connection, data: bytes) -> None:
        self.events.append("binary")
        conn.send_binary(data)

    def closed(self, conn: Connection) -> None:
        self.events.append("closed")


def http_app() -> web.Application:
    async def health(request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def length(request: web.Request) -> web.Response:
        return web.json_response({"length": len(await request.read())})

    async def zeros(request: web.Request) -> web.Response:
        return web.Response(body=bytes(int(request.match_info["count"])))

    app = web.Application(client_max_size=4 << 20)
    app.add_routes([web.get("/health", health), web.get("/zeros/{count}", zeros), web.post("/length", length)])
    return app


@asynccontextmanager
async def serving(
    routes: Mapping[str, EndpointFactory | Route] | None = None,
    *,
    authorize: Authorizer | None = None,
    app: web.Application | None = None,
    proxies: Proxies | None = None,
    **limits: Any,
) -> AsyncIterator[Listener]:
    """A listener on a free port with `/echo` and the HTTP application; `limits` are fields of ConnectionLimits."""
    listener = Listener(ConnectionLimits(**{"close_timeout_s": 0.5, **limits}), proxies)
    await listener.start(
        "127.0.0.1",
        0,
        {"/echo": Echo, **(routes or {})},
        app or http_app(),
        authorize=authorize,
    )
    try:
        yield listener
    finally:
        await listener.close(4000)


def upgrade(path: str = "/echo", **headers: str | None) -> bytes:
    """An upgrade request; `headers` add to the usual ones, replace them, or take them out (None)."""
    fields: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items() if v is not None), "", ""]
    return "\r\n".join(lines).encode()


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, announce: int | None = None
) -> bytes:
    """A masked client frame; `announce` is a length to claim instead of the true one."""
    size = len(payload) if announce is None else announce
    first = (0x80 if fin else 0) | reserved | opcode
    if size < 126:
        header = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        header = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        header = struct.pack("!BBQ", first, 0x80 | 127, size)
    mask = b"\x37\xfa\x21\x3d"  # the same each time: test ids are made of frames
    key = int.from_bytes(mask * (len(payload) // 4 + 1), "big") >> 8 * (4 - len(payload) % 4)
    masked = (int.from_bytes(payload, "big") ^ key).to_bytes(len(payload), "big")
    return header + mask + masked


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(status_line.split(" ")[1]), headers, body)

    async def frame(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 0xF, await self.reader.readexactly(size)

    async def message(self) -> bytes:
        opcode, payload = await self.frame()
        assert opcode in (TEXT, BINARY), (opcode, payload)
        return payload

    async def close_code(self) -> int:
        """The code of the close frame that comes next, messages aside."""
        while True:
            opcode, payload = await self.frame()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2], "big")

    async def ended(self) -> bool:
        """Wait for the server to end its half."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


class Port(Protocol):
    """A listener, or a harness."""

    @property
    def port(self) -> int: ...


@asynccontextmanager
async def connected(
    listener: Port, receive_bytes: int | None = None, come_from: str = "127.0.0.1"
) -> AsyncIterator[RawClient]:
    """A TCP connection that has sent nothing yet; with `receive_bytes` it takes little before it is read."""
    sock = socket.socket()
    sock.bind((come_from, 0))
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", listener.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=receive_bytes or 1 << 16)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield RawClient(reader, writer)
    finally:
        if receive_bytes is None:
            writer.close()
        else:
            writer.transport.abort()  # what is still to be written would keep it


@asynccontextmanager
async def websocket(listener: Port, path: str = "/echo", receive_bytes: int | None = None) -> AsyncIterator[RawClient]:
    async with connected(listener, receive_bytes) as client:
        await client.send(upgrade(path))
        assert (await client.answer()).status == 101
        yield client
