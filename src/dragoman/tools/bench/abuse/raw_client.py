"""A client made of bytes: it sends what no WebSocket library would, and reads only on request."""

import asyncio
import json
import os
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

TIMEOUT_S = 30.0
TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA
# Linux has all of 127/8 to itself: who attacks has another address than who must not notice.
HOSTILE, HONEST = "127.0.0.66", "127.0.0.1"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def upgrade(path: str, *lines: str) -> bytes:
    """An upgrade request, with further header lines."""
    usual = ("Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    return "\r\n".join((f"GET {path} HTTP/1.1", *usual, f"Sec-WebSocket-Key: {KEY}", *lines, "", "")).encode()


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    masked: bool = True,
    announce: int | None = None,
) -> bytes:
    """A frame; `announce` is a length to claim instead of the true one."""
    size = len(payload) if announce is None else announce
    first, bit = (0x80 if fin else 0) | reserved | opcode, 0x80 if masked else 0
    if size < 126:
        head = struct.pack("!BB", first, bit | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, bit | 127, size)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    key = int.from_bytes(mask * (len(payload) // 4 + 1), "big") >> 8 * (4 - len(payload) % 4)
    return head + mask + (int.from_bytes(payload, "big") ^ key).to_bytes(len(payload), "big")


_BIND_ADDRESS_NO_PORT = 24


class Disconnected(Exception):
    """The server closed the socket, and with it nothing else can be heard."""


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int, *, source: str = HOSTILE, receive_bytes: int | None = None) -> Self:
        """A TCP connection that has said nothing; with `receive_bytes` it takes little before it is read."""
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)  # else a port is taken from all destinations
        sock.bind((source, 0))
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return cls(*await asyncio.open_connection(sock=sock, limit=receive_bytes or 1 << 16))

    async def write(self, data: bytes) -> None:
        """What is said to one who has hung up is lost, as with any socket."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            pass

    async def send(self, message: dict[str, object] | str) -> None:
        text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
        await self.write(frame(TEXT, text.encode(errors="surrogatepass")))

    async def head(self) -> tuple[int, str]:
        """Status and head of an HTTP answer."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            except (asyncio.IncompleteReadError, ConnectionError):
                raise Disconnected("no answer") from None
        return int(head.split(" ", 2)[1]), head

    async def json_answer(self) -> dict[str, Any]:
        """The body of an HTTP answer."""
        _, head = await self.head()
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        async with asyncio.timeout(TIMEOUT_S):
            return dict(json.loads(await self._reader.readexactly(int(length[1]) if length else 0) or b"{}"))

    async def receive_frame(self) -> tuple[int, bytes]:
        """The next frame."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                first, second = await self._reader.readexactly(2)
                size = second & 0x7F
                if size > 125:
                    size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
                return first & 0xF, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Disconnected("no close frame") from None

    async def receive(self) -> dict[str, Any]:
        """The next message; of a close frame `{"type": "closed", "code": …}`."""
        while True:
            opcode, payload = await self.receive_frame()
            if opcode == CLOSE:
                return {"type": "closed", "code": int.from_bytes(payload[:2], "big")}
            if opcode in (TEXT, BINARY):
                return dict(json.loads(payload))

    async def wait_for(self, *types: str) -> dict[str, Any]:
        """The first message of one of these types; a close counts as each."""
        while True:
            message = await self.receive()
            if message["type"] in types or message["type"] == "closed":
                return message

    async def closed(self) -> str:
        """Read on until the server closes; with which code."""
        try:
            while True:
                message = await self.receive()
                if message["type"] == "closed":
                    return f"closed {message['code']}"
        except Disconnected as end:
            return str(end)

    async def is_open(self) -> str:
        """Whether a ping is answered."""
        await self.write(frame(PING, b"?"))
        try:
            while True:
                opcode, payload = await self.receive_frame()
                if opcode == PONG:
                    return "stays open"
                if opcode == CLOSE:
                    return f"closed {int.from_bytes(payload[:2], 'big')}"
        except Disconnected as end:
            return str(end)

    def reset(self) -> None:
        """Reset it."""
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


@asynccontextmanager
async def tcp(port: int, *, source: str = HOSTILE, receive_bytes: int | None = None) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(port, source=source, receive_bytes=receive_bytes)
    try:
        yield client
    finally:
        client.reset()


@asynccontextmanager
async def websocket(
    port: int, path: str, *lines: str, source: str = HOSTILE, receive_bytes: int | None = None
) -> AsyncIterator[RawClient]:
    async with tcp(port, source=source, receive_bytes=receive_bytes) as client:
        await client.write(upgrade(path, *lines))
        status, head = await client.head()
        if status != 101:
            raise Disconnected(f"HTTP {status}: {head[:200]}")
        yield client


async def http_status(port: int, request: bytes, source: str = HOSTILE) -> str:
    """One HTTP request on a connection of its own; the answer in a word."""
    async with tcp(port, source=source) as client:
        await client.write(request)
        try:
            return f"HTTP {(await client.head())[0]}"
        except Disconnected as end:
            return str(end)
