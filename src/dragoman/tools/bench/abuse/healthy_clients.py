"""Who must not notice anything: a session with its node, two chat users, and two members of a room, at a steady pace,
each thing timed.

The session is at the first instance and the node at the last, one user and one member at each: everything crosses.
Utterance, message and sentence `n` are due at `start + n / rate`, and are timed from then to the result, to the
receiver, or to the translation at the other member, also when they go later because too much is still unanswered, as
honest clients do it. Whatever they hear beside that, a close, an error, the same again or out of order, is a failure;
that they are asked to slow down is counted.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from array import array
from time import monotonic
from typing import Any

import jwt
import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from dragoman.node import Capabilities
from dragoman.protocol.codec import encode
from dragoman.protocol.node import ResourceUsage
from dragoman.tools.bench.abuse.attack import NODE
from dragoman.tools.bench.measure import percentile
from dragoman.tools.bench.speech_load import AUDIO
from dragoman.tools.processes import serve

_IDLE = ResourceUsage(0.0, 0.0, 0)
FIRST_UID = 1_000_001
TOKEN_S = 86_400
OPEN_TIMEOUT_S = 30.0
SETTLE_S = 20.0
LOOK_S = 0.02
HEARTBEAT_S = 10.0
MOST = 1_000_000
SENTENCE_EVERY = 2  # a sentence is more work than an utterance, see limits.utterances_per_s
IN_FLIGHT = 50  # on a machine that stands still for seconds more of them would only fill the node
NEVER = 0.0
_TEXT = WSMsgType.TEXT
_LANGUAGES = ("en", "es")

_ABOUT = b'"job_id":"%b","attempt_id":%d,"node_id":"%b","session_id":"%b","trace_id":"%b"'
_RESULT = (
    b'{"type":"job_result",' + _ABOUT + b',"utterance_index":%d,"success":true,"text_asr":"a","text_translated":"b"}'
)
_UTTERANCE = (
    b'{"type":"utterance","session_id":"%b","utterance_index":%d,"manual_cut":true,"src_lang":"en","tgt_lang":"es",'
    b'"audio":"' + AUDIO + b'","audio_format":"opus","sample_rate":16000}'
)
_SAY = b'{"type":"SINGLE_CHAT","clientMsgId":"b-%d","to":"%d","body":"Shall we meet at the station at seven?"}'
_WRITE = b'{"type":"room_text","client_msg_id":"c-%d","text":"Shall we meet at the station at seven?"}'
_DELIVERED = b'{"type":"ACK","ackType":"delivered","serverMsgId":"%b","to":"%b"}'


class ServerMessage(msgspec.Struct, gc=False, rename={"from_": "from"}):
    """The fields of any message from the server that are needed here."""

    type: str
    job_id: str = ""
    attempt_id: int = 1
    session_id: str = ""
    utterance_index: int = 0
    trace_id: str = ""
    ackType: str = ""
    clientMsgId: str = ""
    serverMsgId: str = ""
    from_: str = ""
    room_id: str = ""
    caption_id: str = ""
    untranslated: str | None = None


_decode = msgspec.json.Decoder(ServerMessage).decode


class Timeline:
    """One thing done again and again: when each was due, and when it had come to its end."""

    def __init__(self, name: str, failures: list[str]) -> None:
        self.name = name
        self.count = self.ended = 0
        self.last = -1
        self._failures = failures
        self._due, self._done = array("d"), array("d")

    def begin(self, due: float) -> int:
        self._due.append(due)
        self._done.append(NEVER)
        self.count += 1
        return self.count - 1

    def done(self, number: int, now: float) -> None:
        if not 0 <= number < self.count:
            self._failures.append(f"{self.name} {number} was never begun")
        elif self._done[number] != NEVER:
            self._failures.append(f"{self.name} {number} came twice")
        else:
            self._done[number] = now
            self.ended += 1

    def missing(self, first: int = 0, last: int | None = None) -> int:
        return sum(1 for done in self._done[first:last] if done == NEVER)

    def times(self, first: int, last: int) -> dict[str, float]:
        """In milliseconds; one that has not come counts as long as it is late."""
        now = monotonic()
        taken = sorted(
            ((done if done != NEVER else now) - due) * 1e3
            for due, done in zip(self._due[first:last], self._done[first:last], strict=True)
        )
        return {"count": len(taken), "p50_ms": percentile(taken, 0.5), "p99_ms": percentile(taken, 0.99)}


class HealthyClients:
    def __init__(self) -> None:
        self.failures: list[str] = []
        self.speech, self.chat = Timeline("utterance", self.failures), Timeline("message", self.failures)
        self.room = Timeline("sentence", self.failures)
        self.saved = self.slowed = 0
        self._marks = (0, 0, 0)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, urls: list[str], secret: str, issuer: str, chat_issuer: str) -> None:
        def token(typ: str, sub: str) -> str:
            payload = {"iss": issuer, "exp": int(time.time()) + TOKEN_S, "typ": typ, "sub": sub}
            return jwt.encode(payload, secret, algorithm="HS256")

        def user(uid: int) -> bytes:
            payload = {"iss": chat_issuer, "exp": int(time.time()) + TOKEN_S, "typ": "access", "uid": uid, "sv": 0}
            return b'{"type":"AUTH","token":"%b"}' % jwt.encode(payload, secret, algorithm="HS256").encode()

        self.node = Node(self, token("node", NODE))
        self.speaker = Speaker(self, token("client", "honest"))
        self.sender, self.receiver = User(self, user(FIRST_UID)), User(self, user(FIRST_UID + 1))
        self.writer = Member(self, token("client", "writer"), "en")
        self.reader = Member(self, token("client", "reader"), "es")
        places = ((self.node, urls[-1], "/ws/node"), (self.speaker, urls[0], "/ws/session"))
        users = ((self.sender, urls[0], "/ws"), (self.receiver, urls[-1], "/ws"))
        members = ((self.writer, urls[0], "/ws/session"), (self.reader, urls[-1], "/ws/session"))
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            for who, url, path in (*places, *users, *members):
                self.reader.room_id = self.writer.room_id
                await ws_connect(lambda: who, f"{url}{path}")  # noqa: B023
                await who.opened

    async def begin(self, per_s: float) -> None:
        self._tasks = [asyncio.create_task(self._pace(per_s)), asyncio.create_task(self._beat())]

    async def mark(self) -> None:
        """What is due from now on is of the next look."""
        self._marks = (self.speech.count, self.chat.count, self.room.count)

    async def look(self) -> dict[str, Any]:
        """Of what was due since the mark, once all of it has come or patience is over."""
        kinds = {"speech": self.speech, "chat": self.chat, "room": self.room}
        spans = list(zip(kinds.values(), self._marks, [kind.count for kind in kinds.values()], strict=True))
        for _ in range(int(SETTLE_S / LOOK_S)):
            if self.failures or not any(kind.missing(first, last) for kind, first, last in spans):
                break
            await asyncio.sleep(LOOK_S)
        times = {name: kind.times(first, last) for name, (kind, first, last) in zip(kinds, spans, strict=True)}
        return {**times, "failures": self.failures[:5]}

    async def rest(self) -> dict[str, Any]:
        """Say nothing more; what was said must have come, and every message must have been saved."""
        for task in self._tasks:
            task.cancel()
        for _ in range(int(SETTLE_S / LOOK_S)):
            if not self._missing():
                break
            await asyncio.sleep(LOOK_S)
        said = {"utterances": self.speech.count, "messages": self.chat.count, "sentences": self.room.count}
        said |= {"slowed": self.slowed}
        return {**said, "lost": self._missing(), "failures": self.failures[:5]}

    def _missing(self) -> int:
        unsaved = self.chat.count - self.saved
        return self.speech.missing() + self.chat.missing() + self.room.missing() + unsaved

    async def _pace(self, per_s: float) -> None:
        """Who is due is due, however late we wake."""
        start = monotonic()
        for number in range(MOST):
            due = start + number / per_s
            await asyncio.sleep(max(due - monotonic(), 0))
            while max(one.count - one.ended for one in (self.speech, self.chat, self.room)) >= IN_FLIGHT:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            self.speaker.send(self.speech.begin(due))
            self.sender.send(self.chat.begin(due), FIRST_UID + 1)
            if number % SENTENCE_EVERY == 0:
                self.writer.send(self.room.begin(due))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.node.heartbeat()


class _HealthyClient(WSListener, ABC):
    def __init__(self, all: HealthyClients) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._all = all
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self.greet()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is _TEXT:
            payload = frame.get_payload_as_bytes()
            if not self.receive(_decode(payload), monotonic()):
                self._all.failures.append(f"{type(self).__name__} received {payload[:200].decode(errors='replace')}")
        elif frame.msg_type is WSMsgType.CLOSE:
            payload = frame.get_payload_as_bytes()
            self._all.failures.append(f"{type(self).__name__} was closed: {int.from_bytes(payload[:2], 'big')}")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._all.failures.append(f"{type(self).__name__} lost its connection")
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(f"{type(self).__name__} was not accepted"))

    @abstractmethod
    def greet(self) -> None:
        """Send the first message."""

    @abstractmethod
    def receive(self, message: ServerMessage, now: float) -> bool:
        """Whether that was to be expected."""


class Node(_HealthyClient):
    def __init__(self, all: HealthyClients, token: str) -> None:
        super().__init__(all)
        self._token = token
        self._capabilities = Capabilities(
            _LANGUAGES, _LANGUAGES, _LANGUAGES, 256, "bench", text_pairs=(("en", "es"),), previews=0
        )

    def greet(self) -> None:
        self._transport.send(_TEXT, encode(self._capabilities.register(NODE, self._token, draining=False)))

    def heartbeat(self) -> None:
        self._transport.send(_TEXT, encode(self._capabilities.heartbeat(NODE, _IDLE, draining=False)))

    def receive(self, message: ServerMessage, now: float) -> bool:
        if message.type == "node_register_ack":
            self.heartbeat()
            self.opened.set_result(None)
        elif message.type == "job_assign":
            job = (
                message.job_id.encode(),
                message.attempt_id,
                NODE.encode(),
                message.session_id.encode(),
                message.trace_id.encode(),
            )
            self._transport.send(_TEXT, b'{"type":"job_ack",' + _ABOUT % job + b"}")
            self._transport.send(_TEXT, b'{"type":"job_started",' + _ABOUT % job + b"}")
            self._transport.send(_TEXT, _RESULT % (*job, message.utterance_index))
        return message.type in ("node_register_ack", "job_assign")


class Speaker(_HealthyClient):
    def __init__(self, all: HealthyClients, token: str) -> None:
        super().__init__(all)
        self._token = token
        self._session = b""

    def greet(self) -> None:
        init = {"type": "session_init", "client_version": "1", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
        self._transport.send(_TEXT, msgspec.json.encode(init | {"token": self._token}))

    def send(self, number: int) -> None:
        self._transport.send(_TEXT, _UTTERANCE % (self._session, number))

    def receive(self, message: ServerMessage, now: float) -> bool:
        if message.type == "session_init_ack":
            self._session = message.session_id.encode()
            self.opened.set_result(None)
        elif message.type == "translation_result":
            self._all.speech.done(message.utterance_index, now)
        elif message.type == "backpressure":
            self._all.slowed += 1
        return message.type in ("session_init_ack", "translation_result", "ui_event", "backpressure")


class Member(_HealthyClient):
    """The writer opens the room; the reader waits for the Spanish of every sentence."""

    def __init__(self, all: HealthyClients, token: str, lang: str) -> None:
        super().__init__(all)
        self._token, self._lang = token, lang
        self.room_id = ""

    def greet(self) -> None:
        languages = {"src_lang": self._lang, "tgt_lang": "en" if self._lang == "es" else "es"}
        init = {"type": "session_init", "client_version": "1", "platform": "web", **languages}
        self._transport.send(_TEXT, msgspec.json.encode(init | {"token": self._token}))
        about = {"room_id": self.room_id, "originals": False} if self.room_id else {}
        room = {"type": "room_join" if self.room_id else "room_create", "display_name": "Honest", **about}
        self._transport.send(_TEXT, msgspec.json.encode(room | {"speaks": self._lang, "hears": self._lang}))

    def send(self, number: int) -> None:
        self._transport.send(_TEXT, _WRITE % number)

    def receive(self, message: ServerMessage, now: float) -> bool:
        if message.type == "room_joined":
            self.room_id = message.room_id
            self.opened.set_result(None)
        elif message.type == "caption_translation":
            self._all.room.done(int(message.caption_id.rpartition("-")[2]), now)
            return message.untranslated is None
        return message.type in ("session_init_ack", "room_create_ack", "room_joined", "room_members", "caption")


class User(_HealthyClient):
    def __init__(self, all: HealthyClients, auth: bytes) -> None:
        super().__init__(all)
        self._auth = auth

    def greet(self) -> None:
        self._transport.send(_TEXT, self._auth)

    def send(self, number: int, to: int) -> None:
        self._transport.send(_TEXT, _SAY % (number, to))

    def receive(self, message: ServerMessage, now: float) -> bool:
        if message.type == "AUTH_OK":
            self.opened.set_result(None)
        elif message.type == "ACK":
            self._all.saved += message.ackType == "saved"
        elif message.type == "SINGLE_CHAT":
            self._transport.send(_TEXT, _DELIVERED % (message.serverMsgId.encode(), message.from_.encode()))
            return self._arrived(int(message.clientMsgId.partition("-")[2]), now)
        return message.type in ("AUTH_OK", "ACK", "PING")

    def _arrived(self, number: int, now: float) -> bool:
        chat = self._all.chat
        chat.done(number, now)
        in_order, chat.last = number == chat.last + 1, number
        return in_order


def main() -> None:
    all = HealthyClients()
    serve({"open": all.open, "begin": all.begin, "mark": all.mark, "look": all.look, "rest": all.rest})


if __name__ == "__main__":
    main()
