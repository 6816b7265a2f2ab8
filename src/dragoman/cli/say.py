"""`dragoman say`: sends a recording to a server and shows the results.

On a terminal, results are shown in the order of the speech: partial texts grow in place, and late results are inserted.
Elsewhere each result is one line, in the order of arrival. Ctrl-C stops sending, waits for outstanding results and
closes the session; a second Ctrl-C ends the command at once.
"""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import output
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.say_output import LineOutput, output_for
from dragoman.cli.settings import ConfigFile, Overrides, authority, option, session_url, settings
from dragoman.cli.terminal_io import read_stdin, signal_handlers

if TYPE_CHECKING:
    from dragoman.client import Event, Recording, Session, SessionError


# -- its input -------------------------------------------------------------------------------------
#
# The audio that `dragoman say` sends: a file, raw audio from standard input, or a sample.
#
# The sample is the sentences of the page's sample, spoken by espeak-ng if it is installed; otherwise it is tones.


STDIN = "-"
STDIN_RATE = 16_000
ESPEAK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Speech:
    """Recordings, each of which ends with a cut. Without recordings, the audio comes from standard input."""

    format: str
    sample_rate: int
    parts: "Sequence[Recording]" = ()

    @property
    def duration_ms(self) -> int | None:
        return sum(part.duration_ms for part in self.parts) if self.parts else None

    def pieces(self, piece_ms: int, max_bytes: int) -> "Iterator[AsyncIterator[bytes]]":
        """For each part, its pieces of at most `piece_ms` and `max_bytes`."""
        for part in self.parts:
            yield _as_async(part.chunks(piece_ms, max_bytes))
        if not self.parts:
            yield _stdin_pieces(min(2 * self.sample_rate * piece_ms // 1000, max_bytes))


async def _as_async(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _stdin_pieces(piece_bytes: int) -> AsyncIterator[bytes]:
    """Standard input in pieces of this size; the last one is shorter and holds whole samples."""
    buffer = b""
    async for data in read_stdin(piece_bytes):
        buffer += data
        while len(buffer) >= piece_bytes:
            yield buffer[:piece_bytes]
            buffer = buffer[piece_bytes:]
    if whole := buffer[: len(buffer) & ~1]:
        yield whole


def open_speech(file: str | None, language: str, tones: bool = False) -> Speech:
    """The speech of a file, of standard input for "-", or of the sample for None."""
    from dragoman.client import Recording, UnsupportedAudio
    from dragoman.client.recording import tone_sentences

    if file is None:
        parts = tone_sentences() if tones else sample(language)
        return Speech(parts[0].format, parts[0].sample_rate, parts)
    if file == STDIN:
        if sys.stdin.isatty():
            raise Failure(
                "Standard input is a terminal. Pipe raw pcm16 at 16 kHz into it, for example from arecord or ffmpeg.",
                USAGE,
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


def sample(language: str) -> "Sequence[Recording]":
    """The sample in this language, or tones."""
    from dragoman.client.recording import tone_sentences

    return spoken_sample(language) or tone_sentences()


def spoken_sample(language: str) -> "Sequence[Recording]":
    """Empty if espeak-ng is missing, fails, or has no sentences in the language."""
    from dragoman.domain.sample_sentences import SENTENCES

    program = shutil.which("espeak-ng")
    if program is None or language not in SENTENCES:
        return ()
    try:
        with TemporaryDirectory(prefix="dragoman-") as folder:
            path = Path(folder) / "sentence.wav"
            voice, *sentences = SENTENCES[language]
            return [_synthesise(program, voice, sentence, path) for sentence in sentences]
    except (OSError, subprocess.SubprocessError):
        return ()


def _synthesise(program: str, voice: str, sentence: str, path: Path) -> "Recording":
    from dragoman.client import Recording
    from dragoman.domain.sample_sentences import WORDS_A_MINUTE

    command = (program, "-v", voice, "-s", str(WORDS_A_MINUTE), "-b", "1", "-w", str(path), "--stdin")
    subprocess.run(command, input=sentence.encode(), check=True, capture_output=True, timeout=ESPEAK_TIMEOUT_S)
    recording = Recording.open(path)
    return Recording(recording.format, recording.sample_rate, b"".join(recording.chunks()))


UTTERANCE_MS = 5000
UTTERANCE_BYTES = 700_000
INTERRUPTED = 130

File = Annotated[
    str | None,
    typer.Argument(
        help="WAV (pcm16, mono), a sequence of Opus packets, or - for raw pcm16 at 16 kHz on standard input. "
        "Without a file: three sentences spoken by espeak-ng if it is installed, else tones.",
        metavar="FILE",
        show_default=False,
    ),
]

Urls = Annotated[
    list[str] | None, option(metavar="URL", help="Address of a server; may be repeated. [ws://server.host:server.port]")
]

ClientToken = Annotated[
    str | None,
    option(
        metavar="TOKEN",
        envvar="DRAGOMAN_CLIENT_TOKEN",
        help="Client token, needed if security.secret is set. [$DRAGOMAN_CLIENT_TOKEN]",
    ),
]


def say(
    ctx: typer.Context,
    file: File = None,
    config: ConfigFile = None,
    override: Overrides = None,
    src: Annotated[str, typer.Option("--from", help="Language of the recording.")] = "en",
    tgt: Annotated[str, typer.Option("--to", help="Language to translate into.")] = "es",
    url: Urls = None,
    token: ClientToken = None,
    sample: Annotated[bool, typer.Option("--sample", help="Send tones instead of a file.")] = False,
    utterances: Annotated[
        bool, typer.Option("--utterances", help="Send numbered utterances of 5 s instead of a stream.")
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Send as fast as the server allows instead of in real time.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
) -> int:
    """Send a recording and show its translation."""
    if file is not None and sample:
        raise Failure("Give either a file or --sample.", USAGE)
    speech = open_speech(file, src, sample)
    server = settings(ctx, config, override).config.server
    urls = [session_url(one) for one in url or [authority(server.host, server.port)]]
    show = output_for(speech.duration_ms, as_json)

    from dragoman.client import Session, SessionError

    session = Session(
        urls, src=src, tgt=tgt, audio_format=speech.format, sample_rate=speech.sample_rate, token=token, on_lost="new"
    )
    speaker = Speaker(session, speech, show, utterances=utterances, fast=fast)
    try:
        with show:
            asyncio.run(speaker.run())
    except SessionError as error:
        raise Failure(sentence_of(error, f"{src} → {tgt}"), 1) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        output.discard()
        return 1
    show.sum_up()
    return INTERRUPTED if speaker.interrupted else int(show.failed > 0)


def sentence_of(error: "SessionError", pair: str = "") -> str:
    from dragoman.client import SessionLost, Unreachable
    from dragoman.protocol.codes import ErrorCode

    why = error.message.rstrip(".")
    match error:
        case Unreachable():
            return f"{why[0].upper()}{why[1:]}. Start a server with dragoman demo, or give its address with --url."
        case SessionLost():
            return f"The session was lost: {why}."
    match error.code:
        case ErrorCode.NO_AVAILABLE_NODE:
            return f"No node translates {pair} ({why}). dragoman status lists the connected nodes."
        case "UNAUTHORIZED" | "FORBIDDEN":
            return f"The server denies access: {why}. Give a --token, or set DRAGOMAN_CLIENT_TOKEN."
    return f"The server answers: {why} ({error.code})."


class Speaker:
    """Sends the speech and shows the events of the session."""

    def __init__(self, session: "Session", speech: Speech, show: LineOutput, *, utterances: bool, fast: bool) -> None:
        self._session, self._speech, self._show = session, speech, show
        self._utterances, self._fast = utterances, fast
        self.interrupted = False

    async def run(self) -> None:
        async with self._session as session:
            speaking = asyncio.ensure_future(self._speak())
            ending = asyncio.ensure_future(self._end(speaking))
            receiving = asyncio.current_task()

            def interrupt() -> None:
                if self.interrupted and receiving is not None:
                    receiving.cancel()
                self.interrupted = True
                speaking.cancel()

            try:
                with signal_handlers({SIGINT: interrupt, SIGTERM: interrupt}):
                    async for event in session:
                        self._show.event(event)
                        self._check_for_node(event)
                    await ending
            finally:
                speaking.cancel()
                ending.cancel()
                await asyncio.gather(speaking, ending, return_exceptions=True)

    async def _speak(self) -> None:
        from dragoman.client.recording import CHUNK_MS, MAX_CHUNK_BYTES
        from dragoman.protocol.audio import duration_ms

        format, rate = self._speech.format, self._speech.sample_rate
        piece_ms, max_bytes = (UTTERANCE_MS, UTTERANCE_BYTES) if self._utterances else (CHUNK_MS, MAX_CHUNK_BYTES)
        began, spoken_ms = time.monotonic(), 0
        for part in self._speech.pieces(piece_ms, max_bytes):
            async for piece in part:
                spoken_ms += duration_ms(format, piece, rate)
                if not self._fast:
                    await asyncio.sleep(max(0.0, began + spoken_ms / 1000 - time.monotonic()))
                await (self._session.utterance(piece) if self._utterances else self._session.send(piece))
                self._show.sent(spoken_ms)
            if not self._utterances:
                await self._session.cut()

    async def _end(self, speaking: "asyncio.Future[None]") -> None:
        """Wait for outstanding results and close the session once the speech was sent or interrupted."""
        await asyncio.wait({speaking})
        self._show.sent_all()
        await self._session.finish()
        if not speaking.cancelled():
            speaking.result()

    def _check_for_node(self, event: "Event") -> None:
        """End the command if no node serves the languages from the beginning."""
        from dragoman.client import Failed, SessionError
        from dragoman.protocol.codes import ErrorCode

        if isinstance(event, Failed) and event.code == ErrorCode.NO_AVAILABLE_NODE and not self._show.translated:
            raise SessionError(event.code, event.message)
