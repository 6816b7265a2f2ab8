"""Real instances, nodes and clients for tests: processes that can be killed, sockets that can be cut.

`Cluster` starts what a test asks for and ends all of it, whatever happened. Times are short (`QUICK`), but a presence
lasts long enough for a process that a busy machine lets wait.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from dragoman.config import Config, load
from dragoman.embedded.engine import free_port
from dragoman.protocol.audio import encode_base64, opus_run
from dragoman.tools.processes import InstanceProcess, NodeProcess
from support.redis_servers import RedisAt

# As large as a packet of speech: a short final of smaller ones is withheld.
SPOKEN_PACKET = b"\xf8" + bytes(39)
QUICK: dict[str, object] = {
    "scheduler.phase2.instance_presence_ttl_seconds": 3,
    "scheduler.phase2.owner_ttl_seconds": 20,
    "scheduler.phase2.stream_block_ms": 200,
    "scheduler.phase2.dlq_min_idle_ms": 200,
    "scheduler.phase2.dlq_scan_interval_ms": 100,
    "scheduler.phase2.node_snapshot.refresh_interval_ms": 500,
    "speech.node_grace_ms": 300,
    "server.admin_port": 0,
    "server.drain_s": 2,
}


def config(redis: RedisAt, prefix: str, **flags: object) -> Config:
    """Settings of one instance on `redis`; `flags` by dotted name with `__` for the dots."""
    where: dict[str, object] = {
        "scheduler.phase2.enabled": True,
        "scheduler.phase2.redis.mode": redis.mode,
        "scheduler.phase2.redis.key_prefix": prefix,
        "archive.url": f"sqlite:///{Path(tempfile.gettempdir()) / prefix}.sqlite3",
    }
    if redis.mode == "cluster":
        where["scheduler.phase2.redis.cluster_urls"] = list(redis.urls)
    else:
        where["scheduler.phase2.redis.url"] = redis.url
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load(None, {}, {**QUICK, **where, **named})


class Speaker:
    """A client as existing ones are: JSON over a WebSocket, nothing of our SDKs."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.session_id = self.token = ""
        self.last_seq = 0
        self.heard: list[dict[str, Any]] = []

    async def init(self, **fields: object) -> dict[str, Any]:
        await self.say(
            "session_init", client_version="t", platform="web", **{"src_lang": "en", "tgt_lang": "es"} | fields
        )
        ack = await self.until(lambda m: m["type"] == "session_init_ack")
        self.session_id, self.token = ack["session_id"], ack.get("resume_token", "")
        return ack

    async def chunk(self, seq: int, packets: int = 13, *, final: bool = False) -> None:
        """One audio_chunk of `packets` × 20 ms."""
        payload = bytes(encode_base64(opus_run([SPOKEN_PACKET] * packets))).decode().strip('"')
        await self.say("audio_chunk", session_id=self.session_id, seq=seq, is_final=final, payload=payload)

    async def say(self, type: str, **fields: object) -> None:
        await self.ws.send_str(json.dumps({"type": type, **fields}))

    async def utterance(self, index: int, packets: int = 10, **fields: object) -> None:
        audio = bytes(encode_base64(opus_run([SPOKEN_PACKET] * packets))).decode().strip('"')
        told = {"manual_cut": True, "src_lang": "en", "tgt_lang": "es", "audio_format": "opus", "sample_rate": 16000}
        await self.say("utterance", session_id=self.session_id, utterance_index=index, audio=audio, **told | fields)

    async def until(self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float = 60) -> dict[str, Any]:
        """The first message, heard before or now, that is wanted; it is taken out of `heard`."""
        for at, message in enumerate(self.heard):
            if wanted(message):
                return self.heard.pop(at)
        async with asyncio.timeout(timeout_s):
            while True:
                frame = await self.ws.receive()
                assert frame.type is aiohttp.WSMsgType.TEXT, f"closed with {self.ws.close_code}; heard {self.heard}"
                message = json.loads(frame.data)
                self.last_seq = max(self.last_seq, message.get("seq", 0))
                if wanted(message):
                    return dict(message)
                self.heard.append(message)

    async def result(self, index: int, timeout_s: float = 60) -> dict[str, Any]:
        """The result of one utterance; an AssertionError if it is told failed instead."""
        told = await self.until(
            lambda m: (
                (m["type"] == "translation_result" and m["utterance_index"] == index)
                or (m["type"] == "error" and (m.get("details") or {}).get("utterance_index") == index)
            ),
            timeout_s,
        )
        assert told["type"] == "translation_result", told
        return told


class Cluster:
    """Instances and nodes on one Redis under one prefix."""

    def __init__(self, redis: RedisAt, folder: Path, prefix: str | None = None) -> None:
        self.redis, self.folder = redis, folder
        self.prefix = prefix or f"t-{uuid4().hex[:12]}"
        self._started: list[InstanceProcess | NodeProcess] = []
        self._http = aiohttp.ClientSession()

    async def instance(self, **flags: object) -> InstanceProcess:
        database = f"sqlite:///{self.folder / 'chat.sqlite3'}"
        chosen: Mapping[str, object] = {"server__port": free_port(), "archive__url": database, **flags}
        name = str(chosen.get("scheduler__phase2__instance_id", f"i{len(self._started)}"))
        settings = config(self.redis, self.prefix, **{"scheduler__phase2__instance_id": name, **chosen})
        process = InstanceProcess(settings, self.folder / f"{name}.log")
        self._started.append(process)
        await process.ready()
        return process

    def node(self, *instances: InstanceProcess, **options: object) -> NodeProcess:
        ports = [one.port for one in instances]
        defaults: dict[str, object] = {"delay_ms": 20, "jitter_ms": 0, "languages": "en,es", "slots": 4}
        process = NodeProcess(ports, self.folder / f"node{len(self._started)}.log", **defaults | options)
        self._started.append(process)
        return process

    async def speaker(self, instance: InstanceProcess, **fields: object) -> Speaker:
        ws = await self._http.ws_connect(f"ws://127.0.0.1:{instance.port}/ws/session", max_msg_size=0)
        speaker = Speaker(ws)
        await speaker.init(**fields)
        return speaker

    async def resumed(self, before: Speaker, instance: InstanceProcess) -> tuple[Speaker, dict[str, Any]]:
        """The same client on a new socket, and the ack it got."""
        ws = await self._http.ws_connect(f"ws://127.0.0.1:{instance.port}/ws/session", max_msg_size=0)
        after = Speaker(ws)
        after.session_id, after.token, after.last_seq = before.session_id, before.token, before.last_seq
        await after.say(
            "session_resume", session_id=before.session_id, resume_token=before.token, last_seq=before.last_seq
        )
        ack = await after.until(lambda m: m["type"] in ("session_init_ack", "error"))
        assert ack["type"] == "session_init_ack", ack
        return after, ack

    async def close(self) -> None:
        await self._http.close()
        for process in self._started:
            process.close()

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))


@asynccontextmanager
async def running(redis: RedisAt, folder: Path, prefix: str | None = None) -> AsyncIterator[Cluster]:
    cluster = Cluster(redis, folder, prefix)
    try:
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
def cluster(runner: asyncio.Runner, redis_at: RedisAt, prefix: str, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of this test, ended before its keys are looked at; for the conftest of a folder."""
    stack = AsyncExitStack()
    yield runner.run(stack.enter_async_context(running(redis_at, tmp_path, prefix)))
    runner.run(stack.aclose())
