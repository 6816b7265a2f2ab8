"""A compute node as the old ones are: JSON over a WebSocket, nothing of our SDK.

It registers and beats like the samples. What it does with a job a test decides: `work` is called with each, and
`answer`, `partial`, `fail` … say what a node can say. `features` makes it a newer one in the server's eyes.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import aiohttp

from support.waiting import wait_until

SAMPLES = json.loads((Path(__file__).parent.parent / "contract" / "samples.json").read_text())["node"]
TIMEOUT_S = 60.0

Message = dict[str, Any]
Work = Callable[["RawNode", Message], Awaitable[None] | None]


async def at_once(node: "RawNode", job: Message) -> None:
    await node.answer(job)


async def thorough(node: "RawNode", job: Message) -> None:
    """It says everything that a node of ours says of a job."""
    await node.ack(job)
    await node.start(job)
    await node.partial(job, "said")
    await node.answer(job)


def silent(node: "RawNode", job: Message) -> None:
    """It never answers."""


class RawNode:
    def __init__(self, ws: aiohttp.ClientWebSocketResponse, work: Work) -> None:
        self.ws, self.work = ws, work
        self.id = ""
        self.heard: list[Message] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def dial(
        cls,
        http: aiohttp.ClientSession,
        port: int,
        *,
        languages: Iterable[str],
        work: Work = at_once,
        node_id: str | None = None,
        features: Iterable[str] = (),
        token: str | None = None,
        beat_first: bool = False,
        **fields: object,
    ) -> Self:
        """Connect, register, and send the heartbeat that makes it usable; `beat_first`: before it registers."""
        node = cls(await http.ws_connect(f"ws://127.0.0.1:{port}/ws/node", max_msg_size=0), work)
        spoken = list(languages)
        register = deepcopy(SAMPLES["node_register"]) | {"node_id": node_id} | fields
        for kind in ("asr", "tts", "semantic"):
            register["language_capabilities"][f"{kind}_languages"] = spoken
        if features:
            register["advanced_features"] = list(features)
        if token is not None:
            register["token"] = token
        if beat_first:
            await node.beat(spoken, node_id=node_id or "node-ABE833EC")
        await node.ws.send_str(json.dumps(register))
        ack = await node.until("node_register_ack")
        node.id = ack["node_id"]
        if not beat_first:
            await node.beat(spoken)
        return node

    # -- what it hears ---------------------------------------------------------------------------

    @property
    def jobs(self) -> list[Message]:
        return self.of("job_assign")

    @property
    def cancelled(self) -> list[str]:
        return [message["job_id"] for message in self.of("job_cancel")]

    def of(self, type: str) -> list[Message]:
        return [message for message in self.heard if message["type"] == type]

    async def until(self, type: str, number: int = 1) -> Message:
        """The nth message of a type."""
        await wait_until(lambda: len(self.of(type)) >= number or self.ws.closed, TIMEOUT_S, f"{type} {number}")
        assert len(self.of(type)) >= number, f"closed with {self.ws.close_code}; heard {self.heard}"
        return self.of(type)[number - 1]

    async def job(self, number: int = 1) -> Message:
        return await self.until("job_assign", number)

    async def closed(self) -> int | None:
        await wait_until(lambda: self.ws.closed, TIMEOUT_S)
        return self.ws.close_code

    async def _read(self) -> None:
        async for frame in self.ws:
            message = json.loads(frame.data)
            self.heard.append(message)
            if message["type"] == "job_assign":
                done = self.work(self, message)
                if inspect.isawaitable(done):
                    await done

    # -- what it says ----------------------------------------------------------------------------

    async def say(self, type: str, **fields: object) -> None:
        await self.ws.send_str(json.dumps({"type": type, **fields}))

    async def beat(self, languages: Iterable[str], **fields: object) -> None:
        beat = deepcopy(SAMPLES["node_heartbeat"]) | {"node_id": self.id} | fields
        for kind in ("asr", "tts", "semantic"):
            beat["language_capabilities"][f"{kind}_languages"] = list(languages)
        await self.ws.send_str(json.dumps(beat))

    async def ack(self, job: Message) -> None:
        await self.say("job_ack", **self._about(job))

    async def start(self, job: Message) -> None:
        await self.say("job_started", **self._about(job))

    async def partial(self, job: Message, text: str) -> None:
        about = self._about(job) | {"utterance_index": job["utterance_index"], "text": text, "is_final": False}
        await self.say("asr_partial", **about)

    async def answer(self, job: Message, **fields: object) -> None:
        index = job["utterance_index"]
        text = {"text_asr": f"said {index}", "text_translated": f"[{job['tgt_lang']}] said {index}"}
        result = {"utterance_index": index, "success": True, "tts_audio": "", "tts_format": "opus", **text}
        await self.say("job_result", **self._about(job) | result | fields)

    async def fail(self, job: Message, code: str, message: str = "it failed", **details: object) -> None:
        error = {"code": code, "message": message} | ({"details": details} if details else {})
        await self.say(
            "job_result", **self._about(job), utterance_index=job["utterance_index"], success=False, error=error
        )

    async def lacks(self, job: Message, service: str = "nmt-m2m100") -> None:
        details = {"service_id": service, "service_version": "2.0.0", "reason": "not_loaded"}
        await self.fail(job, "MODEL_NOT_AVAILABLE", "The model is not loaded.", **details)

    def _about(self, job: Message) -> Message:
        return {name: job[name] for name in ("job_id", "attempt_id", "session_id", "trace_id")} | {"node_id": self.id}

    # -- how it ends -----------------------------------------------------------------------------

    def die(self) -> None:
        """The connection breaks, without a word."""
        response = self.ws._response
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.ws.close()
