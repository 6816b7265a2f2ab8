"""`dragoman say`: speak a recording to a server and see what comes back.

On a terminal results stand in the order they were spoken, partials grow in place and late ones are put where they
belong; elsewhere each is one line as it arrives. Ctrl-C stops speaking, waits for what is outstanding and closes the
session; a second one leaves at once.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from select import select
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from dragoman.cli.address import authority
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.screen import Show, show_for
from dragoman.cli.settings import ConfigFile, Overrides, settings

if TYPE_CHECKING:
    from dragoman.client import Event, Recording, Session, SessionError

STDIN = "-"
STDIN_FD = 0
STDIN_RATE = 16_000
UTTERANCE_MS = 5000
UTTERANCE_BYTES = 700_000
INTERRUPTED = 130


def say(
    ctx: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            help="WAV (pcm16, mono), a run of Opus packets, or - for raw pcm16 at 16 kHz on standard input. "
            "Without: three sentences spoken by espeak-ng where it is installed, else a few tones.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    src: Annotated[str, typer.Option("--from", help="Language that is spoken.")] = "en",
    tgt: Annotated[str, typer.Option("--to", help="Language to translate into.")] = "es",
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Where Dragoman is; may be repeated. [ws://server.host:server.port]",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="DRAGOMAN_CLIENT_TOKEN",
            help="Credential of the client, where security.secret is set.",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Speak a few tones instead of a file.")] = False,
    utterances: Annotated[bool, typer.Option("--utterances", help="Send whole utterances of 5 s, numbered.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Not at the pace of speech, but as fast as allowed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as one line of JSON.")] = False,
) -> int:
    """Speak a recording and show its translation."""
    if file is not None and sample:
        raise Failure("Give a file or --sample, not both.", USAGE)
    speech = _speech(file, src, sample)
    server = settings(ctx, config, override).config.server
    urls = [endpoint(one) for one in url or [authority(server.host, server.port)]]
    show = show_for(speech.duration_ms, as_json)

    from dragoman.client import Session, SessionError

    session = Session(
        urls, src=src, tgt=tgt, audio_format=speech.format, sample_rate=speech.sample_rate, token=token, on_lost="new"
    )
    teller = Teller(session, speech, show, utterances=utterances, fast=fast)
    try:
        with show:
            asyncio.run(teller.tell())
    except SessionError as error:
        raise Failure(_sentence(error, f"{src} → {tgt}"), 1) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read has enough; Python would complain when it closes the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    show.sum_up()
    return INTERRUPTED if teller.interrupted else int(show.failed > 0)


def endpoint(url: str) -> str:
    """Where sessions are served at this address: host:port will do, and so will the address of the API."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        scheme = {"": "ws", "http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        right = scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or not url.isprintable() or " " in url:
        raise Failure(f"--url {url!r} is not an address like ws://127.0.0.1:5010.", USAGE)
    path = parts.path if parts.path.strip("/") else "/ws/session"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def _sentence(error: "SessionError", pair: str) -> str:
    from dragoman.client import SessionLost, Unreachable
    from dragoman.protocol.codes import ErrorCode

    why = error.message.rstrip(".")
    match error:
        case Unreachable():
            return f"{why[0].upper()}{why[1:]}. Is it running? Try --url, or start one: dragoman demo."
        case SessionLost():
            return f"The session was lost: {why}."
    match error.code:
        case ErrorCode.NO_AVAILABLE_NODE:
            return f"No node translates {pair} ({why}). Is one connected? See: dragoman status."
        case "UNAUTHORIZED" | "FORBIDDEN":
            return f"The server does not let us in: {why}. Give a --token, or set DRAGOMAN_CLIENT_TOKEN."
    return f"The server says: {why} ({error.code})."


# ---------------------------------------------------------------- what is spoken


