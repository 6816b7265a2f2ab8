"""Clients by the thousand, in one process: each opens a session and says one `utterance` after the other.

    loop   the next when the result of the one before has come: as fast as the instance is
    pace   so many a second over all sessions in turn, whether they were answered or not

Counted is what a client sees: `translation_result`, each index once. Frames are told apart by how they begin. What else
is said ends a bench; one that asks for more than there is counts it instead (`tolerate`): who was told to hold on,
which utterances failed, by their codes.
The trace id of an utterance is the moment it was said, which the node that gets the job can read.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from time import monotonic, monotonic_ns
from typing import Any

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from dragoman.tools.bench.load_process import Act, play
from dragoman.tools.bench.speech_audio import AUDIO

OPENING = 64  # connections being made at a time
OPEN_PATIENCE_S = 30.0
READ_BUFFER_BYTES = 4096  # there may be ten thousand of them
REST_PATIENCE_S = 10.0
_TEXT = WSMsgType.TEXT
_INIT = b'{"type":"session_init","client_version":"bench","platform":"web","src_lang":"en","tgt_lang":"%b"}'
_UTTERANCE = (
    b'{"type":"utterance","session_id":"%b","utterance_index":%d,"manual_cut":true,"src_lang":"en","tgt_lang":"%b",'
    b'"audio":"' + AUDIO + b'","audio_format":"opus","sample_rate":16000,"trace_id":"%d"}'
)
_PRESSED, _ERROR, _INDEX = b'{"type":"backpressure"', b'{"type":"error"', b'"utterance_index":'
_OPENED, _RESULT, _EVENT = b'{"type":"session_init_ack"', b'{"type":"translation_result"', b'{"type":"ui_event"'


class Told(msgspec.Struct, gc=False):
    """Of what is said instead of a result."""

    action: str = ""
    code: str = ""


_told = msgspec.json.Decoder(Told).decode


class Speakers:
    """All sessions of this process."""

    def __init__(self) -> None:
        self.said = 0
        self.results = 0
        self.doubled = 0
        self.pressed: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.failures: list[str] = []
        self.looping = self.tolerant = False
        self.sessions: list[Speaker] = []
        self._pacing: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    async def open(self, urls: list[str], count: int, languages: list[str]) -> None:
        """`count` more sessions, dealt out to `urls`, and at each of them to the languages."""
        gate = asyncio.Semaphore(OPENING)

        async def one(number: int) -> None:
            speaker = Speaker(self, languages[number // len(urls) % len(languages)].encode())
            async with gate, asyncio.timeout(OPEN_PATIENCE_S):
                url = f"{urls[number % len(urls)]}/ws/session"
                await ws_connect(lambda: speaker, url, read_buffer_init_size=READ_BUFFER_BYTES)
                await speaker.opened
            self.sessions.append(speaker)

        async with asyncio.TaskGroup() as group:
            for number in range(len(self.sessions), len(self.sessions) + count):
                group.create_task(one(number))

    async def loop(self) -> None:
        self.looping = True
        for speaker in self.sessions:
            speaker.say()

    async def tolerate(self) -> None:
        self.tolerant = True

    async def pace(self, per_s: float) -> None:
        if self._pacing is not None:
            self._pacing.cancel()
        self._pacing = asyncio.create_task(self._pace(per_s))

    async def _pace(self, per_s: float) -> None:
        """Who is due is due, however late we wake."""
        started, at = monotonic(), 0
        while True:
            due = int((monotonic() - started) * per_s)
            while at < due:
                self.sessions[at % len(self.sessions)].say()
                at += 1
            await asyncio.sleep(max(started + (at + 1) / per_s - monotonic(), 0))

    async def count(self) -> dict[str, Any]:
        told = {"said": self.said, "results": self.results, "doubled": self.doubled, "failures": self.failures[:3]}
        return told | {"pressed": dict(self.pressed), "errors": dict(self.errors), "failed": len(self.failures)}

    async def rest(self, wait_s: float = REST_PATIENCE_S) -> dict[str, Any]:
        """Say nothing more, and wait for what was said to be answered."""
        self.looping = False
        if self._pacing is not None:
            self._pacing.cancel()
        self._settled.clear()
        self._look()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._settled.wait()
        return await self.count()

    def answered(self, speaker: "Speaker") -> None:
        self.results += 1
        if self.looping:
            speaker.say()
        else:
            self._look()

    def failed(self, why: str) -> None:
        self.failures.append(why)
        self._look()

    def told(self, payload: bytes) -> None:
        """No result: somebody is to hold on, or an utterance failed."""
        if not self.tolerant:
            self.failures.append(payload.decode(errors="replace")[:300])
        told = _told(payload)
        if told.action:
            self.pressed[told.action] += 1
        else:
            self.errors[told.code] += 1
        self._look()

    def _look(self) -> None:
        if self.results + self.errors.total() >= self.said or self.failures:
            self._settled.set()


class Speaker(WSListener):
    def __init__(self, all: Speakers, tgt: bytes) -> None:
        self._all, self._tgt = all, tgt
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session = b""
        self._index = 0
        self._open: set[int] = set()  # indexes that are not answered
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.send(_TEXT, _INIT % self._tgt)

    def say(self) -> None:
        self._transport.send(_TEXT, _UTTERANCE % (self._session, self._index, self._tgt, monotonic_ns()))
        self._open.add(self._index)
        self._index += 1
        self._all.said += 1

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is not _TEXT:
            return
        payload = frame.get_payload_as_bytes()
        if payload.startswith(_EVENT):
            return
        if payload.startswith(_RESULT):
            self._answered(payload)
        elif payload.startswith(_OPENED):
            self._session = msgspec.json.decode(payload)["session_id"].encode()
            self.opened.set_result(None)
        elif payload.startswith((_PRESSED, _ERROR)):
            self._all.told(payload)
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
            self.opened.set_exception(ConnectionError("a session was not let in"))


def main() -> None:
    all = Speakers()
    acts: dict[str, Act] = {"open": all.open, "loop": all.loop, "pace": all.pace, "tolerate": all.tolerate}
    play(acts | {"count": all.count, "rest": all.rest})


if __name__ == "__main__":
    main()
