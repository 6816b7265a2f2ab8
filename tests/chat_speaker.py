"""A chat client as existing ones are: JSON over a WebSocket, nothing of our SDKs. It waits for frames, not for time."""

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import aiohttp

from dragoman.verify.chat_crowd import token

PATIENCE_S = 60.0

Heard = dict[str, Any]


class Closed(AssertionError):
    """The server ended the connection while something else was expected."""


class ChatSpeaker:
    def __init__(self, uid: int, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.uid, self.ws = uid, ws
        self.heard: list[Heard] = []  # what nobody has asked for yet
        self.texts: list[str] = []  # all of it, as it came
        self.code: int | None = None  # that the server closed with

    # -- saying ----------------------------------------------------------------------------------

    async def text(self, data: str) -> None:
        """As with any socket, what is said to one who has hung up is lost."""
        try:
            await self.ws.send_str(data)
        except aiohttp.ClientConnectionResetError:
            pass

    async def say(self, type: str, **fields: object) -> None:
        await self.text(json.dumps({"type": type, **fields}, ensure_ascii=False))

    async def auth(self, access: str | None = None) -> Heard:
        await self.say("AUTH", token=access if access is not None else token(self.uid))
        return await self.expect("AUTH_OK")

    async def chat(self, to: int, body: str = "hello", name: str | None = None, **fields: object) -> str:
        """One message; answers its clientMsgId."""
        name = name if name is not None else uuid4().hex
        await self.say("SINGLE_CHAT", clientMsgId=name, to=str(to), body=body, **fields)
        return name

    async def ack(self, id: object, kind: str = "delivered", to: int = 1) -> None:
        await self.say("ACK", ackType=kind, serverMsgId=id, to=str(to))

    # -- hearing ---------------------------------------------------------------------------------

    async def next(self, patience_s: float = PATIENCE_S) -> Heard:
        """The next frame, whatever it is."""
        return self.heard.pop(0) if self.heard else await self._receive(patience_s)

    async def expect(self, type: str, /, **fields: object) -> Heard:
        """The first frame, heard before or now, that has this type and these fields; the others are kept."""
        for at, frame in enumerate(self.heard):
            if _fits(frame, type, fields):
                return self.heard.pop(at)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                frame = await self._receive(until - time.monotonic())
            except (TimeoutError, Closed) as error:
                raise AssertionError(f"no {type} {fields}: {error!r}; heard {self.heard[-20:]}") from None
            if _fits(frame, type, fields):
                return frame
            self.heard.append(frame)

    async def saved(self, name: str) -> int:
        """The serverMsgId of a message, once it is saved."""
        told = await self.expect("ACK", ackType="saved", clientMsgId=name)
        return int(told["serverMsgId"])

    async def refused(self, reason: str, **fields: object) -> Heard:
        return await self.expect("ERROR", reason=reason, **fields)

    async def so_far(self) -> list[Heard]:
        """All that was heard until everything said before has been read by the server."""
        await self.say("PING")
        await self.expect("PONG")
        heard, self.heard = self.heard, []
        return heard

    async def until_closed(self, patience_s: float = PATIENCE_S) -> int | None:
        """Read on until the server closes; with which code."""
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    self.heard.append(await self._receive(patience_s))
        except Closed:
            return self.code

    async def _receive(self, patience_s: float) -> Heard:
        async with asyncio.timeout(patience_s):
            while True:
                frame = await self.ws.receive()
                if frame.type is aiohttp.WSMsgType.TEXT:
                    self.texts.append(frame.data)
                    return dict(json.loads(frame.data))
                if frame.type is aiohttp.WSMsgType.CLOSE:
                    self.code = frame.data  # the socket's own close_code is lost when the answer comes too late
                if frame.type not in (aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG):
                    raise Closed(f"closed with {self.code}")

    async def close(self) -> None:
        await self.ws.close()


def _fits(frame: Heard, type: str, fields: dict[str, object]) -> bool:
    return frame["type"] == type and all(frame.get(name) == value for name, value in fields.items())


def bodies(frames: Iterable[Heard]) -> list[str]:
    return [frame["body"] for frame in frames if frame["type"] == "SINGLE_CHAT"]
