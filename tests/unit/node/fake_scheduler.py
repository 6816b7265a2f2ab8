"""A real WebSocket server on 127.0.0.1 that a node can be connected to, with the test as its mind."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
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

from dragoman.node import Node
from dragoman.node.job import Job
from dragoman.protocol import audio, codec
from dragoman.protocol.fields import Message
from dragoman.protocol.node import JobAssign, NodeRegister, NodeRegisterAck
from dragoman.protocol.session import Pipeline

M = TypeVar("M", bound=Message)
TIMEOUT_S = 60.0


class Connection(WSListener):
    def __init__(self, scheduler: "FakeScheduler") -> None:
        self.scheduler = scheduler
        self.transport: WSTransport | None = None
        self.gone = asyncio.Event()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        self.scheduler.connections.append(self)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.gone.set()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            self.scheduler.goodbyes += 1
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif frame.msg_type == WSMsgType.PING:
            if self.scheduler.answers_pings:
                transport.send_pong(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.TEXT:
            self.scheduler.on_message(self, codec.decode_node(frame.get_payload_as_bytes()))

    def send(self, message: Message) -> None:
        assert self.transport is not None
        self.transport.send(WSMsgType.TEXT, codec.encode(message))


class FakeScheduler:
    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.received: list[Message] = []
        self.goodbyes = 0
        self.acks = True
        self.answers_pings = True
        self.refuses_with: HTTPStatus | None = None
        self.refusals = 0
        self.node_id = "node-12345678"
        self._unread: list[Message] = []
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws/node"

    async def listen(self) -> None:
        self._server = await ws_create_server(self._accept, "127.0.0.1", self.port, enable_auto_pong=False)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self, request: WSUpgradeRequest) -> Connection | WSUpgradeResponseWithListener | None:
        if self.refuses_with is not None:
            self.refusals += 1
            response = WSUpgradeResponse.create_error_response(self.refuses_with, b"no")
            return WSUpgradeResponseWithListener(response, None)
        return Connection(self) if request.path.partition(b"?")[0] == b"/ws/node" else None

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            assert connection.transport is not None
            connection.transport.disconnect(graceful=False)
        for connection in self.connections:
            await connection.gone.wait()

    # ------------------------------------------------------------ talking

    def on_message(self, connection: Connection, message: Message) -> None:
        if isinstance(message, NodeRegister) and self.acks:
            connection.send(NodeRegisterAck(message.node_id or self.node_id, "welcome", "ready"))
        self.received.append(message)
        self._unread.append(message)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def hears(self, kind: type[M], where: Callable[[M], bool] = lambda _: True) -> M:
        """The next message of the kind that was not yet heard; others stay for later."""
        found: list[M] = []

        def look() -> bool:
            for message in self._unread:
                if isinstance(message, kind) and where(message):
                    self._unread.remove(message)
                    found.append(message)
                    return True
            return False

        async with asyncio.timeout(TIMEOUT_S), self._news:
            await self._news.wait_for(look)
        return found[0]

    def says(self, message: Message) -> None:
        self.connections[-1].send(message)

    def drops(self) -> None:
        """Cut the connection as a dead machine would."""
        transport = self.connections[-1].transport
        assert transport is not None
        transport.disconnect(graceful=False)

    def closes(self, code: int, reason: bytes = b"") -> None:
        transport = self.connections[-1].transport
        assert transport is not None
        transport.send_close(code, reason)  # type: ignore[arg-type]  # takes any code

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


async def wait_until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not fact():  # noqa: ASYNC110 - a fact is not an event
            await asyncio.sleep(0.001)


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
