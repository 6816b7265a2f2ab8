"""Simulated nodes and speech clients by the thousand, in load processes of their own.

Nodes answer a job at once with ack, started and result, three frames as a real node sends them. An assignment is
decoded to the few fields that its answers repeat, and the answers are filled-in templates: the cost is the instance's.

Each client opens a session and sends one `utterance` after the other:

    loop   the next when the result of the previous one has arrived: as fast as the instance is
    pace   so many a second over all sessions in turn, whether they are answered or not

Results are counted, each index once, and backpressure. Any other message ends a bench, unless `tolerate` was called:
then failed utterances are counted by their codes. The trace id of an utterance is the moment at which it was sent; the
node that gets the job can read it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, monotonic_ns
from typing import Any

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from dragoman.node import Capabilities
from dragoman.protocol.audio import encode_base64, opus_run
from dragoman.protocol.codec import encode
from dragoman.protocol.node import ResourceUsage
from dragoman.tools.bench.measure import latency
from dragoman.tools.processes import Command, open_all, serve

PACKET_BYTES = 40  # 16 kbit/s
PACKETS = 50  # of 20 ms
AUDIO = bytes(encode_base64(opus_run([b"\xf8" + bytes(PACKET_BYTES - 1)] * PACKETS))).strip(b'"')
"""One second of speech: Base64, without the quotes."""

OPENING = 64  # connections being made at a time
OPEN_TIMEOUT_S = 30.0
HEARTBEAT_S = 15.0
READ_BUFFER_BYTES = 4096  # there may be ten thousand sessions
REST_TIMEOUT_S = 10.0
TEXT = WSMsgType.TEXT
NO_LOAD = ResourceUsage(0.0, 0.0, 0)

JOB = b'"job_id":"%b","attempt_id":%d,"node_id":"%b","session_id":"%b","trace_id":"%b"'
ACK = b'{"type":"job_ack",' + JOB + b"}"
STARTED = b'{"type":"job_started",' + JOB + b"}"
_JOB_RESULT = (
    b'{"type":"job_result",' + JOB + b',"utterance_index":%d,"success":true,"text_asr":"good morning to you all",'
    b'"text_translated":"buenos d\\u00edas a todos","tts_audio":"' + AUDIO + b'","tts_format":"opus",'
    b'"processing_time_ms":3.0,"extra":{"language_probability":0.98}}'
)
_INIT = b'{"type":"session_init","client_version":"bench","platform":"web","src_lang":"en","tgt_lang":"%b"}'
_UTTERANCE = (
    b'{"type":"utterance","session_id":"%b","utterance_index":%d,"manual_cut":true,"src_lang":"en","tgt_lang":"%b",'
    b'"audio":"' + AUDIO + b'","audio_format":"opus","sample_rate":16000,"trace_id":"%d"}'
)
_BACKPRESSURE, _ERROR, _INDEX = b'{"type":"backpressure"', b'{"type":"error"', b'"utterance_index":'
_OPENED, _RESULT, _EVENT = b'{"type":"session_init_ack"', b'{"type":"translation_result"', b'{"type":"ui_event"'


# -- nodes -----------------------------------------------------------------------------------------


class ToNode(msgspec.Struct, gc=False):
    """The fields of any message from the server to a node; a job_assign has all of them."""

    type: str
    job_id: str = ""
    attempt_id: int = 1
    session_id: str = ""
    utterance_index: int = 0
    trace_id: str = ""
    turn_id: str = ""
    message: str = ""
    text: str = ""  # of a text job
    tgt_lang: str = ""


_decode = msgspec.json.Decoder(ToNode).decode


class NodeLoad:
    """All nodes of this process."""

    def __init__(self) -> None:
        self.nodes: list[SimulatedNode] = []
        self.work_s = 0.0  # from the start of a job to its result
        self.text_s = 0.0  # the same for a text job
        self._timing = False
        self._since_cut_s: list[float] = []
        self._since_sent_s: list[float] = []
        self._heartbeats: asyncio.Task[None] | None = None
        self.cancelled = 0
        self.closed: Counter[str] = Counter()  # nodes that had registered, by the code they were closed with

    def assigned(self, assignment: ToNode) -> None:
        if self._timing:
            now = monotonic_ns()
            # Times on the clock of this machine: see `instance_variants`, and `SpeechClient.send` for the trace id.
            self._since_cut_s.append((now - int(assignment.turn_id)) / 1e9)
            self._since_sent_s.append((now - int(assignment.trace_id)) / 1e9)

    async def open(
        self,
        urls: list[str],
        count: int,
        slots: int,
        languages: list[str],
        work_s: float = 0.0,
        text_s: float | None = None,
    ) -> dict[str, Any]:
        """`count` more nodes, spread over `urls`; each hears English and writes one of `languages` in turn.

        With `text_s` they also translate texts of that pair, in that time.
        """
        self.work_s, self.text_s = work_s, text_s or 0.0

        def made(number: int) -> SimulatedNode:
            writes = [languages[number % len(languages)]]
            pairs = [("en", writes[0])] if text_s is not None else []
            capabilities = Capabilities(["en"], writes, writes, slots, "bench", text_pairs=pairs)
            return SimulatedNode(self, f"node-{number:05d}", capabilities)

        return await self.add(urls, count, made)

    async def add(self, urls: list[str], count: int, made: Callable[[int], "SimulatedNode"]) -> dict[str, Any]:
        """`count` more nodes, spread over `urls`; `made` gets the number of each."""

        async def one(number: int) -> None:
            node = made(number)
            await ws_connect(lambda: node, f"{urls[number % len(urls)]}/ws/node")
            await node.registered
            self.nodes.append(node)

        await open_all(range(len(self.nodes), len(self.nodes) + count), OPENING, OPEN_TIMEOUT_S, one)
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._send_heartbeats())
        return {"nodes": len(self.nodes)}

    async def _send_heartbeats(self) -> None:
        """Each node every HEARTBEAT_S, spread over that time."""
        while True:
            began, nodes = monotonic(), list(self.nodes)
            for at, node in enumerate(nodes):
                await asyncio.sleep(max(began + HEARTBEAT_S * at / len(nodes) - monotonic(), 0))
                node.heartbeat()
            await asyncio.sleep(max(began + HEARTBEAT_S - monotonic(), 0))

    async def time(self) -> None:
        """From now on, measure how long each job took to arrive."""
        self._since_cut_s, self._since_sent_s, self._timing = [], [], True

    async def times(self) -> dict[str, Any]:
        self._timing = False
        counts = {"jobs": len(self._since_cut_s), "closed": dict(self.closed), "cancelled": self.cancelled}
        if not self._since_cut_s:
            return counts
        return counts | {"cut": latency(self._since_cut_s), "sent": latency(self._since_sent_s)}


class SimulatedNode(WSListener):
    def __init__(self, all: NodeLoad, id: str, capabilities: Capabilities) -> None:
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._all, self._name, self._capabilities = all, id, capabilities
        self._id = id.encode()
        self._why = "no close frame"
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.send(TEXT, encode(self._capabilities.register(self._name, None, draining=False)))

    def heartbeat(self) -> None:
        self._transport.send(TEXT, encode(self._capabilities.heartbeat(self._name, NO_LOAD, draining=False)))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is not TEXT:
            if frame.msg_type is WSMsgType.CLOSE:
                self._why = str(int.from_bytes(frame.get_payload_as_bytes()[:2], "big"))
            return
        message = _decode(frame.get_payload_as_bytes())
        if message.type == "job_assign":
            self.work(transport, message)
        elif message.type == "node_register_ack":
            self.heartbeat()
            self.registered.set_result(None)
        elif message.type == "job_cancel":
            self._all.cancelled += 1  # too late: it was answered at once
        else:
            raise ValueError(f"a node received {message.type}: {message.message}")

    def work(self, transport: WSTransport, message: ToNode) -> None:
        if message.text:
            later = asyncio.get_running_loop().call_later
            later(self._all.text_s, self._answer, self.accept(transport, message), message.utterance_index)
            return
        self._all.assigned(message)
        job = self.accept(transport, message)
        if self._all.work_s:
            asyncio.get_running_loop().call_later(self._all.work_s, self._answer, job, message.utterance_index)
        else:
            self._answer(job, message.utterance_index)

    def accept(self, transport: WSTransport, message: ToNode) -> tuple[bytes, int, bytes, bytes, bytes]:
        """Acknowledge and start the job; returns what its result repeats."""
        session, trace = message.session_id.encode(), message.trace_id.encode()
        job = (message.job_id.encode(), message.attempt_id, self._id, session, trace)
        transport.send(TEXT, ACK % job)
        transport.send(TEXT, STARTED % job)
        return job

    def _answer(self, job: tuple[bytes, int, bytes, bytes, bytes], index: int) -> None:
        self._transport.send(TEXT, _JOB_RESULT % (*job, index))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self.registered.done():
            self._all.closed[self._why] += 1
        else:
            self.registered.set_exception(ConnectionError("a node was not accepted"))


# -- clients ---------------------------------------------------------------------------------------


class Refusal(msgspec.Struct, gc=False):
    """A message instead of a result."""

    action: str = ""
    code: str = ""


_decode_refusal = msgspec.json.Decoder(Refusal).decode


class SpeechLoad:
    """All sessions of this process."""

    def __init__(self) -> None:
        self.sent = self.results = self.doubled = 0
        self.backpressure: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.failures: list[str] = []
        self.looping = self.tolerant = False
        self.sessions: list[SpeechClient] = []
        self._pacing: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    async def open(self, urls: list[str], count: int, languages: list[str]) -> None:
        """`count` more sessions, spread over `urls`, and at each of them over the languages."""

        async def one(number: int) -> None:
            client = SpeechClient(self, languages[number // len(urls) % len(languages)].encode())
            url = f"{urls[number % len(urls)]}/ws/session"
            await ws_connect(lambda: client, url, read_buffer_init_size=READ_BUFFER_BYTES)
            await client.opened
            self.sessions.append(client)

        await open_all(range(len(self.sessions), len(self.sessions) + count), OPENING, OPEN_TIMEOUT_S, one)

    async def loop(self) -> None:
        self.looping = True
        for client in self.sessions:
            client.send()

    async def tolerate(self) -> None:
        self.tolerant = True

    async def pace(self, per_s: float) -> None:
        if self._pacing is not None:
            self._pacing.cancel()
        self._pacing = asyncio.create_task(self._pace(per_s))

    async def _pace(self, per_s: float) -> None:
        """An utterance that is due is sent, however late this wakes up."""
        started, at = monotonic(), 0
        while True:
            due = int((monotonic() - started) * per_s)
            while at < due:
                self.sessions[at % len(self.sessions)].send()
                at += 1
            await asyncio.sleep(max(started + (at + 1) / per_s - monotonic(), 0))

    async def count(self) -> dict[str, Any]:
        counts = {"sent": self.sent, "results": self.results, "doubled": self.doubled, "failed": len(self.failures)}
        refused = {"backpressure": dict(self.backpressure), "errors": dict(self.errors)}
        return counts | refused | {"failures": self.failures[:3]}

    async def rest(self, wait_s: float = REST_TIMEOUT_S) -> dict[str, Any]:
        """Send nothing more, and wait until everything that was sent is answered."""
        self.looping = False
        if self._pacing is not None:
            self._pacing.cancel()
        self._settled.clear()
        self._check_settled()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._settled.wait()
        return await self.count()

    def answered(self, client: "SpeechClient") -> None:
        self.results += 1
        if self.looping:
            client.send()
        else:
            self._check_settled()

    def failed(self, why: str) -> None:
        self.failures.append(why)
        self._check_settled()

    def refused(self, payload: bytes) -> None:
        """Backpressure, after which every utterance is answered all the same; or an utterance failed."""
        refusal = _decode_refusal(payload)
        if refusal.action:
            self.backpressure[refusal.action] += 1
            return
        self.errors[refusal.code] += 1
        if not self.tolerant:
            self.failures.append(payload.decode(errors="replace")[:300])
        self._check_settled()

    def _check_settled(self) -> None:
        if self.results + self.errors.total() >= self.sent or self.failures:
            self._settled.set()


class SpeechClient(WSListener):
    def __init__(self, all: SpeechLoad, tgt: bytes) -> None:
        self._all, self._tgt = all, tgt
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session = b""
        self._index = 0
        self._open: set[int] = set()  # indexes that are not answered
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.send(TEXT, _INIT % self._tgt)

    def send(self) -> None:
        """The next utterance."""
        self._transport.send(TEXT, _UTTERANCE % (self._session, self._index, self._tgt, monotonic_ns()))
        self._open.add(self._index)
        self._index += 1
        self._all.sent += 1

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Messages are distinguished by how they begin."""
        if frame.msg_type is not TEXT:
            return
        payload = frame.get_payload_as_bytes()
        if payload.startswith(_EVENT):
            return
        if payload.startswith(_RESULT):
            self._answered(payload)
        elif payload.startswith(_OPENED):
            self._session = msgspec.json.decode(payload)["session_id"].encode()
            self.opened.set_result(None)
        elif payload.startswith((_BACKPRESSURE, _ERROR)):
            self._all.refused(payload)
        else:
            self._all.failed(payload.decode(errors="replace")[:300])

    def _answered(self, payload: bytes) -> None:
        at = payload.find(_INDEX) + len(_INDEX)
        index = int(payload[at : payload.find(b",", at)])
        if index in self._open:
            self._open.remove(index)
            self._all.answered(self)
        else:
            self._all.doubled += 1

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._all.failed("its connection was closed")
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("a session was not accepted"))


def main() -> None:
    """One process has either nodes or sessions."""
    nodes, sessions = NodeLoad(), SpeechLoad()
    commands: dict[str, Command] = {"open_nodes": nodes.open, "time": nodes.time, "times": nodes.times}
    commands |= {"open_sessions": sessions.open, "loop": sessions.loop, "pace": sessions.pace}
    serve(commands | {"tolerate": sessions.tolerate, "count": sessions.count, "rest": sessions.rest})


if __name__ == "__main__":
    main()
