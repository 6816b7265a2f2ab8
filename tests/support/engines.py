"""Engines for tests: marks for those of the system, which not every machine has, and a model server over HTTP.

The model server speaks the APIs of OpenAI and LibreTranslate. It answers `faults` before anything else, in order: a
status, a status with headers, or a pause in seconds.
"""

import asyncio
import importlib.util
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import pi, sin
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from dragoman.domain.sample_sentences import SENTENCES, WORDS_A_MINUTE
from dragoman.engines import Sound
from dragoman.engines.espeak import Espeak

SENTENCE = "We need a doctor."


def _needs(what: str, there: bool, remedy: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there, reason=f"needs {what}: {remedy}")


needs_espeak = _needs("espeak-ng", shutil.which("espeak-ng") is not None, "apt-get install espeak-ng")
needs_apertium = _needs("Apertium", shutil.which("apertium") is not None, "apt-get install apertium-eng-spa")
needs_wheels = _needs(
    "PyAV and PocketSphinx",
    all(importlib.util.find_spec(name) for name in ("av", "pocketsphinx")),
    "pip install 'dragoman[local]'",
)


needs_real_engines = _needs(
    "the libraries of real engines",
    all(map(importlib.util.find_spec, ("ctranslate2", "faster_whisper", "kokoro_onnx", "piper", "sentencepiece"))),
    "make install",
)


def needs_local(test: object) -> object:
    return needs_espeak(needs_apertium(needs_wheels(test)))


def words(text: str) -> list[str]:
    """Without punctuation and capitals, which a recogniser does not give."""
    return "".join(letter for letter in text.lower() if letter.isalpha() or letter == " ").split()


async def english(sentence: str = SENTENCE) -> Sound:
    """Spoken by a machine, in a way that a recogniser made for people understands."""
    voice = Espeak(SENTENCES["en"][0], WORDS_A_MINUTE)
    await voice.open()
    async with asyncio.timeout(30):
        return await voice.synthesise(sentence, "en")


KEY = "sk-secret-of-the-test"


def beep(ms: int = 600, rate: int = 24_000) -> Sound:
    count = rate * ms // 1000
    return Sound(b"".join(pack("<h", round(9000 * sin(2 * pi * 440 * at / rate))) for at in range(count)), rate)


class SpokenStream(SimpleNamespace):
    """Audio as a node gives it to a preview."""

    def __init__(self, pieces: list[bytes], src_lang: str = "auto", sample_rate: int = 24_000) -> None:
        super().__init__(lang_a="en", lang_b="es", auto_langs=[], vocabulary=[], shown=[])
        self.src_lang, self.audio_format, self.sample_rate = src_lang, "pcm16", sample_rate
        self.pieces, self.partial = pieces, self.shown.append

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


@dataclass
class Fault:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = '{"error": {"message": "as asked"}}'
    pause_s: float = 0.0


@dataclass
class ModelServer:
    port: int = 0
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    text: str = "we need a doctor"
    translation: str = " Necesitamos un médico. "
    detected: str = "english"
    streams: bool = False
    speech: bytes = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def last(self, path: str) -> dict[str, Any]:
        return [body for asked, body in self.asked if asked == path][-1]

    # ------------------------------------------------------------ what it serves

    @web.middleware
    async def middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.authorizations.append(request.headers.get("Authorization"))
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            await asyncio.sleep(fault.pause_s)
            if fault.status:
                await request.read()
                self.asked.append((request.path, {"fault": fault.status}))
                return web.Response(status=fault.status, headers=fault.headers, text=fault.body)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def transcriptions(self, request: web.Request) -> web.StreamResponse:
        form = dict(await request.post())
        upload = form.pop("file")
        assert isinstance(upload, web.FileField)
        form["sound"] = Sound.of_file(upload.file.read())  # type: ignore[assignment]
        self.asked.append((request.path, form))
        if self.streams and form.get("stream") == "true":
            return await self._stream(request)
        told = {"text": self.text}
        return web.json_response(told | {"language": self.detected} if form["response_format"] != "json" else told)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = [{"type": "transcript.text.delta", "delta": f"{word} "} for word in self.text.split()]
        for event in [*events, {"type": "transcript.text.done", "text": self.text}]:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def completions(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, await request.json()))
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": self.translation}}]})

    async def spoken(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, await request.json()))
        return web.Response(body=self.speech or beep().wav(), content_type="audio/wav")

    async def languages(self, request: web.Request) -> web.Response:
        known = {"en": ["en", "es", "de"], "es": ["en", "es"], "de": ["en"]}
        return web.json_response([{"code": code, "name": code, "targets": targets} for code, targets in known.items()])

    async def translate(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.asked.append((request.path, asked))
        found = (
            {"detectedLanguage": {"language": self.detected, "confidence": 90}} if asked.get("source") == "auto" else {}
        )
        return web.json_response({"translatedText": self.translation} | found)


@asynccontextmanager
async def model_server(**settings: Any) -> AsyncIterator[ModelServer]:
    server = ModelServer(**settings)
    app = web.Application(middlewares=[server.middleware], client_max_size=1 << 26)
    app.add_routes(
        [
            web.post("/v1/audio/transcriptions", server.transcriptions),
            web.post("/v1/chat/completions", server.completions),
            web.post("/v1/audio/speech", server.spoken),
            web.get("/languages", server.languages),
            web.post("/translate", server.translate),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()
