"""The pages for everybody, `/`, `/room/<id>`, `/captions/<id>` and `/try`: their files, languages, a sample.

Every file is a route of its own, so a proxy that allows these paths allows nothing else. The files are read once, when
the routes are made; a browser asks again each time and learns by the ETag that it has them. The policy allows this host
and nothing inline: the page shows text that other people wrote, and that text must never run.
"""

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from posixpath import join, normpath
from struct import pack
from time import monotonic
from typing import Final

import msgspec
from aiohttp import web

from dragoman.domain.chat.rules import Registration
from dragoman.domain.fleet import Node
from dragoman.domain.pool import AUTO
from dragoman.domain.sample_sentences import SENTENCES, WORDS_A_MINUTE
from dragoman.gateway.http_requests import error

INDEX: Final = "index.html"
ROOM: Final = "/room/{room_id:[^.]+}"  # the page itself asks for the room; with a dot it is a file
CAPTIONS: Final = "/captions/{room_id:[^.]+}"
LANGUAGES_S: Final = 1.0  # how long one answer is good for: many pages ask, and a fleet may be large
MAX_GROUPS: Final = 64
MAX_CODES: Final = 4096  # codes of languages in one answer
SECURITY: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; media-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
}
SPEAK_TIMEOUT_S: Final = 10.0
MAX_SAMPLE_BYTES: Final = 4 << 20
_SCRIPT: Final = re.compile(r'<script type="module" src="/([^"]+)"')
_IMPORT: Final = re.compile(r'^import [^"]*from "(\.[^"]+)"', re.MULTILINE)
_WAV_HEADER: Final = 44
_PAUSE: Final = '<break time="1100ms"/>'  # the page takes it for the end of an utterance
LAPTOP: Final = Registration()
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class SampleFailed(Exception):
    """espeak-ng could not speak the sample; `str()` says why."""


