"""A session with a server: send audio, receive results, close. `SessionConnection` keeps it connected.

`send` waits for the connection, for backpressure and for the socket, so nothing queues up on the way out. Events wait
in an EventQueue until the user reads them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any, TypedDict, Unpack

import msgspec

from dragoman import __version__
from dragoman.client.events import Event, EventQueue, Failed, Rejected, Result, SessionError
from dragoman.client.pacing import Throttle
from dragoman.client.recording import CHUNK_MS, LIVE_CHUNK_MS, Recording, split
from dragoman.client.session_connection import OnLost, SessionConnection, Timing, unix_ms
from dragoman.client.session_state import UtteranceOptions
from dragoman.connection import ClientWebSocket, Connector
from dragoman.protocol import audio, codec
from dragoman.protocol.codes import ErrorCode, Platform
from dragoman.protocol.fields import ABSENT, Message
from dragoman.protocol.session import VAD_SERVER, SessionInit, TtsPlayEnded, TtsStarted

log = logging.getLogger("dragoman.client")

Chunks = Iterable[bytes] | AsyncIterable[bytes]


class SessionOptions(TypedDict, total=False):
    """Optional fields of session_init."""

    mode: str  # "two_way_auto": two people take turns, in lang_a and lang_b
    lang_a: str
    lang_b: str
    auto_langs: list[str]  # languages to choose from if src is "auto"
    dialect: str
    enable_streaming_asr: bool
    partial_update_interval_ms: int
    previews: bool  # words while you speak: Partial events before an utterance has a job
    pairing_code: str
    tenant_id: str
    trace_id: str


class Session:
    """One speaker's connection to a server. Use it with `async with`, which opens and closes it.

        async with Session("ws://127.0.0.1:5010/ws/session", src="en", tgt="es") as session:
            async for result in session.stream_file("hello.wav"):
                print(result.index, result.text_translated)

    Send audio in one of three ways; a session takes chunks or whole utterances, not both:

    - `stream_file(path)` and `translate(source)` send everything, yield the results and close the session.
    - `send(chunk)` and `cut()` send live audio. Read the events beside it: `async for event in session`.
    - `utterance(audio)` sends a whole utterance.

    Parameters:

    - `url`: one address or several. When one fails, the next is tried.
    - `src`, `tgt`: the languages, such as "en" and "es". `src="auto"` lets the node detect the language.
    - `audio_format`, `sample_rate`: of the audio to send: "opus" or "pcm16". A `Recording` sets them by itself.
    - `token`: needed if the server has a secret.
    - `resume`: after a lost connection, resume the session on any instance; nothing that was sent is lost.
    - `on_lost`: what to do if the session cannot be resumed: "raise" SessionLost, or open a "new" session and
      report Renewed.
    - `vad`: with pcm16, the server finds where utterances begin and end; send everything, silence included. False:
      `cut()`, a pause in sending, and length cut. `session.vad` says what is in force.
    - `utterance_end`: ask the server to report the end of every utterance, also of an empty one.
    - `features`: further features, as session_init carries them.
    - `timing`, `throttle`: timeouts, and how fast audio is sent.
    - `options`: see SessionOptions.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        src: str,
        tgt: str,
        audio_format: str = audio.OPUS,
        sample_rate: int = 16_000,
        token: str | None = None,
        resume: bool = True,
        on_lost: OnLost = "raise",
        platform: str = Platform.WEB,
        timing: Timing | None = None,
        throttle: Throttle | None = None,
        ssl: SSLContext | None = None,
        utterance_end: bool = True,
        vad: bool = True,
        features: Mapping[str, Any] | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        opening = SessionInit(
            client_version=f"dragoman-python {__version__}",
            platform=platform,
            src_lang=src,
            tgt_lang=tgt,
            token=token,
            audio_format=audio_format,
            sample_rate=sample_rate,
            resume=resume,
            utterance_end=utterance_end,
            vad=_vad(vad, audio_format),
            features=codec.raw(features) if features else ABSENT,
            **options,
        )
        self._wants_vad = vad
        self._timing = timing = timing or Timing()
        self._events = EventQueue()
        connector = Connector(
            url, timing.backoff(), log, connect_s=timing.connect_s, reconnect_s=timing.reconnect_s, ssl=ssl
        )
        self._connection = SessionConnection(opening, connector, self._events, throttle or Throttle(), timing, on_lost)
        self._send_lock = asyncio.Lock()  # senders take turns, in the order of their calls
        self._running: asyncio.Task[None] | None = None
        self._feeders: set[asyncio.Task[None]] = set()

    @property
    def id(self) -> str:
        """The session id; empty before the session is open."""
        return self._connection.state.session_id

    @property
    def trace_id(self) -> str:
        return self._connection.state.trace_id

    @property
    def vad(self) -> bool:
        """Whether the server finds the ends of utterances."""
        return self._connection.state.vad

    @property
    def socket(self) -> ClientWebSocket | None:
        """The current connection; None while the session reconnects. Lets a test cut it, or stop reading it."""
        return self._connection.socket

    def use_token(self, token: str) -> None:
        """Resume with this token from now on: the first one may expire before the session ends."""
        self._connection.state.opening.token = token

    # ------------------------------------------------------------ opening and closing

    async def __aenter__(self) -> "Session":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()

    async def open(self) -> None:
        """Connect and open the session. Raises Unreachable and SessionError."""
        self._running = asyncio.get_running_loop().create_task(self._connection.run(), name="dragoman-session")
        try:
            await self._connection.ready.wait()
        except BaseException:
            await self._end()
            raise
        if self._connection.error is not None:
            raise self._connection.error

    async def close(self, reason: str = "done") -> None:
        """Close the session, and wait for outstanding results: by default the server grants them 5 s.

        If the session is lost meanwhile, unanswered utterances are reported as Failed.
        """
        await self._stop_feeding()
        if not self._connection.over:
            self._connection.close(reason)
            if self._running is not None:
                await asyncio.wait({self._running}, timeout=self._timing.close_s)
            self._connection.abandon("the server did not confirm the end of the session")
        await self._end()

    async def abort(self, reason: str = "left") -> None:
        """Close the session without waiting for outstanding results."""
        await self._stop_feeding()
        if not self._connection.over:
            self._connection.close(reason)
        await self._end()

    async def finish(self) -> None:
        """Wait until everything that was sent is answered, then close."""
        await self.wait_answered()
        await self.close()

    async def wait_answered(self) -> None:
        """Wait until every utterance has ended.

        Returns as well if nothing was received for `timing.settle_s`: a server that does not send utterance_end never
        ends an empty utterance.
        """
        connection = self._connection
        while not connection.over and (connection.state.awaits_answer or connection.state.cut_pending):
            timeout_s = self._timing.settle_s if connection.state.awaits_answer else self._timing.cut_s
            connection.changed.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await connection.changed.wait()
            except TimeoutError:
                return

    async def _end(self) -> None:
        self._connection.end()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _stop_feeding(self) -> None:
        feeders = self._feeders - {asyncio.current_task()}
        for feeder in feeders:
            feeder.cancel()
        if feeders:
            await asyncio.wait(feeders)

    # ------------------------------------------------------------ sending

    async def send(self, chunk: bytes, *, final: bool = False) -> None:
        """Send a piece of audio in the session's format; `final` cuts the utterance after it.

        Waits while the session reconnects, and while the server asks for less. Raises BadAudio, and SessionError if
        the session is over.
        """
        state = self._connection.state
        audio.duration_ms(state.format, chunk, state.sample_rate)
        pieces = list(split(state.format, chunk, state.sample_rate)) or [b""] * final
        async with self._send_lock:
            for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
                await self._connection.wait_until_sendable()
                # Not `state`: while we waited, a new session may have replaced the old one.
                numbered = self._connection.state.chunk(piece, final and not left, unix_ms())
                self._connection.send_audio(numbered)

    async def cut(self) -> None:
        """End the utterance: what was sent since the last cut is translated as one."""
        await self.send(b"", final=True)

    async def utterance(
        self,
        data: bytes,
        *,
        audio_format: str | None = None,
        sample_rate: int | None = None,
        **options: Unpack[UtteranceOptions],
    ) -> int:
        """Send a whole utterance; returns its index. Not possible in a session that sends chunks."""
        state = self._connection.state
        format, rate = audio_format or state.format, sample_rate or state.sample_rate
        audio.duration_ms(format, data, rate)
        async with self._send_lock:
            await self._connection.wait_until_sendable()
            message = self._connection.state.utterance(data, format, rate, **options)
            self._connection.send_audio(message)
        return message.utterance_index

    async def speak(self, source: Recording | Chunks, *, fast: bool = False) -> None:
        """Send all of `source`, then cut: at the pace of speech, or as `fast` as the server allows."""
        if isinstance(source, Recording):
            await self._use_format(source.format, source.sample_rate)
        began, spoken_ms = time.monotonic(), 0
        async for chunk in _each(source, CHUNK_MS if fast else LIVE_CHUNK_MS):
            state = self._connection.state
            spoken_ms += audio.duration_ms(state.format, chunk, state.sample_rate)
            if not fast:
                await asyncio.sleep(max(0.0, began + spoken_ms / 1000 - time.monotonic()))
            await self.send(chunk)
        await self.cut()

    async def connected(self) -> None:
        """Return when the session is connected, or over."""
        await self._connection.ready.wait()

    async def send_message(self, message: Message) -> None:
        """Send a message of the protocol that has no method of its own, as soon as the session is connected. If the
        connection is lost at the same moment, so is the message."""
        await self.connected()
        self._connection.send(message)

    def tts_started(self, result: Result) -> None:
        """Report that the audio of a result is playing: until `tts_play_ended`, silence does not cut an utterance."""
        message = result.message
        if message.group_id and message.trace_id:
            ids = message.session_id, message.trace_id, message.group_id
            self._connection.tts_started(TtsStarted(*ids, unix_ms()))

    def tts_play_ended(self, result: Result) -> None:
        """Report that the audio of a result has been played."""
        message = result.message
        if message.group_id and message.trace_id:
            ids = message.session_id, message.trace_id, message.group_id
            self._connection.tts_play_ended(TtsPlayEnded(*ids, unix_ms()))

    async def _use_format(self, format: str, sample_rate: int) -> None:
        """Reopen the session for audio of another format, if nothing was sent yet."""
        state = self._connection.state
        if (state.format, state.sample_rate) == (format, sample_rate):
            return
        if state.is_fed:
            mine = f"{state.format} at {state.sample_rate} Hz"
            raise SessionError(ErrorCode.INVALID_MESSAGE, f"the recording is {format} at {sample_rate} Hz, not {mine}")
        async with self._send_lock:
            await self._connection.wait_until_sendable()
            vad = _vad(self._wants_vad, format)
            opening = msgspec.structs.replace(state.opening, audio_format=format, sample_rate=sample_rate, vad=vad)
            await self._connection.reopen(opening)

    # ------------------------------------------------------------ receiving

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.events()

    async def events(self) -> AsyncGenerator[Event, None]:
        """All events in the order they arrived, each once, until the session is over. Raises what ended it."""
        while (event := await self._events.get()) is not None:
            yield event

    async def results(self) -> AsyncGenerator[Result, None]:
        """Only results. Raises SessionError if an utterance failed; call it again to go on after that."""
        while (event := await self._events.get()) is not None:
            match event:
                case Result():
                    yield event
                case Failed(code=code, message=message, index=index):
                    raise SessionError(code, message, index)
                case Rejected(code=code, message=message):
                    raise SessionError(code, message)

    async def translate(self, source: Recording | Chunks, *, fast: bool = False) -> AsyncGenerator[Result, None]:
        """Send all of `source`, yield the results, close the session."""
        feeder = asyncio.get_running_loop().create_task(self._feed(source, fast))
        self._feeders.add(feeder)
        feeder.add_done_callback(self._feeders.discard)
        try:
            async for result in self.results():
                yield result
        finally:
            feeder.cancel()

    def stream_file(self, path: str | Path, *, fast: bool = False) -> AsyncGenerator[Result, None]:
        """`translate` a file: WAV, raw pcm16 or Opus packets. Raises OSError and UnsupportedAudio at once."""
        return self.translate(Recording.open(path), fast=fast)

    async def _feed(self, source: Recording | Chunks, fast: bool) -> None:
        try:
            await self.speak(source, fast=fast)
            await self.finish()
        except Exception as error:
            # The reader gets the error; otherwise it would wait for results of audio that was never sent.
            self._connection.close("error")
            self._connection.end(error)


def _vad(wanted: bool, audio_format: str) -> str | None:
    return VAD_SERVER if wanted and audio_format == audio.PCM16 else None


async def _each(source: Recording | Chunks, piece_ms: int) -> AsyncIterator[bytes]:
    if isinstance(source, AsyncIterable):
        async for chunk in source:
            yield chunk
    else:
        for chunk in source.chunks(piece_ms) if isinstance(source, Recording) else source:
            yield chunk
