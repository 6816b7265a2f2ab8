"""The clients of `dragoman bench rooms`: readers, and in another process the writer and the text nodes.

    Dragoman     speaker ─▶ instance ─▶ recogniser, which waits ASR_S ─▶ instance ─┐
                 writer ─▶ instance ─────────────────▶ text node, which waits WORK_S ─▶ instance ─▶ readers
    socket.io    publisher ─▶ server: the original, and WORK_S later every translation ─▶ readers
    NATS         the same

A speaker says a caption in one chunk, which its client cuts; the recogniser answers with the sentence of its number.
The publisher sends the messages that Dragoman sends to its members, made by the same codec. A caption is found in a
message by its number; readers note when the first and the last of them got it. Clocks are those of one machine.
"""

import asyncio
from array import array
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec
import pybase64
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from dragoman.node import Capabilities
from dragoman.protocol.codec import encode
from dragoman.protocol.rooms import Caption, CaptionTranslation, Speaker
from dragoman.tools.bench.speech_load import JOB, NodeLoad, SimulatedNode, ToNode
from dragoman.tools.processes import Command, open_all, serve, until

LANGUAGES = ("es", "de", "fr", "it", "pt", "nl", "pl", "sv")
KINDS = 1 + len(LANGUAGES)  # of an arrival: the original, and a translation into each language
ASR_S = 0.1  # of the recogniser
SPOKEN_MS, RATE = 600, 16_000
WORK_S = 0.05  # of a text node, and between the original and its translations at the peers
NODES, RECOGNISERS, SLOTS = 4, 2, 256
OPENING = 32
OPEN_TIMEOUT_S = 60.0
READ_BUFFER_BYTES = 4096
SETTLE_S = 10.0
NEVER = 0.0
SENTENCE = "%d. Shall we meet at the station at seven? The train leaves at ten past."
SESSION, ROOM = f"s-{'0' * 22}", "0" * 32  # as long as the real ones
ORIGINALS = "originals"

