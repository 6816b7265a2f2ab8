"""A session that must not notice what others do to the server: its results keep coming, and it is told of no error."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import jwt

from e2e.speech_stage import ACKING, PATIENCE_S, Stage, Talker, Visit, after, visiting
from waiting import wait_until

SECRET = "a secret that is long enough for HS256, and only for these tests"
PACE_S = 0.02  # between utterances of the healthy session: well within what a client may send


def token(typ: str = "client", sub: str = "ann", *, secret: str = SECRET, **claims: object) -> str:
    told = {"iss": "dragoman", "exp": int(time.time()) + 600, "typ": typ, "sub": sub, **claims}
    return jwt.encode({k: v for k, v in told.items() if v is not None}, secret, algorithm="HS256")


def is_advice(message: dict[str, Any]) -> bool:
    """To pause because the machine is busy: one with other work to do makes any server send that."""
    return bool(
        message["type"] == "backpressure" and message["message"] in ("waiting for a node", "the server is busy")
    )


class Healthy:
    """A session that goes on speaking, and hears nothing but results."""

    def __init__(self, visit: Visit, talker: Talker) -> None:
        self._visit, self._talker = visit, talker
        self.spoken = 0

    async def speak_on(self) -> None:
        while True:
            await self._visit.say_utterance(self._talker, self.spoken)
            result = await self._talker.result(self.spoken, PATIENCE_S)
            assert "backfilled" not in result
            assert not [m for m in self._talker.heard if m["type"] in ("error", "backpressure") and not is_advice(m)]
            self._talker.heard.clear()
            self.spoken += 1
            await wait_until(after(PACE_S), PATIENCE_S)


@asynccontextmanager
async def unharmed(stage: Stage, **init: object) -> AsyncIterator[Visit]:
    """A visit during which somebody else goes on undisturbed, and speaks again after it."""
    async with visiting(stage) as visit, visiting(stage) as other:
        told: dict[str, Any] = {"token": token()} if stage.headers else {}
        node_token: dict[str, Any] = {"token": token("node", "healthy"), "node_id": "healthy"} if stage.headers else {}
        await other.node(features=ACKING, **node_token)
        healthy = Healthy(other, await other.talker(**told))
        speaking = asyncio.create_task(healthy.speak_on())
        try:
            await wait_until(lambda: healthy.spoken > 0 or speaking.done(), PATIENCE_S)
            yield visit
            more = healthy.spoken + 2
            await wait_until(lambda: healthy.spoken > more or speaking.done(), PATIENCE_S)
        finally:
            speaking.cancel()
            done = await asyncio.gather(speaking, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError), done[0]


async def closed_with(ws: aiohttp.ClientWebSocketResponse) -> int | None:
    """Read until the server closes, and say with which code."""
    async with asyncio.timeout(PATIENCE_S):
        async for _ in ws:
            pass
    return ws.close_code


async def ending(visit: Visit, path: str, said: str = "") -> "asyncio.Task[int | None]":
    """A connection that says no more than that, and the code it will be closed with."""
    ws = await visit.socket(path=path)
    if said:
        await ws.send_str(said)
    return asyncio.create_task(closed_with(ws))
