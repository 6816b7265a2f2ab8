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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from signal import SIGINT, SIGTERM
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import output
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.room import Guest, parse, server_of, user_name
from dragoman.cli.say_output import LineOutput, RoomSpeaker, output_for
from dragoman.cli.settings import ConfigFile, Overrides, authority, option, session_url, settings
from dragoman.cli.terminal_io import read_begin, read_stdin, signal_handlers

if TYPE_CHECKING:
    from dragoman.client import Event, Recording, Room, Session, SessionError
    from dragoman.config import Config


# -- its input -------------------------------------------------------------------------------------
#
# The audio that `dragoman say` sends: a file, raw audio from standard input, or a sample.
#
# The sample is the sentences of the page's sample, spoken by espeak-ng if it is installed; otherwise it is tones.


STDIN = "-"
STDIN_RATE = 16_000
MAX_HEAD_BYTES = 65_536  # of a WAV on standard input
ESPEAK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Speech:
    """Recordings, each of which ends with a cut. Without recordings, the audio comes from standard input, of which
    `begun` was read already."""

    format: str
    sample_rate: int
    parts: "Sequence[Recording]" = ()
    begun: bytes = b""
    tones: bool = False  # in which a voice detector need not hear a voice

    @property
    def duration_ms(self) -> int | None:
        return sum(part.duration_ms for part in self.parts) if self.parts else None

    def pieces(self, piece_ms: int, max_bytes: int) -> "Iterator[AsyncIterator[bytes]]":
        """For each part, its pieces of at most `piece_ms` and `max_bytes`."""
        for part in self.parts:
            yield _as_async(part.chunks(piece_ms, max_bytes))
        if not self.parts:
            yield _stdin_pieces(self.begun, min(2 * self.sample_rate * piece_ms // 1000, max_bytes))


async def _as_async(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _stdin_pieces(begun: bytes, piece_bytes: int) -> AsyncIterator[bytes]:
    """Standard input in pieces of this size; the last one is shorter and holds whole samples."""
    buffer = begun
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
        spoken = () if tones else spoken_sample(language)
        parts = spoken or tone_sentences()
        return Speech(parts[0].format, parts[0].sample_rate, parts, tones=not spoken)
    if file == STDIN:
        if sys.stdin.isatty():
            raise Failure(
                "Standard input is a terminal. Pipe a WAV or raw pcm16 at 16 kHz into it, from arecord or ffmpeg.",
                USAGE,
            )
        return _speech_of_stdin()
    try:
        recording = Recording.open(file)
    except FileNotFoundError:
        raise Failure(f"There is no file {file}.", USAGE) from None
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}.", USAGE) from None
    except UnsupportedAudio as error:
        raise Failure(str(error), USAGE) from None
    return Speech(recording.format, recording.sample_rate, [recording])


def _speech_of_stdin() -> Speech:
    """Raw pcm16 at 16 kHz, or a WAV: its head says at which rate."""
    from dragoman.client.recording import HOW_TO_CONVERT, BadWav, read_head

    begun = read_begin(4)
    while begun.startswith(b"RIFF"):
        try:
            head = read_head(BytesIO(begun), len(begun))
            return Speech("pcm16", head.sample_rate, begun=begun[head.data_at :])
        except BadWav as error:
            more = read_begin(1024) if len(begun) < MAX_HEAD_BYTES else b""
            if not more:
                raise Failure(
                    f"Standard input cannot be sent: {error}. Convert it first: {HOW_TO_CONVERT}", USAGE
                ) from None
            begun += more
    return Speech("pcm16", STDIN_RATE, begun=begun)


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
        help="WAV (pcm16, mono), a sequence of Opus packets, or - for a WAV or raw pcm16 at 16 kHz on standard input. "
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
    room: Annotated[
        str, option("--room", metavar="ROOM", help="Speak in this room: its six-digit code, id or link.")
    ] = "",
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Name that the others in the room see.", show_default="the user's"),
    ] = "",
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
    """Send a recording and show its translation; with --room, say it in a room, where everybody reads it.

    Example: ffmpeg -i talk.mp4 -ac 1 -f wav - | dragoman say --room 123456 -
    """
    if file is not None and sample:
        raise Failure("Give either a file or --sample.", USAGE)
    if room:
        if utterances:
            raise Failure("In a room the server cuts the utterances: leave out --utterances.", USAGE)
        loaded = settings(ctx, config, override).config
        return _say_in_room(loaded, room, name, src, file, url, token, sample=sample, fast=fast, as_json=as_json)
    speech = open_speech(file, src, sample)
    server = settings(ctx, config, override).config.server
    urls = [session_url(one) for one in url or [authority(server.host, server.port)]]
    show = output_for(speech.duration_ms, as_json)

    from dragoman.client import Session

    session = Session(
        urls,
        src=src,
        tgt=tgt,
        audio_format=speech.format,
        sample_rate=speech.sample_rate,
        token=token,
        on_lost="new",
        previews=not utterances,
        vad=not speech.tones,
    )
    speaker = Speaker(session, speech, show, utterances=utterances, fast=fast)
    with show:
        ended = _run(speaker.run(), f"{src} → {tgt}")
    if ended is not None:
        return ended
    show.sum_up()
    return INTERRUPTED if speaker.interrupted else int(show.failed > 0)


def _run(speaking: Coroutine[Any, Any, None], pair: str = "") -> int | None:
    """The exit code if it was interrupted, or nobody reads the output; None: it has done everything."""
    from dragoman.client import SessionError

    try:
        asyncio.run(speaking)
    except SessionError as error:
        raise Failure(sentence_of(error, pair), 1) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        output.discard()
        return 1
    return None


def _say_in_room(
    config: "Config",
    room: str,
    name: str,
    src: str,
    file: str | None,
    url: list[str] | None,
    token: str | None,
    *,
    sample: bool,
    fast: bool,
    as_json: bool,
) -> int:
    from dragoman.client import Room

    id, code = parse(room)
    server = config.server
    urls = [session_url(one) for one in url or [server_of(room) or authority(server.host, server.port)]]
    name, speech = name or user_name("speaker"), open_speech(file, src, sample)
    if token is None:
        token, id = Guest(config, urls[0], name).join(room_id=id, code=code)
    speaker = RoomSpeaker(lambda member: send_all(speech, member, fast=fast), as_json=as_json)
    member = Room(
        urls, room=id, code=code, name=name, speaks=src, token=token or None, audio_format=speech.format,
        sample_rate=speech.sample_rate, on_event=speaker.on_event,
    )  # fmt: skip
    if (ended := _run(speaker.run(member))) is not None:
        return ended
    speaker.sum_up()
    return INTERRUPTED if speaker.interrupted else int(speaker.failed > 0)


async def send_all(
    speech: Speech, to: "Session | Room", *, fast: bool, sent: Callable[[int], object] = lambda spoken_ms: None
) -> None:
    """Send live audio, in real time unless `fast`; each part ends with a cut."""
    from dragoman.client.recording import CHUNK_MS, LIVE_CHUNK_MS, MAX_CHUNK_BYTES
    from dragoman.protocol.audio import duration_ms

    began, spoken_ms = time.monotonic(), 0
    for part in speech.pieces(CHUNK_MS if fast else LIVE_CHUNK_MS, MAX_CHUNK_BYTES):
        async for piece in part:
            spoken_ms += duration_ms(speech.format, piece, speech.sample_rate)
            if not fast:
                await asyncio.sleep(max(0.0, began + spoken_ms / 1000 - time.monotonic()))
            await to.send(piece)
            sent(spoken_ms)
        await to.cut()


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
        if not self._utterances:
            await send_all(self._speech, self._session, fast=self._fast, sent=self._show.sent)
            return
        from dragoman.protocol.audio import duration_ms

        speech, spoken_ms, began = self._speech, 0, time.monotonic()
        for part in speech.pieces(UTTERANCE_MS, UTTERANCE_BYTES):
            async for piece in part:
                spoken_ms += duration_ms(speech.format, piece, speech.sample_rate)
                if not self._fast:
                    await asyncio.sleep(max(0.0, began + spoken_ms / 1000 - time.monotonic()))
                await self._session.utterance(piece)
                self._show.sent(spoken_ms)

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