_TEXT, _BINARY = WSMsgType.TEXT, WSMsgType.BINARY
_WRITTEN, _SPOKEN = b":tm", b":u"  # before the number, in the id of a caption
_TRANSLATION = b'"caption_translation"'
_INIT = (
    b'{"type":"session_init","client_version":"bench","platform":"web","src_lang":"en","tgt_lang":"es",'
    b'"audio_format":"pcm16","sample_rate":16000}'
)
_CREATE = b'{"type":"room_create","display_name":"Writer","speaks":"en","hears":"en","voice":false}'
_JOIN = b'{"type":"room_join","room_id":"%b","display_name":"Reader","speaks":"%b","hears":"%b","voice":false}'
_WRITE = b'{"type":"room_text","text":"%b","client_msg_id":"m%d"}'
_SAY = (
    b'{"type":"audio_chunk","session_id":"%b","seq":%d,"is_final":true,"payload":"'
    + pybase64.b64encode(bytes((0, 16, 0, 240)) * (SPOKEN_MS * RATE // 2000))  # a tone, louder than silence
    + b'"}'
)
_RESULT = (
    b'{"type":"job_result",' + JOB + b',"utterance_index":%d,"success":true,"text_asr":"%b","text_translated":"%b",'
    b'"tts_audio":"","tts_format":"pcm16","processing_time_ms":50.0}'
)
_NATS_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"echo":false,"lang":"bench","version":"1"}\r\n'


# -- the connection to each system -----------------------------------------------------------------


class Client(WSListener):
    """One connection. `opened` when the server has accepted it, `joined` when it receives its captions."""

    path = "/ws/session"
    mark = _WRITTEN

    def __init__(self, lang: str, on_caption: Callable[[int, int], None] = lambda kind, number: None) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.joined: asyncio.Future[None] = loop.create_future()
        self.session = self.room = ""
        self.lang, self._kind, self._on_caption = lang.encode(), 1 + LANGUAGES.index(lang), on_caption
        self.transport: WSTransport
        self.failed = ""

    async def connect(self, url: str) -> None:
        await ws_connect(lambda: self, f"{url}{self.path}", read_buffer_init_size=READ_BUFFER_BYTES)
        await self.opened

    def join(self, room: str) -> None:
        self.transport.send(_TEXT, _JOIN % (room.encode(), self.lang, self.lang))

    def create(self) -> None:
        self.transport.send(_TEXT, _CREATE)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        transport.send(_TEXT, _INIT)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        at, begin = payload.find(self.mark), 0
        while at >= 0:  # NATS may send several messages in one frame
            end = payload.find(b'"', at)
            kind = self._kind if payload.find(_TRANSLATION, begin, at) >= 0 else 0
            self._on_caption(kind, int(payload[at + len(self.mark) : end]))
            begin, at = end, payload.find(self.mark, end)
        if not begin and frame.msg_type is not WSMsgType.CLOSE:
            self.receive(payload)

    def receive(self, payload: bytes) -> None:
        if payload.startswith(b'{"type":"session_init_ack"'):
            self.session = msgspec.json.decode(payload)["session_id"]
            self.opened.set_result(None)
        elif payload.startswith(b'{"type":"room_joined"'):
            self.room = msgspec.json.decode(payload)["room_id"]
            self.joined.set_result(None)
        elif payload.startswith((b'{"type":"error"', b'{"type":"room_error"', b'{"type":"caption_lost"')):
            self.fail(payload.decode(errors="replace")[:300])

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.fail("a connection was closed")

    def fail(self, why: str) -> None:
        self.failed = self.failed or why
        for waiting in (self.opened, self.joined):
            if not waiting.done():
                waiting.set_exception(ConnectionError(why))

    def publish(self, channel: str, message: bytes) -> None:
        raise NotImplementedError


class SpokenClient(Client):
    mark = _SPOKEN


class SocketIoClient(Client):
    """The packets of Engine.IO 4 and Socket.IO 5: 0 open, 2 ping, 3 pong, 4x message of kind x."""

    path = "/socket.io/?EIO=4&transport=websocket"

    def join(self, room: str) -> None:
        self.transport.send(_TEXT, b'421["join",["%b","%b"]]' % (ORIGINALS.encode(), self.lang))

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def receive(self, payload: bytes) -> None:
        if payload == b"2":
            self.transport.send(_TEXT, b"3")
        elif payload.startswith(b"0"):
            self.transport.send(_TEXT, b"40")
        elif payload.startswith(b"40"):
            self.opened.set_result(None)
        elif payload.startswith(b"431"):
            self.joined.set_result(None)
        else:
            self.fail(payload.decode(errors="replace")[:300])

    def publish(self, channel: str, message: bytes) -> None:
        self.transport.send(_TEXT, b'42["publish","%b",%b]' % (channel.encode(), message))


class NatsClient(Client):
    path = "/"

    def join(self, room: str) -> None:
        self.transport.send(_BINARY, b"SUB %b 1\r\nSUB %b 2\r\nPING\r\n" % (ORIGINALS.encode(), self.lang))

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def receive(self, payload: bytes) -> None:
        if payload.startswith(b"INFO"):
            if not self.opened.done():
                self.transport.send(_BINARY, _NATS_CONNECT)
                self.opened.set_result(None)
        elif payload.startswith(b"PING"):
            self.transport.send(_BINARY, b"PONG\r\n")
        elif payload.startswith(b"PONG"):
            self.joined.set_result(None)
        else:
            self.fail(payload.decode(errors="replace")[:300])

    def publish(self, channel: str, message: bytes) -> None:
        self.transport.send(_BINARY, b"PUB %b %d\r\n%b\r\n" % (channel.encode(), len(message), message))


SPOKEN, WRITTEN = "dragoman", "written"  # what Dragoman measures: captions that are spoken, or written
CLIENTS: dict[str, type[Client]] = {
    SPOKEN: SpokenClient,
    WRITTEN: Client,
    "socketio": SocketIoClient,
    "nats": NatsClient,
}


# -- readers ---------------------------------------------------------------------------------------


class Readers:
    """All readers of this process."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self._reset(0, 0)

    def _reset(self, first: int, captions: int) -> None:
        self.first_number, self.received = first, 0
        self.count = array("l", bytes(8 * KINDS * captions))
        self.first, self.last = (array("d", bytes(8 * KINDS * captions)) for _ in range(2))

    def on_caption(self, kind: int, number: int) -> None:
        now, at = monotonic(), (number - self.first_number) * KINDS + kind
        if self.count[at] == 0:
            self.first[at] = now
        self.count[at] += 1
        self.last[at] = now
        self.received += 1

    async def open(self, system: str, urls: list[str], first: int, count: int) -> None:
        """Reader `n` is at `urls[n]`, and each language is read at every one of them."""

        async def one(number: int) -> None:
            client = CLIENTS[system](LANGUAGES[number // len(urls) % len(LANGUAGES)], self.on_caption)
            await client.connect(urls[number % len(urls)])
            self.clients.append(client)

        await open_all(range(first, first + count), OPENING, OPEN_TIMEOUT_S, one)

    async def join(self, room: str) -> None:
        async def one(number: int) -> None:
            self.clients[number].join(room)
            await self.clients[number].joined

        await open_all(range(len(self.clients)), OPENING, OPEN_TIMEOUT_S, one)

    async def expect(self, first: int, captions: int) -> None:
        """From now on, those of these numbers."""
        self._reset(first, captions)

    async def result(self, captions: int) -> dict[str, Any]:
        """Wait until every reader has every original and every translation into its language."""
        expected = 2 * captions * len(self.clients)
        complete = await until(lambda: self.received >= expected or self._failure() != "", SETTLE_S)
        counts = {"received": self.received, "missing": 0 if complete else expected - self.received}
        times = {"first": list(self.first), "last": list(self.last)}
        return counts | times | {"doubled": max(self.received - expected, 0), "failed": self._failure()}

    def _failure(self) -> str:
        return next((client.failed for client in self.clients if client.failed), "")


# -- the writer ------------------------------------------------------------------------------------


class Writer:
    """Writes captions: in a room, whose text nodes are here too, or as the publisher of a peer."""

    def __init__(self) -> None:
        self.nodes = NodeLoad()
        self._client: Client
        self._system = ""
        self._reset(0, 0)

    def _reset(self, first: int, captions: int) -> None:
        self.first_number = first
        self.recognise_jobs = 0
        # The cut, the job at the recogniser, its result. A written caption is recognised when it is written.
        self.written, self.heard, self.recognised = (array("d", bytes(8 * captions)) for _ in range(3))
        self.assigned, self.sent = (array("d", bytes(8 * KINDS * captions)) for _ in range(2))

    async def open(self, system: str, urls: list[str]) -> dict[str, Any]:
        """Returns the room. The nodes are spread over `urls`; the writer is at the first."""
        self._system, self._client = system, CLIENTS[system](LANGUAGES[0])
        await self._client.connect(urls[0])
        if system in (SPOKEN, WRITTEN):
            await self.nodes.add(urls, NODES, lambda number: TextNode(self, number))
            self._client.create()
            await self._client.joined
        if system == SPOKEN:
            await self.nodes.add(urls, RECOGNISERS, lambda number: Recogniser(self, number))
        return {"room": self._client.room}

    async def write(self, first: int, captions: int, rate: float) -> dict[str, Any]:
        """Caption `n` is due at `start + n / rate`. Returns when every translation was sent, or does not come."""
        self._reset(first, captions)
        start = monotonic()
        for at in range(captions):
            await asyncio.sleep(max(start + at / rate - monotonic(), 0))
            self.written[at], number = monotonic(), first + at
            if self._system == SPOKEN:
                self._client.transport.send(_TEXT, _SAY % (self._client.session.encode(), number))
                continue
            self.heard[at] = self.recognised[at] = self.written[at]
            if self._system == WRITTEN:
                self._client.transport.send(_TEXT, _WRITE % ((SENTENCE % number).encode(), number))
            else:
                self._publish(number)
        complete = await until(lambda: self.sent.count(NEVER) <= captions, SETTLE_S)
        columns = ("written", "heard", "recognised", "assigned", "sent")
        times = {name: list(getattr(self, name)) for name in columns}
        ended = {"complete": complete, "took_s": monotonic() - start, "failed": self._client.failed}
        return times | ended | {"recognise_jobs": self.recognise_jobs}

    def index(self, number: int, kind: int) -> int:
        return (number - self.first_number) * KINDS + kind

    def _publish(self, number: int) -> None:
        self._client.publish(ORIGINALS, original(number))
        asyncio.get_running_loop().call_later(WORK_S, self._publish_translations, number)

    def _publish_translations(self, number: int) -> None:
        for kind, lang in enumerate(LANGUAGES, 1):
            self.sent[self.index(number, kind)] = monotonic()
            self._client.publish(lang, translation(number, lang))


class TextNode(SimulatedNode):
    """Translates from English into all languages; WORK_S for each sentence."""

    def __init__(self, all: Writer, number: int) -> None:
        pairs = [("en", lang) for lang in LANGUAGES]
        super().__init__(all.nodes, f"text-{number}", Capabilities(slots=SLOTS, version="bench", text_pairs=pairs))
        self._writer = all

    def work(self, transport: WSTransport, message: ToNode) -> None:
        at = self._writer.index(int(message.text.partition(".")[0]), 1 + LANGUAGES.index(message.tgt_lang))
        self._writer.assigned[at] = monotonic()
        job = self.accept(transport, message)
        text = translated(message.text, message.tgt_lang).encode()
        asyncio.get_running_loop().call_later(WORK_S, self._translated, transport, at, _RESULT % (*job, 0, b"", text))

    def _translated(self, transport: WSTransport, at: int, result: bytes) -> None:
        self._writer.sent[at] = monotonic()
        transport.send(_TEXT, result)


class Recogniser(SimulatedNode):
    """Hears the sentence of the utterance's number; ASR_S for each."""

    def __init__(self, all: Writer, number: int) -> None:
        super().__init__(all.nodes, f"asr-{number}", Capabilities(["en"], ["en", "es"], [], SLOTS, "bench"))
        self._writer = all

    def work(self, transport: WSTransport, message: ToNode) -> None:
        index, at = message.utterance_index, message.utterance_index - self._writer.first_number
        self._writer.recognise_jobs += 1
        self._writer.heard[at] = monotonic()
        result = _RESULT % (*self.accept(transport, message), index, (SENTENCE % index).encode(), b"")
        asyncio.get_running_loop().call_later(ASR_S, self._recognised, transport, at, result)

    def _recognised(self, transport: WSTransport, at: int, result: bytes) -> None:
        self._writer.recognised[at] = monotonic()
        transport.send(_TEXT, result)


def translated(text: str, lang: str) -> str:
    return f"{text} ({lang})"


def original(number: int) -> bytes:
    """As Dragoman sends it to members."""
    speaker, caption = Speaker(SESSION, "Writer"), f"{SESSION}:tm{number}"
    return encode(
        Caption(
            room_id=ROOM,
            room_seq=number * KINDS + 1,
            caption_id=caption,
            speaker=speaker,
            lang="en",
            text=SENTENCE % number,
            source="text",
            started_at_ms=1_700_000_000_000,
        )
    )


def translation(number: int, lang: str) -> bytes:
    text = translated(SENTENCE % number, lang)
    return encode(CaptionTranslation(ROOM, number * KINDS + 2, f"{SESSION}:tm{number}", lang, text, None))


def main() -> None:
    """One process has either readers or the writer."""
    readers, writer = Readers(), Writer()
    commands: dict[str, Command] = {
        "open": readers.open,
        "join": readers.join,
        "expect": readers.expect,
        "result": readers.result,
    }
    serve(commands | {"open_writer": writer.open, "write": writer.write})


if __name__ == "__main__":
    main()
