"""Recognition by PocketSphinx: offline, English, demo quality, with partials, also while somebody speaks.

The decoder holds the interpreter's lock, so each one runs in its own process (this module) and does not delay the
node's heartbeats. There are as many processes as slots, and others for previews, so that no job waits for one; they end
when their standard input ends. If a job or a preview is cancelled, its process is killed, because it cannot be
interrupted.

    stdin    kind, u32 length, pcm16 at 16 kHz     whole utterances, or the pieces of one and its end
    stdout   {"partial": …}* {"text": …}           a line each
"""

import asyncio
import contextlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

from dragoman.engines.engine import EngineFailed, Partial, PreviewAudio, need_module
from dragoman.engines.processes import end, started
from dragoman.engines.sound import Sound

RATE = 16_000
PIECE_BYTES = RATE * 2 // 5
# A third faster than the defaults without more mistakes; measured on only nine sentences of a synthetic voice.
BOUNDS = {"maxhmmpf": 5000, "maxwpf": 10}
ONE_WORD = "one-word"
SILENCE = bytes(RATE * 2 // 4)  # the decoder needs silence before and after the speech
ADAPT_BYTES = RATE * 2 * 3 // 10  # of an open utterance: more delays the first words, without fewer mistakes
_HEAD = Struct("<cI")
WHOLE, PIECE, END = b"w", b"p", b"e"
READY = b"ready\n"
PROFANITY = ("asshole", "bitch", "bullshit", "cunt", "fuck", "motherfuck", "nigg", "pussy", "shit", "slut", "whore")


class PocketSphinx:
    name = "pocketsphinx"
    remark = "PocketSphinx recognises only English, with many mistakes"
    languages = frozenset(("en",))

    def __init__(self, slots: int = 1) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._idle: list[asyncio.subprocess.Process] = []
        self._idle_previewers: list[asyncio.subprocess.Process] = []

    async def open(self) -> None:
        need_module("pocketsphinx")
        self._idle.append(await self._start())

    async def close(self) -> None:
        for idle in (self._idle, self._idle_previewers):
            while idle:
                await end(idle.pop())

    async def recognise(self, sound: Sound, language: str | None, partial: Partial) -> str:
        pcm = (await asyncio.to_thread(sound.at, RATE)).pcm
        async with self._slots, self._decoder(self._idle) as child:
            return await _ask(child, WHOLE, SILENCE + pcm + SILENCE, partial)

    async def preview(self, stream: PreviewAudio) -> None:
        """Show what has been said so far; later words may change earlier ones."""
        shown = ""
        async with self._decoder(self._idle_previewers) as child:
            async for data in stream:
                piece = await asyncio.to_thread(Sound.of_wire, data, stream.audio_format, stream.sample_rate)
                text = await _ask(child, PIECE, (await asyncio.to_thread(piece.at, RATE)).pcm)
                if text and text != shown:
                    stream.partial(text)
                    shown = text
            await _ask(child, END)

    @contextlib.asynccontextmanager
    async def _decoder(self, idle: list[asyncio.subprocess.Process]) -> AsyncIterator[asyncio.subprocess.Process]:
        child = idle.pop() if idle else await self._start()
        try:
            yield child
        except BaseException:
            await asyncio.shield(end(child))
            raise
        idle.append(child)

    async def _start(self) -> asyncio.subprocess.Process:
        child = await started(sys.executable, "-m", "dragoman.engines.pocketsphinx")
        try:
            assert child.stdout is not None
            if await child.stdout.readline() != READY:
                raise EngineFailed("PocketSphinx could not load its model.")
        except BaseException:
            await asyncio.shield(end(child))
            raise
        return child


async def _ask(
    child: asyncio.subprocess.Process, kind: bytes, pcm: bytes = b"", partial: Partial = lambda text: None
) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(_HEAD.pack(kind, len(pcm)) + pcm)
        await child.stdin.drain()
        while line := await child.stdout.readline():
            answer = json.loads(line)
            if "text" in answer:
                return str(answer["text"])
            partial(answer["partial"])
    except (ConnectionError, RuntimeError):  # uvloop raises RuntimeError if the pipe is closed already
        pass
    raise EngineFailed("PocketSphinx ended during the recognition.")


# ---------------------------------------------------------------- the process


def main() -> None:
    # What the library prints must not get between our lines.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    sphinx: Any = importlib.import_module("pocketsphinx")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".dict") as words:
        words.writelines(_without_profanity(Path(sphinx.get_model_path("en-us/cmudict-en-us.dict"))))
        words.flush()
        decoder = sphinx.Decoder(samprate=RATE, loglevel="FATAL", dict=words.name, **BOUNDS)
    decoder.add_jsgf_string(ONE_WORD, "#JSGF V1.0; grammar g; public <g> = hello;")
    answers.write(READY)
    spoken = _Spoken(decoder)
    with contextlib.suppress(BrokenPipeError):
        while (request := _request(sys.stdin.buffer)) is not None:
            kind, pcm = request
            for answer in _recognise(decoder, pcm) if kind == WHOLE else [{"text": spoken.take(kind, pcm)}]:
                answers.write(json.dumps(answer).encode() + b"\n")


def _without_profanity(dictionary: Path) -> Iterator[str]:
    """The engine makes mistakes, and must not put profanity into a speaker's mouth."""
    with dictionary.open(encoding="utf-8") as lines:
        yield from (line for line in lines if not line.startswith(PROFANITY))


def _request(source: BinaryIO) -> tuple[bytes, bytes] | None:
    head = source.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    kind, length = _HEAD.unpack(head)
    return kind, source.read(length)


class _Spoken:
    """An utterance while it is spoken."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._waiting: bytes | None = b""  # until there is enough to adapt to; then None

    def take(self, kind: bytes, pcm: bytes) -> str:
        """The text so far."""
        if self._waiting is not None:
            self._waiting = pcm = self._waiting + pcm
            if len(pcm) < ADAPT_BYTES:
                if kind == END:
                    self._waiting = b""
                return ""
            _adapt(self._decoder, pcm)
            self._decoder.start_utt()
            self._decoder.process_raw(SILENCE, False, False)
            self._waiting = None
        if pcm:
            self._decoder.process_raw(pcm, False, False)
        if kind == END:
            self._decoder.end_utt()
            self._waiting = b""
        return _hypothesis(self._decoder)


def _recognise(decoder: Any, pcm: bytes) -> Iterator[dict[str, str]]:
    shown = ""
    _adapt(decoder, pcm)
    decoder.start_utt()
    for at in range(0, len(pcm), PIECE_BYTES):
        decoder.process_raw(pcm[at : at + PIECE_BYTES], False, False)
        if (text := _hypothesis(decoder)) and text != shown:
            shown = text
            yield {"partial": text}
    decoder.end_utt()
    yield {"text": _hypothesis(decoder)}


def _adapt(decoder: Any, pcm: bytes) -> None:
    """Adapt to the voice and the microphone by a first pass that searches for one word only.

    By default the decoder adapts while it works, and so to the previous speaker. With this pass 19 of the 53 words of
    those nine sentences were wrong instead of 27.
    """
    real = decoder.current_search()
    decoder.activate_search(ONE_WORD)
    decoder.start_utt()
    decoder.process_raw(pcm, False, True)
    decoder.end_utt()
    mean = decoder.get_cmn(True)
    decoder.activate_search(real)
    decoder.set_cmn(mean)


def _hypothesis(decoder: Any) -> str:
    best = decoder.hyp()
    return best.hypstr if best is not None else ""


if __name__ == "__main__":
    main()
