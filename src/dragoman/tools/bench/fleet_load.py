"""Simulated nodes by the hundred, in one process: each answers a job at once with ack, started and result.

They cost next to nothing, so that what is measured is the instance: an assignment is decoded to the few fields its
answers repeat, and the answers are templates filled in. Three frames a job, as a real node sends them.
"""

import asyncio
from collections import Counter
from time import monotonic, monotonic_ns
from typing import Any

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from dragoman.node import Capabilities
from dragoman.protocol.codec import encode
from dragoman.protocol.node import ResourceUsage
from dragoman.tools.bench.load_process import play
from dragoman.tools.bench.ping import latency
from dragoman.tools.bench.speech_audio import AUDIO

_IDLE = ResourceUsage(0.0, 0.0, 0)
OPENING = 64  # connections being made at a time
OPEN_PATIENCE_S = 30.0
HEARTBEAT_S = 15.0
_TEXT = WSMsgType.TEXT

_ABOUT = b'"job_id":"%b","attempt_id":%d,"node_id":"%b","session_id":"%b","trace_id":"%b"'
_ACK = b'{"type":"job_ack",' + _ABOUT + b"}"
_STARTED = b'{"type":"job_started",' + _ABOUT + b"}"
_RESULT = (
    b'{"type":"job_result",' + _ABOUT + b',"utterance_index":%d,"success":true,"text_asr":"good morning to you all",'
    b'"text_translated":"buenos d\\u00edas a todos","tts_audio":"' + AUDIO + b'","tts_format":"opus",'
    b'"processing_time_ms":3.0,"extra":{"language_probability":0.98}}'
)


class Told(msgspec.Struct, gc=False):
    """Of any message from the server; a job_assign has all of it."""

    type: str
    job_id: str = ""
    attempt_id: int = 1
    session_id: str = ""
    utterance_index: int = 0
    trace_id: str = ""
    turn_id: str = ""
    message: str = ""


_decode = msgspec.json.Decoder(Told).decode


class Fleet:
    """All nodes of this process."""

    def __init__(self) -> None:
        self.nodes: list[SimNode] = []
        self.work_s = 0.0  # from the start of a job to its result
        self._timing = False
        self._since_cut_s: list[float] = []
        self._since_said_s: list[float] = []
        self._beat: asyncio.Task[None] | None = None
        self.cancelled = 0
        self.closed: Counter[str] = Counter()  # nodes that were in, by the code they were closed with

    def assigned(self, told: Told) -> None:
        if self._timing:
            now = monotonic_ns()
            # Moments on the clock of this machine: see `stamped_instance`, and `speaker_load` for the trace id.
            self._since_cut_s.append((now - int(told.turn_id)) / 1e9)
            self._since_said_s.append((now - int(told.trace_id)) / 1e9)

    async def open(
        self, urls: list[str], count: int, slots: int, languages: list[str], work_s: float = 0.0
    ) -> dict[str, Any]:
        """`count` more nodes, dealt out to `urls`; each hears English and writes one of `languages` in turn."""
        self.work_s = work_s
        gate = asyncio.Semaphore(OPENING)

        async def one(number: int) -> None:
            writes = [languages[number % len(languages)]]
            node = SimNode(self, f"node-{number:05d}", Capabilities(["en"], writes, writes, slots, "bench"))
            async with gate, asyncio.timeout(OPEN_PATIENCE_S):
                await ws_connect(lambda: node, f"{urls[number % len(urls)]}/ws/node")
                await node.registered
            self.nodes.append(node)

        async with asyncio.TaskGroup() as group:
            for number in range(len(self.nodes), len(self.nodes) + count):
                group.create_task(one(number))
        if self._beat is None:
            self._beat = asyncio.create_task(self._heartbeats())
        return {"nodes": len(self.nodes)}

    async def _heartbeats(self) -> None:
        """Each node every HEARTBEAT_S, one after the other: a fleet does not beat in step."""
        while True:
            began, nodes = monotonic(), list(self.nodes)
            for at, node in enumerate(nodes):
                await asyncio.sleep(max(began + HEARTBEAT_S * at / len(nodes) - monotonic(), 0))
                node.heartbeat()
            await asyncio.sleep(max(began + HEARTBEAT_S - monotonic(), 0))

    async def time(self) -> None:
        """From now on, note how long each job was on its way."""
        self._since_cut_s, self._since_said_s, self._timing = [], [], True

    async def times(self) -> dict[str, Any]:
        self._timing = False
        told: dict[str, Any] = {
            "jobs": len(self._since_cut_s),
            "closed": dict(self.closed),
            "cancelled": self.cancelled,
        }
        if self._since_cut_s:
            told |= {"cut": latency(self._since_cut_s), "said": latency(self._since_said_s)}
        return told


class SimNode(WSListener):
    def __init__(self, fleet: Fleet, id: str, capabilities: Capabilities) -> None:
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fleet, self._name, self._capabilities = fleet, id, capabilities
        self._id = id.encode()
        self._why = "without a word"
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.send(_TEXT, encode(self._capabilities.register(self._name, None, draining=False)))

    def heartbeat(self) -> None:
        self._transport.send(_TEXT, encode(self._capabilities.heartbeat(self._name, _IDLE, draining=False)))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is not _TEXT:
            if frame.msg_type is WSMsgType.CLOSE:
                self._why = str(int.from_bytes(frame.get_payload_as_bytes()[:2], "big"))
            return
        told = _decode(frame.get_payload_as_bytes())
        if told.type == "job_assign":
            self._fleet.assigned(told)
            job = (told.job_id.encode(), told.attempt_id, self._id, told.session_id.encode(), told.trace_id.encode())
            transport.send(_TEXT, _ACK % job)
            transport.send(_TEXT, _STARTED % job)
            if self._fleet.work_s:
                loop = asyncio.get_running_loop()
                loop.call_later(self._fleet.work_s, self._answer, job, told.utterance_index)
            else:
                self._answer(job, told.utterance_index)
        elif told.type == "node_register_ack":
            self.heartbeat()
            self.registered.set_result(None)
        elif told.type == "job_cancel":
            self._fleet.cancelled += 1  # too late: it was answered at once
        else:
            raise ValueError(f"a node was told {told.type}: {told.message}")

    def _answer(self, job: tuple[bytes, int, bytes, bytes, bytes], index: int) -> None:
        self._transport.send(_TEXT, _RESULT % (*job, index))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self.registered.done():
            self._fleet.closed[self._why] += 1
        if not self.registered.done():
            self.registered.set_exception(ConnectionError("a node was not let in"))


def main() -> None:
    fleet = Fleet()
    play({"open": fleet.open, "time": fleet.time, "times": fleet.times})


if __name__ == "__main__":
    main()
