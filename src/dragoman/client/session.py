"""A session with a server: speak, listen, close. Staying connected is the keeper's.

Whoever sends waits here for the connection, for backpressure and for the socket, so nothing queues up inside. What
the server says waits in the mailbox for whoever iterates.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any

import msgspec

from dragoman import __version__
from dragoman.client.backoff import Backoff
from dragoman.client.chunks import split
from dragoman.client.dialler import Dialler
from dragoman.client.errors import SessionError
from dragoman.client.events import Event, Failed, Refused, Result
from dragoman.client.keeper import Keeper, OnLost, Timing, unix_ms
from dragoman.client.mailbox import Mailbox
from dragoman.client.recording import Recording
from dragoman.client.throttle import Throttle
from dragoman.protocol import audio, codec
from dragoman.protocol.codes import ErrorCode, Platform
from dragoman.protocol.fields import ABSENT
from dragoman.protocol.session import SessionInit, TtsPlayEnded, TtsStarted

Chunks = Iterable[bytes] | AsyncIterable[bytes]


class Session:
    """`url` may be several: the next one is tried when one fails.

    `on_lost` decides what happens when the session cannot be resumed: `raise` SessionLost, or open a `new` one, which
    is told by Renewed. `init` are further fields of session_init: mode, lang_a, lang_b, dialect, features …
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
        **init: Any,
    ) -> None:
        features = init.pop("features", None)
        opening = SessionInit(
            client_version=f"dragoman-python {__version__}",
            platform=platform,
            src_lang=src,
            tgt_lang=tgt,
            token=token,
            audio_format=audio_format,
            sample_rate=sample_rate,
            resume=resume,
            utterance_end=init.pop("utterance_end", True),
            features=codec.raw(features) if features else ABSENT,
            **init,
        )
        self._timing = timing = timing or Timing()
        self._mailbox = Mailbox()
        self._keeper = Keeper(opening, self._mailbox, throttle or Throttle(), timing, on_lost)
        self._dialler = Dialler(
            [url] if isinstance(url, str) else url,
            self._keeper.received,
            Backoff(timing.backoff_first_s, timing.backoff_longest_s, timing.backoff_steady_s),
            connect_s=timing.connect_s,
            patience_s=timing.reconnect_s,
            ssl=ssl,
        )
        self._floor = asyncio.Lock()  # one speaks at a time, in the order of asking
        self._life: asyncio.Task[None] | None = None
        self._feeders: set[asyncio.Task[None]] = set()

    @property
    def id(self) -> str:
        return self._keeper.talk.session_id

    @property
    def trace_id(self) -> str:
        return self._keeper.talk.trace_id

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> "Session":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.leave()

    async def open(self) -> None:
        """Connect and open the session. Raises Unreachable and SessionError."""
        self._life = asyncio.get_running_loop().create_task(self._keeper.run(self._dialler), name="dragoman-session")
        try:
            await self._keeper.gate.wait()
        except BaseException:
            await self._end()
            raise
        if self._keeper.error is not None:
            raise self._keeper.error

    async def close(self, reason: str = "done") -> None:
        """Tell the server that this is all, and wait for what is outstanding: by default it grants that 5 s. If the
        session is lost meanwhile, what was not answered is told failed."""
        await self._stop_feeding()
        if not self._keeper.over:
            self._keeper.close(reason)
            if self._life is not None:
                await asyncio.wait({self._life}, timeout=self._timing.close_s)
            self._keeper.give_up("the server did not say that the session is closed")
        await self._end()

    async def leave(self, reason: str = "left") -> None:
        """Close without waiting for anything."""
        await self._stop_feeding()
        if not self._keeper.over:
            self._keeper.close(reason)
        await self._end()

    async def finish(self) -> None:
        """Wait for the answers to what was said, then close: the end of a recording."""
        await self.settled()
        await self.close()

    async def settled(self) -> None:
        """Wait until every utterance has ended, or nothing was received for `settle_s`: a server that does not send
        utterance_end says nothing of an empty one."""
        keeper = self._keeper
        while not keeper.over and (keeper.talk.awaits_answer or keeper.talk.cut_unheard):
            quiet_s = self._timing.settle_s if keeper.talk.awaits_answer else self._timing.cut_s
            keeper.news.clear()
            try:
                async with asyncio.timeout(quiet_s):
                    await keeper.news.wait()
            except TimeoutError:
                return

    async def _end(self) -> None:
        self._keeper.end()
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait({self._life})

    async def _stop_feeding(self) -> None:
        feeders = self._feeders - {asyncio.current_task()}
        for feeder in feeders:
            feeder.cancel()
        if feeders:
            await asyncio.wait(feeders)

    # ------------------------------------------------------------ speaking

    async def send(self, chunk: bytes, *, final: bool = False) -> None:
        """A piece of audio in the session's format; `final` cuts behind it. Waits while the server asks us to.

        Raises BadAudio, and SessionError when the session is over.
        """
        talk = self._keeper.talk
        audio.duration_ms(talk.format, chunk, talk.sample_rate)
        pieces = list(split(talk.format, chunk, talk.sample_rate)) or [b""] * final
        async with self._floor:
            for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
                await self._keeper.my_turn()
                # Not `talk`: while we waited another session may have taken its place.
                self._keeper.say(self._keeper.talk.chunk(piece, final and not left, unix_ms()))

    async def cut(self) -> None:
        """What was said so far is an utterance."""
        await self.send(b"", final=True)

    async def utterance(
        self, data: bytes, *, audio_format: str | None = None, sample_rate: int | None = None, **fields: Any
    ) -> int:
        """A whole utterance at once; returns its number. Not in a session that is fed by chunks."""
        talk = self._keeper.talk
        format, rate = audio_format or talk.format, sample_rate or talk.sample_rate
        audio.duration_ms(format, data, rate)
        async with self._floor:
            await self._keeper.my_turn()
            message = self._keeper.talk.utterance(data, format, rate, **fields)
            self._keeper.say(message)
        return message.utterance_index

    async def speak(self, source: Recording | Chunks, *, fast: bool = False) -> None:
        """Send all of it at the pace of speech, or as fast as the server allows, and cut."""
        if isinstance(source, Recording):
            await self._be_of_format(source.format, source.sample_rate)
        began, spoken_ms = time.monotonic(), 0
        async for chunk in _each(source):
            talk = self._keeper.talk
            spoken_ms += audio.duration_ms(talk.format, chunk, talk.sample_rate)
            if not fast:
                await asyncio.sleep(max(0.0, began + spoken_ms / 1000 - time.monotonic()))
            await self.send(chunk)
        await self.cut()

    def tts_started(self, result: Result) -> None:
        """The sound of a result is being played: until `tts_play_ended`, silence is no pause."""
        message = result.message
        if message.group_id and message.trace_id:
            self._keeper.playing = TtsStarted(message.session_id, message.trace_id, message.group_id, unix_ms())
            self._keeper.send(self._keeper.playing)

    def tts_play_ended(self, result: Result) -> None:
        message = result.message
        if message.group_id and message.trace_id:
            self._keeper.playing = None
            self._keeper.send(TtsPlayEnded(message.session_id, message.trace_id, message.group_id, unix_ms()))

    async def _be_of_format(self, format: str, sample_rate: int) -> None:
        """A session that has heard nothing yet is opened anew for audio of another format."""
        talk = self._keeper.talk
        if (talk.format, talk.sample_rate) == (format, sample_rate):
            return
        if talk.is_fed:
            mine = f"{talk.format} at {talk.sample_rate} Hz"
            raise SessionError(ErrorCode.INVALID_MESSAGE, f"the recording is {format} at {sample_rate} Hz, not {mine}")
        async with self._floor:
            await self._keeper.my_turn()
            opening = msgspec.structs.replace(talk.opening, audio_format=format, sample_rate=sample_rate)
            await self._keeper.reopen(opening)

    # ------------------------------------------------------------ listening

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.events()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Everything in the order it arrived, each event once, until the session is over. Raises what ended it."""
        while (event := await self._mailbox.get()) is not None:
            yield event

    async def results(self) -> AsyncGenerator[Result, None]:
        """Only results. An utterance that failed raises SessionError; iterate anew to go on."""
        while (event := await self._mailbox.get()) is not None:
            match event:
                case Result():
                    yield event
                case Failed(code=code, message=message, index=index):
                    raise SessionError(code, message, index)
                case Refused(code=code, message=message):
                    raise SessionError(code, message)

    async def translate(self, source: Recording | Chunks, *, fast: bool = False) -> AsyncGenerator[Result, None]:
        """Say all of it, yield the results, close the session."""
        feeder = asyncio.get_running_loop().create_task(self._feed(source, fast))
        self._feeders.add(feeder)
        feeder.add_done_callback(self._feeders.discard)
        try:
            async for result in self.results():
                yield result
        finally:
            feeder.cancel()

    def stream_file(self, path: str | Path, *, fast: bool = False) -> AsyncGenerator[Result, None]:
        """`translate` of a file. Raises OSError and UnsupportedAudio at once."""
        return self.translate(Recording.open(path), fast=fast)

    async def _feed(self, source: Recording | Chunks, fast: bool) -> None:
        try:
            await self.speak(source, fast=fast)
            await self.finish()
        except Exception as error:
            # Whoever iterates is told, instead of waiting for results of what was never said.
            self._keeper.close("error")
            self._keeper.end(error)


async def _each(source: Recording | Chunks) -> AsyncIterator[bytes]:
    if isinstance(source, AsyncIterable):
        async for chunk in source:
            yield chunk
    else:
        for chunk in source.chunks() if isinstance(source, Recording) else source:
            yield chunk