@dataclass(frozen=True, slots=True)
class Speech:
    """Parts with a cut behind each. No parts: standard input."""

    format: str
    sample_rate: int
    parts: "Sequence[Recording]" = ()

    @property
    def duration_ms(self) -> int | None:
        return sum(part.duration_ms for part in self.parts) if self.parts else None

    def pieces(self, piece_ms: int, max_bytes: int) -> "Iterator[AsyncIterator[bytes]]":
        """Of each part, its pieces."""
        for part in self.parts:
            yield _awaitable(part.chunks(piece_ms, max_bytes))
        if not self.parts:
            yield _standard_input(min(2 * self.sample_rate * piece_ms // 1000, max_bytes))


def _speech(file: str | None, language: str, tones: bool = False) -> Speech:
    from dragoman.cli.sample import sentences
    from dragoman.client import Recording, UnsupportedAudio
    from dragoman.client.recording import tone_sentences

    if file is None:
        parts = tone_sentences() if tones else sentences(language)
        return Speech(parts[0].format, parts[0].sample_rate, parts)
    if file == STDIN:
        if sys.stdin.isatty():
            raise Failure(
                "Standard input is a terminal; - wants raw pcm16 at 16 kHz, as arecord or ffmpeg make.", USAGE
            )
        return Speech("pcm16", STDIN_RATE)
    try:
        recording = Recording.open(file)
    except FileNotFoundError:
        raise Failure(f"There is no file {file}.", USAGE) from None
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}.", USAGE) from None
    except UnsupportedAudio as error:
        raise Failure(str(error), USAGE) from None
    return Speech(recording.format, recording.sample_rate, [recording])


async def _awaitable(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _standard_input(piece_bytes: int) -> AsyncIterator[bytes]:
    """Pieces of standard input, read by a thread: a pipe and a file alike, without holding the loop up.

    A daemon, and os.read: a thread that waits in sys.stdin.buffer would keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(4)

    def put(data: bytes) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()

    def read() -> None:
        with contextlib.suppress(RuntimeError, CancelledError):  # the loop has ended
            for data in _reads(STDIN_FD, piece_bytes):
                put(data)
            put(b"")

    threading.Thread(target=read, daemon=True, name="standard-input").start()
    buffer = b""
    while data := await queue.get():
        buffer += data
        while len(buffer) >= piece_bytes:
            yield buffer[:piece_bytes]
            buffer = buffer[piece_bytes:]
    if whole := buffer[: len(buffer) & ~1]:
        yield whole


def _reads(fd: int, most: int) -> Iterator[bytes]:
    """To the end, or to the first error."""
    with contextlib.suppress(OSError):
        while True:
            try:
                data = os.read(fd, most)
            except BlockingIOError:  # whoever gave it to us does not want to be blocked by it
                select([fd], [], [])
                continue
            if not data:
                return
            yield data


# ---------------------------------------------------------------- speaking and listening


class Teller:
    """Speaks while it listens, and shows what it hears."""

    def __init__(self, session: "Session", speech: Speech, show: Show, *, utterances: bool, fast: bool) -> None:
        self._session, self._speech, self._show = session, speech, show
        self._utterances, self._fast = utterances, fast
        self.interrupted = False

    async def tell(self) -> None:
        async with self._session as session:
            speaking = asyncio.ensure_future(self._speak())
            ending = asyncio.ensure_future(self._end(speaking))
            try:
                with _signals(lambda: self._interrupt(speaking)):
                    async for event in session:
                        self._show.event(event)
                        self._look(event)
                    await ending
            finally:
                speaking.cancel()
                ending.cancel()
                await asyncio.gather(speaking, ending, return_exceptions=True)

    async def _speak(self) -> None:
        from dragoman.client.recording import CHUNK_MS, MAX_CHUNK_BYTES
        from dragoman.protocol.audio import duration_ms

        format, rate = self._speech.format, self._speech.sample_rate
        piece_ms, most = (UTTERANCE_MS, UTTERANCE_BYTES) if self._utterances else (CHUNK_MS, MAX_CHUNK_BYTES)
        began, spoken_ms = time.monotonic(), 0
        for part in self._speech.pieces(piece_ms, most):
            async for piece in part:
                spoken_ms += duration_ms(format, piece, rate)
                if not self._fast:
                    await asyncio.sleep(max(0.0, began + spoken_ms / 1000 - time.monotonic()))
                await (self._session.utterance(piece) if self._utterances else self._session.send(piece))
                self._show.spoke(spoken_ms)
            if not self._utterances:
                await self._session.cut()

    async def _end(self, speaking: "asyncio.Future[None]") -> None:
        """When all is said, or we were interrupted: what is outstanding, and goodbye."""
        await asyncio.wait({speaking})
        self._show.said_all()
        await self._session.finish()
        if not speaking.cancelled():
            speaking.result()

    def _look(self, event: "Event") -> None:
        """Speaking on is of no use when there was no node from the beginning."""
        from dragoman.client import Failed, SessionError
        from dragoman.protocol.codes import ErrorCode

        if isinstance(event, Failed) and event.code == ErrorCode.NO_AVAILABLE_NODE and not self._show.translated:
            raise SessionError(event.code, event.message)

    def _interrupt(self, speaking: "asyncio.Future[None]") -> bool:
        """True: that was enough; leave now."""
        again, self.interrupted = self.interrupted, True
        speaking.cancel()
        return again


@contextlib.contextmanager
def _signals(interrupt: Callable[[], bool]) -> Iterator[None]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if interrupt() and task is not None:
            task.cancel()

    for number in (SIGINT, SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (SIGINT, SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(number)
