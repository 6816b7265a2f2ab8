"""The clients and the nodes of `dragoman bench live`: speakers with a listener each, and in another process the nodes.

    speaker ─▶ instance ─▶ node: a partial for each piece of audio at once; after `asr_s` what was said
    node ─▶ instance ─▶ node: after `text_s` the translation ─▶ instance ─▶ listener

A speaker streams the sample sentences of espeak-ng, with silence between them, in chunks of CHUNK_MS. All speakers send
the same audio, so what the voice detector will decide is known here: the same detector is run over it. The text of an
utterance is the id of its caption. Clocks are those of one machine.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec
import numpy
import pybase64
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from dragoman.cli.say import spoken_sample
from dragoman.domain.endpointer import Endpoint, Endpointer
from dragoman.node import Capabilities
from dragoman.services.speech.session_input import VoiceDetector
from dragoman.tools.bench.speech_load import JOB, NodeLoad, SimulatedNode, ToNode
from dragoman.tools.processes import CannotRun, Command, open_all, serve, until

RATE, CHUNK_MS = 16_000, 60  # as the page and the client send them
CHUNK_BYTES, CHUNK_S = RATE * CHUNK_MS // 1000 * 2, CHUNK_MS / 1000
PAUSE_MS = 1500  # between two sentences, and before the first
NOISE = 30  # loudness of the room, of 32,768
VOICED = 0.02  # of the loudest sample: where a sentence begins and ends
OPENING, OPEN_TIMEOUT_S, SETTLE_S = 32, 60.0, 10.0
GOLDEN = 0.618  # its multiples are spread evenly over a period, however many there are
SLOTS = 256  # more than the speakers can fill
TEXT = WSMsgType.TEXT

_INIT = (
    b'{"type":"session_init","client_version":"bench","platform":"web","src_lang":"en","tgt_lang":"es",'
    b'"audio_format":"pcm16","sample_rate":16000,"vad":"server","previews":true}'
)
_CREATE = b'{"type":"room_create","display_name":"Speaker","speaks":"en","hears":"en","voice":false}'
_JOIN = (
    b'{"type":"room_join","room_id":"%b","display_name":"Listener","speaks":"es","hears":"es","voice":false,'
    b'"listener":true}'
)
_CHUNK = b'{"type":"audio_chunk","session_id":"%b","seq":%d,"is_final":false,"payload":"%b"}'
_RESULT = (
    b'{"type":"job_result",' + JOB + b',"utterance_index":%d,"success":true,"text_asr":"%b","text_translated":"%b",'
    b'"tts_audio":"","tts_format":"pcm16","processing_time_ms":50.0}'
)
_PARTIAL = (
    b'{"type":"asr_partial","preview_id":"%b","node_id":"%b","session_id":"%b","utterance_index":%d,'
    b'"text":"%d words","is_final":false,"trace_id":"%b"}'
)


# -- what is spoken --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Utterance:
    """In seconds from the beginning of the stream. `found_at` and `cut_at`: the end of the chunk with which the server
    can know that it has begun or ended."""

    began_at: float
    ended_at: float
    found_at: float
    cut_at: float


def speech() -> tuple[bytes, list[tuple[int, int]]]:
    """Sentences and pauses, a whole number of chunks; the samples at which each sentence begins and ends."""
    parts, sentences, size = [numpy.zeros(0)], list[tuple[int, int]](), 0
    for recording in spoken_sample("en"):
        pcm = numpy.frombuffer(b"".join(recording.chunks()), "<i2")
        at = numpy.arange(len(pcm) * RATE // recording.sample_rate) * recording.sample_rate / RATE
        voice = numpy.interp(at, numpy.arange(len(pcm)), pcm)
        loud = numpy.flatnonzero(abs(voice) > VOICED * abs(voice).max())
        parts += [numpy.zeros(RATE * PAUSE_MS // 1000), voice[loud[0] : loud[-1] + 1]]
        begin = size + len(parts[-2])
        size = begin + len(parts[-1])
        sentences.append((begin, size))
    if not sentences:
        raise CannotRun("espeak-ng is not installed: it speaks the sentences that are streamed (apt install espeak-ng)")
    parts.append(numpy.zeros(-size % (CHUNK_BYTES // 2)))
    audio = numpy.concatenate(parts)
    return (audio + numpy.random.default_rng(0).normal(0, NOISE, len(audio))).astype("<i2").tobytes(), sentences


def utterances(audio: bytes, sentences: list[tuple[int, int]], loops: int, silence_ms: int) -> list[Utterance]:
    """As the server will find them in so many repetitions; without the last, which no silence ends."""
    detector, endpointer = VoiceDetector(RATE), Endpointer(RATE, silence_ms)
    found, cut = list[float](), list[float]()
    chunks = len(audio) // CHUNK_BYTES
    for number in range(loops * chunks):
        at = number % chunks * CHUNK_BYTES
        for frame in detector.hear(audio[at : at + CHUNK_BYTES]):
            match endpointer.frame(frame):
                case Endpoint.START:
                    found.append((number + 1) * CHUNK_S)
                case Endpoint.END:
                    endpointer.ended()
                    cut.append((number + 1) * CHUNK_S)
    if len(found) != loops * len(sentences):
        raise CannotRun(f"the voice detector finds {len(found)} utterances in {loops * len(sentences)} sentences")
    size_s = len(audio) / 2 / RATE
    spoken = [
        (loop * size_s + begin / RATE, loop * size_s + end / RATE) for loop in range(loops) for begin, end in sentences
    ]
    return [Utterance(*times) for times in zip(*zip(*spoken, strict=True), found, cut, strict=False)]


# -- speakers and listeners ------------------------------------------------------------------------


class Known(msgspec.Struct, gc=False):
    """The fields of any message to a client that this reads."""

    session_id: str = ""
    room_id: str = ""
    utterance_index: int = 0
    caption_id: str = ""
    text: str = ""
    untranslated: str = ""


_decode = msgspec.json.Decoder(Known).decode


class Client(WSListener):
    """Opens a session, then creates a room or joins one."""

    def __init__(self, all: "LiveLoad", enter: bytes) -> None:
        self._all, self._enter = all, enter
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.session = self.room = ""
        self.transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        transport.send(TEXT, _INIT)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        if payload.startswith(b'{"type":"session_init_ack"'):
            self.session = _decode(payload).session_id
            transport.send(TEXT, self._enter)
        elif payload.startswith(b'{"type":"room_joined"'):
            self.room = _decode(payload).room_id
            self.ready.set_result(None)
        elif payload.startswith((b'{"type":"error"', b'{"type":"room_error"', b'{"type":"caption_lost"')):
            self._all.fail(payload.decode(errors="replace")[:300])
        else:
            self.receive(payload)

    def receive(self, payload: bytes) -> None: ...

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._all.fail("a connection was closed")
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(self._all.failed))


class Listener(Client):
    def receive(self, payload: bytes) -> None:
        if payload.startswith(b'{"type":"caption_translation"'):
            caption = _decode(payload)
            self._all.captions.setdefault(caption.caption_id, monotonic())
            if caption.untranslated:
                self._all.fail(f"a caption is untranslated: {caption.untranslated}")


class Speaker(Client):
    started_at = 0.0

    def receive(self, payload: bytes) -> None:
        if payload.startswith(b'{"type":"asr_partial"'):
            partial = _decode(payload)
            if partial.text:
                self._all.partials.setdefault(f"{self.session}:u{partial.utterance_index}", monotonic())

    def stream(self, payloads: list[bytes], started_at: float, count: int) -> None:
        """Chunk `n` is complete, and sent, at `started_at + (n + 1) * CHUNK_S`."""
        self.started_at, self._payloads, self._count = started_at, payloads, count
        self._id = self.session.encode()
        asyncio.get_running_loop().call_later(max(started_at + CHUNK_S - monotonic(), 0), self._send, 0)

    def _send(self, number: int) -> None:
        payload = self._payloads[number % len(self._payloads)]
        self.transport.send(TEXT, _CHUNK % (self._id, number, payload))
        self._all.chunks += 1
        if number + 1 < self._count:
            due_in = self.started_at + (number + 2) * CHUNK_S - monotonic()
            asyncio.get_running_loop().call_later(max(due_in, 0), self._send, number + 1)


class LiveLoad:
    """All speakers and listeners."""

    def __init__(self) -> None:
        self.captions: dict[str, float] = {}  # when a listener had the translation, by caption id
        self.partials: dict[str, float] = {}  # when a speaker had the first words
        self.chunks = 0
        self.failed = ""
        self._speakers: list[Speaker] = []
        self._utterances: list[Utterance] = []

    def fail(self, why: str) -> None:
        self.failed = self.failed or why

    async def open(self, speakers_url: str, listeners_url: str, count: int) -> None:
        async def one(number: int) -> None:
            speaker = Speaker(self, _CREATE)
            await ws_connect(lambda: speaker, f"{speakers_url}/ws/session")
            await speaker.ready
            listener = Listener(self, _JOIN % speaker.room.encode())
            await ws_connect(lambda: listener, f"{listeners_url}/ws/session")
            await listener.ready
            self._speakers.append(speaker)

        await open_all(range(count), OPENING, OPEN_TIMEOUT_S, one)

    async def stream(self, seconds: float, spread_s: float, silence_ms: int) -> None:
        """So many seconds of audio of each speaker; they begin spread over `spread_s`, and over the time of a chunk:
        chunks that all arrive at once are cheaper, and wait for each other."""
        audio, sentences = speech()
        count = int(seconds / CHUNK_S)
        loops = count * CHUNK_BYTES // len(audio) + 1
        self._utterances = utterances(audio, sentences, loops, silence_ms)
        payloads = [pybase64.b64encode(audio[at : at + CHUNK_BYTES]) for at in range(0, len(audio), CHUNK_BYTES)]
        now = monotonic()
        for number, speaker in enumerate(self._speakers):
            phase_s = number * GOLDEN % 1 * CHUNK_S
            speaker.stream(payloads, now + spread_s * number / len(self._speakers) + phase_s, count)

    async def sent(self) -> dict[str, Any]:
        return {"chunks": self.chunks, "now": monotonic()}

    async def result(self, begin: float, end: float) -> dict[str, Any]:
        """Of the utterances that began and were cut between two moments."""
        spoken = {
            f"{speaker.session}:u{index}": (speaker.started_at, utterance)
            for speaker in self._speakers
            for index, utterance in enumerate(self._utterances)
            if begin <= speaker.started_at + utterance.began_at and speaker.started_at + utterance.cut_at <= end
        }
        if not spoken:
            raise CannotRun("no utterance was spoken in this time; measure for longer")
        await until(lambda: spoken.keys() <= self.captions.keys() or self.failed != "", SETTLE_S)
        if self.failed:
            raise CannotRun(f"a client received what it should not have: {self.failed}")
        if missing := spoken.keys() - self.captions.keys():
            raise CannotRun(f"{len(missing)} of {len(spoken)} utterances had no caption")
        finals = {
            id: (self.captions[id] - at - one.ended_at, self.captions[id] - at - one.cut_at)
            for id, (at, one) in spoken.items()
        }
        words = [
            (self.partials[id] - at - one.began_at, self.partials[id] - at - one.found_at)
            for id, (at, one) in spoken.items()
            if id in self.partials
        ]
        return {"finals": finals, "partials": words}


# -- nodes -----------------------------------------------------------------------------------------


class ToPreviewer(msgspec.Struct, gc=False):
    """The fields of preview_open and preview_audio that are answered."""

    preview_id: str
    session_id: str = ""
    utterance_index: int = 0
    trace_id: str = ""
    seq: int = 0


_decode_preview = msgspec.json.Decoder(ToPreviewer).decode


class LiveNodes:
    """All nodes of this process."""

    def __init__(self) -> None:
        self.all = NodeLoad()
        self.asr_s = self.text_s = 0.0
        self._spent: defaultdict[str, float] = defaultdict(float)  # by caption id

    async def open(self, url: str, count: int, asr_s: float, text_s: float) -> None:
        self.asr_s, self.text_s = asr_s, text_s
        await self.all.add([url], count, lambda number: LiveNode(self, number))

    def spend(self, caption: str, seconds: float) -> None:
        self._spent[caption] += seconds

    async def spent(self) -> dict[str, Any]:
        """Seconds that the nodes have worked, by caption id."""
        return self._spent


class LiveNode(SimulatedNode):
    def __init__(self, nodes: LiveNodes, number: int) -> None:
        super().__init__(
            nodes.all,
            f"live-{number}",
            Capabilities(["en"], ["es"], [], SLOTS, "bench", text_pairs=[("en", "es")], previews=SLOTS),
        )
        self._nodes = nodes
        self._previews: dict[str, ToPreviewer] = {}

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        if not payload.startswith(b'{"type":"preview_'):
            super().on_ws_frame(transport, frame)
            return
        message = _decode_preview(payload)
        if payload.startswith(b'{"type":"preview_open"'):
            self._previews[message.preview_id] = message
        elif payload.startswith(b'{"type":"preview_close"'):
            del self._previews[message.preview_id]
        else:
            opened = self._previews[message.preview_id]
            about = (opened.preview_id.encode(), self._id, opened.session_id.encode(), opened.utterance_index)
            transport.send(TEXT, _PARTIAL % (*about, message.seq + 1, opened.trace_id.encode()))

    def work(self, transport: WSTransport, message: ToNode) -> None:
        caption = message.text or f"{message.session_id}:u{message.utterance_index}"
        recognised, translated = (b"", caption.encode()) if message.text else (caption.encode(), b"")
        job = self.accept(transport, message)
        result = _RESULT % (*job, message.utterance_index, recognised, translated)
        work_s = self._nodes.text_s if message.text else self._nodes.asr_s
        asyncio.get_running_loop().call_later(work_s, self._done, transport, caption, result, monotonic())

    def _done(self, transport: WSTransport, caption: str, result: bytes, began: float) -> None:
        self._nodes.spend(caption, monotonic() - began)
        transport.send(TEXT, result)


def main() -> None:
    """One process has either nodes or clients."""
    nodes, clients = LiveNodes(), LiveLoad()
    commands: dict[str, Command] = {"open_nodes": nodes.open, "spent": nodes.spent}
    serve(commands | {"open": clients.open, "stream": clients.stream, "sent": clients.sent, "result": clients.result})


if __name__ == "__main__":
    main()
