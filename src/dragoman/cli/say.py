"""`dragoman say`: sends a recording to a server and shows the results.

On a terminal, results are shown in the order of the speech: partial texts grow in place, and late results are inserted.
Elsewhere each result is one line, in the order of arrival. Ctrl-C stops sending, waits for outstanding results and
closes the session; a second Ctrl-C ends the command at once.
"""

import asyncio
import time
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import output
from dragoman.cli.address import authority, session_url
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.say_input import Speech, open_speech
from dragoman.cli.say_output import LineOutput, output_for
from dragoman.cli.settings import ConfigFile, Overrides, settings
from dragoman.cli.terminal_io import signal_handlers

if TYPE_CHECKING:
    from dragoman.client import Event, Session, SessionError

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
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Address of a server; may be repeated. [ws://server.host:server.port]",
        show_default=False,
    ),
]

ClientToken = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        envvar="DRAGOMAN_CLIENT_TOKEN",
        help="Client token, needed if security.secret is set. [$DRAGOMAN_CLIENT_TOKEN]",
        show_default=False,
        show_envvar=False,
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
        raise Failure(_sentence(error, f"{src} → {tgt}"), 1) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        output.discard()
        return 1
    show.sum_up()
    return INTERRUPTED if speaker.interrupted else int(show.failed > 0)


def _sentence(error: "SessionError", pair: str) -> str:
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
