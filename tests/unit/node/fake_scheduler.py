"""A real WebSocket server on 127.0.0.1 that a node can be connected to, with the test as its mind."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from dragoman.node import Node
from dragoman.node.job import Job
from dragoman.protocol import audio, codec
from dragoman.protocol.fields import Message
from dragoman.protocol.node import JobAssign, NodeRegister, NodeRegisterAck
from dragoman.protocol.session import Pipeline
from support.fake_peer import FakePeer, PeerConnection


class FakeScheduler(FakePeer):
    path = "/ws/node"

    def __init__(self) -> None:
        super().__init__()
        self.acks = True
        self.node_id = "node-12345678"

    @property
    def goodbyes(self) -> int:
        """Connections that the node closed itself."""
        return sum(connection.goodbye is not None for connection in self.connections)

    def on_frame(self, connection: PeerConnection, data: bytes, *, binary: bool) -> None:
        message = codec.decode_node(data)
        if isinstance(message, NodeRegister) and self.acks:
            connection.send(NodeRegisterAck(message.node_id or self.node_id, "welcome", "ready"))
        self.note(message)

    def says(self, message: Message) -> None:
        self.connections[-1].send(message)

    def closes(self, code: int, reason: bytes = b"") -> None:
        self.connections[-1].close(code, reason)

    def assigns(self, number: int, **fields: Any) -> JobAssign:
        """Assign job-<number>, utterance <number> of session s-1 unless told otherwise."""
        job = assignment(number, **fields)
        self.says(job)
        return job


def assignment(number: int, **fields: Any) -> JobAssign:
    job = JobAssign(
        job_id=f"job-{number}",
        attempt_id=1,
        session_id="s-1",
        utterance_index=number,
        src_lang="en",
        tgt_lang="es",
        pipeline=Pipeline(True, True, True),
        audio=audio.encode_base64(audio.opus_run([audio.SILENCE_PACKET] * 5)),
        audio_format="opus",
        sample_rate=16000,
        trace_id=f"trace-{number}",
    )
    for name, value in fields.items():
        setattr(job, name, value)
    return job


def job(number: int, **fields: Any) -> Job:
    return Job(assignment(number, **fields), lambda *_: None)


def details(raw: Any) -> Any:
    return json.loads(bytes(raw))


@asynccontextmanager
async def scheduler() -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler()
    await fake.listen()
    try:
        yield fake
    finally:
        await fake.close()


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[asyncio.Task[None]]:
    """The node's `run` as a task, stopped at the end if it is not over by then."""
    task = asyncio.get_running_loop().create_task(node.run())
    try:
        yield task
    finally:
        node.stop()
        with suppress(Exception):
            await task