class Samples:
    """Sentences for a page without a microphone: espeak-ng speaks them when first asked for.

    Only these sentences are ever spoken, one at a time and within `SPEAK_TIMEOUT_S`, so no client can keep the machine
    busy. Without espeak-ng there is no sample, and the page shows no button for it.
    """

    def __init__(self, program: str | None = None) -> None:
        self._program = program or shutil.which("espeak-ng")
        self._samples: dict[str, bytes] = {}
        self._lock = asyncio.Lock()

    def __contains__(self, language: object) -> bool:
        return self._program is not None and language in SENTENCES

    async def spoken(self, language: str) -> bytes:
        """A WAV file."""
        async with self._lock:
            if language not in self._samples:
                self._samples[language] = await self._speak(*SENTENCES[language])
            return self._samples[language]

    async def _speak(self, voice: str, *sentences: str) -> bytes:
        assert self._program is not None
        try:
            process = await asyncio.create_subprocess_exec(
                self._program, "-v", voice, "-s", str(WORDS_A_MINUTE), "-m", "--stdout", "--", _PAUSE.join(sentences),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as why:
            raise SampleFailed(f"the sample cannot be spoken: {why.strerror}") from None
        try:
            async with asyncio.timeout(SPEAK_TIMEOUT_S):
                wav, _ = await process.communicate()
        except TimeoutError:
            raise SampleFailed("the sample took too long to speak") from None
        finally:
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()
        if process.returncode or not _WAV_HEADER < len(wav) <= MAX_SAMPLE_BYTES:
            raise SampleFailed("espeak-ng could not speak the sample")
        return _with_length(wav)


def _with_length(wav: bytes) -> bytes:
    """espeak-ng writes the header to a pipe before it knows the length."""
    riff, data = pack("<I", len(wav) - 8), pack("<I", len(wav) - _WAV_HEADER)
    return wav[:4] + riff + wav[8 : _WAV_HEADER - 4] + data + wav[_WAV_HEADER:]


def routes(
    nodes: Callable[[], Iterable[Node]], samples: Samples | None = None, registration: Registration = LAPTOP
) -> list[web.RouteDef]:
    """For anybody: the routes show no user and no message."""
    samples = samples or Samples()
    api = _Api(nodes, samples)
    accounts = "private" if registration.private else registration.policy
    found = static("page", "/try", values={"accounts": accounts, "min-password": registration.min_password_length})
    found += static("start", "/") + static("room", "/room", ROOM) + static("captions", CAPTIONS)
    found.append(web.get("/api/v1/public/languages", api.languages))
    found.append(web.get("/sample.wav", api.sample))
    return found


def static(folder: str, *at: str, values: Mapping[str, object] | None = None) -> list[web.RouteDef]:
    """The files of a folder of `dragoman.web` under its name, and its index at paths of its own.

    `values` replace `{{name}}` in the index. They come from the server itself and are not escaped. `{{preload}}` there
    names the modules that its script imports: a browser asks for all of them at once.
    """
    found = [file for file in files("dragoman.web").joinpath(folder).iterdir() if _suffix(file) in _TYPES]
    return [
        _route(file, path, (values or {}) if file.name == INDEX else {})
        for file in found
        for path in (at if file.name == INDEX else [f"/{folder}/{file.name}"])
    ]


def with_preloads(index: str) -> str:
    links = (f'<link rel="modulepreload" href="/{path}">' for path in _imported_by(_SCRIPT.findall(index)))
    return index.replace("{{preload}}", "\n  ".join(links))


def _imported_by(scripts: list[str]) -> list[str]:
    """Every module that these import, directly or not, by its path below `dragoman.web`."""
    found, unread = set[str](), list(scripts)
    while unread:
        path = unread.pop()
        text = files("dragoman.web").joinpath(path).read_text(encoding="utf-8")
        imported = {normpath(join(path, "..", name)) for name in _IMPORT.findall(text)}
        unread += imported - found
        found |= imported
    return sorted(found)


def _route(file: Traversable, path: str, values: Mapping[str, object]) -> web.RouteDef:
    body, kind = file.read_bytes(), _TYPES[_suffix(file)]
    if file.name == INDEX:
        body = with_preloads(body.decode()).encode()
    for name, value in values.items():
        body = body.replace(b"{{%s}}" % name.encode(), str(value).encode())
    etag = sha256(body).hexdigest()[:32]

    async def answer(request: web.Request) -> web.Response:
        headers = {**SECURITY, "Cache-Control": "no-cache"}
        known = request.if_none_match or ()
        if any(tag.value in (etag, "*") for tag in known):
            response = web.Response(status=304, headers=headers)
        else:
            response = web.Response(body=body, headers={**headers, "Content-Type": kind})
        response.etag = etag
        return response

    return web.get(path, answer)


def _suffix(file: Traversable) -> str:
    return "." + file.name.rpartition(".")[2]


class _Api:
    def __init__(self, nodes: Callable[[], Iterable[Node]], samples: Samples) -> None:
        self._nodes, self._samples = nodes, samples
        self._languages = b""
        self._good_until = float("-inf")

    async def languages(self, _: web.Request) -> web.Response:
        now = monotonic()
        if now >= self._good_until:
            self._languages, self._good_until = self._encoded(), now + LANGUAGES_S
        return web.Response(
            body=self._languages, content_type="application/json", headers={"Cache-Control": "no-store"}
        )

    def _encoded(self) -> bytes:
        nodes = list(self._nodes())
        served = groups(nodes)
        spoken = sorted({language for group in served for language in group["from"] if language in self._samples})
        return msgspec.json.encode({"groups": served, "samples": spoken, "text": text_languages(nodes)})

    async def sample(self, request: web.Request) -> web.Response:
        language = request.query.get("lang", "en")
        if language not in self._samples:
            return error("there is no sample in this language", 404)
        try:
            body = await self._samples.spoken(language)
        except SampleFailed as why:
            return error(str(why), 503)
        return web.Response(body=body, content_type="audio/wav", headers={**SECURITY, "Cache-Control": "max-age=3600"})


def groups(nodes: Iterable[Node]) -> list[dict[str, list[str]]]:
    """What the fleet translates now: from each language of `from` to each other one of `to`, both in order.

    No longer than what the nodes say, since a node serves every pair of its languages; nodes that write the same
    languages are one group. Where that would be more than the bounds, the groups of the most nodes come first.
    """
    kinds = Counter((node.asr, node.semantic) for node in nodes if node.public and not node.draining)
    sources: dict[frozenset[str], set[str]] = {}
    size: Counter[frozenset[str]] = Counter()
    for (heard, written), count in kinds.items():
        if written and any(written != {language} for language in heard):
            sources.setdefault(written, set()).update(heard)
            size[written] += count
    found: list[dict[str, list[str]]] = []
    room = MAX_CODES
    for written, _ in sorted(size.items(), key=lambda item: (-item[1], sorted(item[0])))[:MAX_GROUPS]:
        spoken = sorted(sources[written] if len(written) > 1 else sources[written] - written)
        if len(spoken) + len(written) <= room:
            room -= len(spoken) + len(written)
            found.append({"from": spoken, "to": sorted(written)})
    return found


def text_languages(nodes: Iterable[Node]) -> list[str]:
    """The languages between which nodes translate texts now, for rooms."""
    pairs = {pair for node in nodes if node.public and not node.draining for pair in node.text}
    return sorted({language for pair in pairs for language in pair} - {AUTO})[:MAX_CODES]
