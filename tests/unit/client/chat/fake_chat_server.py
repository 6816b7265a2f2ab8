"""A real WebSocket server on 127.0.0.1 that says and hears what the test acts out, frame by frame."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

from dragoman.client.chat import Chat, Timing
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Reason

ME, OTHER = 1, 2
TS = 1_700_000_000_000
QUICK = Timing(
    connect_s=5, answer_s=5, ping_s=60, resend_s=60, close_s=0.2, backoff_first_s=0.001, backoff_longest_s=0.01
)
TIMEOUT_S = 60.0


class Peer:
    """The server's end of one connection."""

    def __init__(self, ws: web.WebSocketResponse) -> None:
        self._ws = ws
        self.frames: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def hear(self, type: str) -> dict[str, Any]:
        """The next frame, which is of that type."""
        async with asyncio.timeout(TIMEOUT_S):
            frame = await self.frames.get()
        assert frame is not None, f"the client went instead of saying {type}"
        assert frame["type"] == type, frame
        return frame

    async def gone(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while await self.frames.get() is not None:
                pass

    async def say(self, *frames: bytes) -> None:
        for frame in frames:
            await self._ws.send_str(frame.decode())

    async def let_in(self, uid: int = ME) -> "Peer":
        await self.hear("AUTH")
        await self.say(wire.auth_ok(uid, TS))
        return self

    async def take(self, server_msg_id: int, *acks: AckType) -> dict[str, Any]:
        """Hear a message, and tell how far it is."""
        frame = await self.hear("SINGLE_CHAT")
        await self.tell(frame, server_msg_id, *acks)
        return frame

    async def tell(self, frame: dict[str, Any], server_msg_id: int, *acks: AckType) -> None:
        await self.say(*(wire.ack(ack, ME, frame["clientMsgId"], server_msg_id, TS) for ack in acks))

    async def refuse(self, frame: dict[str, Any], reason: Reason) -> None:
        await self.say(wire.error(reason, TS, frame["clientMsgId"]))

    async def push(self, server_msg_id: int, body: str = "hello", from_: int = OTHER) -> None:
        await self.say(wire.chat(from_, ME, f"c{server_msg_id}", server_msg_id, "TEXT", body, TS))

    async def receipt(self, ack: AckType, server_msg_id: int, acker: int = OTHER) -> None:
        await self.say(wire.relay_ack(ack, acker, ME, server_msg_id, TS))

    async def close(self, code: int = 1000) -> None:
        await self._ws.close(code=code)

    def drop(self) -> None:
        assert self._ws._req is not None
        transport = self._ws._req.transport
        assert transport is not None
        transport.abort()


class FakeChatServer:
    def __init__(self) -> None:
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.url = ""

    async def next(self) -> Peer:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._peers.get()

    async def let_in(self, uid: int = ME) -> Peer:
        return await (await self.next()).let_in(uid)

    @property
    def waiting(self) -> int:
        return self._peers.qsize()

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(autoping=True)
        await ws.prepare(request)
        peer = Peer(ws)
        self._peers.put_nowait(peer)
        async for message in ws:
            if message.type is WSMsgType.TEXT:
                peer.frames.put_nowait(json.loads(message.data))
        peer.frames.put_nowait(None)
        return ws


@asynccontextmanager
async def serving() -> AsyncIterator[FakeChatServer]:
    server = FakeChatServer()
    app = web.Application()
    app.router.add_get("/ws", server.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"ws://{host}:{port}/ws"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def chatting(**options: Any) -> AsyncIterator[tuple[FakeChatServer, Peer, Chat]]:
    """A server, its end of the first connection, and a chat that is open."""
    async with serving() as server:
        chosen: dict[str, Any] = {"token": "t", "timing": QUICK} | options
        chat = Chat(server.url, **chosen)
        peer, _ = await asyncio.gather(server.let_in(), chat.open())
        try:
            yield server, peer, chat
        finally:
            await chat.abort()


def noted() -> tuple[list[Any], Callable[..., None]]:
    """What a callback was called with."""
    calls: list[Any] = []
    return calls, lambda *args: calls.append(args if len(args) > 1 else args[0])
