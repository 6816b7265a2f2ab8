"""A real WebSocket server on 127.0.0.1 for tests of an SDK: it notes what it hears, and a test decides what it does."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from picows import (
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from dragoman.protocol import codec
from dragoman.protocol.fields import Message

M = TypeVar("M", bound=Message)
TIMEOUT_S = 60.0


class PeerConnection(WSListener):
    def __init__(self, peer: "FakePeer") -> None:
        self.peer = peer
        self.gone = asyncio.Event()
        self.goodbye: int | None = None  # the code that the client closed with
        self.session: Any = None  # for a peer that keeps one with it
        self._transport: WSTransport | None = None

    @property
    def transport(self) -> WSTransport:
        assert self._transport is not None
        return self._transport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self.peer.connections.append(self)
        self.peer.on_connected(self)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.gone.set()
        self.peer.notify()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        data = frame.get_payload_as_bytes()
        if frame.msg_type == WSMsgType.CLOSE:
            self.goodbye = int.from_bytes(data[:2], "big")
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif frame.msg_type == WSMsgType.PING:
            if self.peer.answers_pings:
                transport.send_pong(data)
        elif frame.msg_type in (WSMsgType.TEXT, WSMsgType.BINARY):
            self.peer.on_frame(self, data, binary=frame.msg_type == WSMsgType.BINARY)

    def send(self, message: Message) -> None:
        self.transport.send(WSMsgType.TEXT, codec.encode(message))

    def close(self, code: int, reason: bytes = b"") -> None:
        self.transport.send_close(code, reason)  # type: ignore[arg-type]  # takes any code

    def drop(self) -> None:
        """Cut the connection as a dead machine would."""
        self.transport.disconnect(graceful=False)


class FakePeer:
    path = "/"

    def __init__(self) -> None:
        self.connections: list[PeerConnection] = []
        self.received: list[Message] = []
        self.answers_pings = True
        self.refuses_with: HTTPStatus | None = None
        self.refusals = 0
        self.port = 0
        self._unread: list[Message] = []
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None

    def on_connected(self, connection: PeerConnection) -> None:
        """For a peer that does something about it."""

    def on_frame(self, connection: PeerConnection, data: bytes, *, binary: bool) -> None:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}{self.path}"

    async def listen(self) -> None:
        self._server = await ws_create_server(self._accept, "127.0.0.1", self.port, enable_auto_pong=False)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self, request: WSUpgradeRequest) -> PeerConnection | WSUpgradeResponseWithListener:
        if self.refuses_with is not None:
            self.refusals += 1
            response = WSUpgradeResponse.create_error_response(self.refuses_with, b"no")
            return WSUpgradeResponseWithListener(response, None)
        return PeerConnection(self)

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            connection.drop()
        for connection in self.connections:
            await connection.gone.wait()

    def note(self, message: Message) -> None:
        self.received.append(message)
        self._unread.append(message)
        self.notify()

    def notify(self) -> None:
        self._news.set()

    async def hears(self, kind: type[M], where: Callable[[M], bool] = lambda _: True) -> M:
        """The next message of the kind that was not yet heard; others stay for later."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                self._news.clear()
                for message in self._unread:
                    if isinstance(message, kind) and where(message):
                        self._unread.remove(message)
                        return message
                await self._news.wait()

    async def until(self, fact: Callable[[], object]) -> None:
        """A fact about what was heard, or who is connected."""
        async with asyncio.timeout(TIMEOUT_S):
            while not fact():
                self._news.clear()
                await self._news.wait()

    def drops(self) -> None:
        self.connections[-1].drop()
