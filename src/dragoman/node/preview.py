"""Previews: a handler recognises an utterance while it is spoken. Nothing waits for what it says."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

from dragoman.node.job import valid_text
from dragoman.protocol import audio
from dragoman.protocol.codes import PreviewEnd
from dragoman.protocol.fields import Message
from dragoman.protocol.node import NodePartial, PreviewAudio, PreviewClose, PreviewOpen, PreviewRefused

log = logging.getLogger("dragoman.node")

MAX_UNREAD_BYTES = 4 * 2**20  # of one stream; a handler that is further behind loses what follows
ENDED_EARLY = "the node does not preview this utterance any more"
FULL = "the node previews as many utterances as it can"
DRAINING = "the node is draining"


class PreviewStream:
    """The audio of one utterance, as it is spoken. `opening` is the whole message of the server.

        async def preview(stream: PreviewStream) -> None:
            async for audio in stream:  # everything since the last one
                stream.partial(recogniser.feed(audio))

    The iteration ends when the utterance is complete, or nothing was said. Its job, if there is one, has all the audio
    again and the same `preview_id`.
    """

    def __init__(self, opening: PreviewOpen, send_partial: Callable[["PreviewStream", str], None]) -> None:
        self.opening = opening
        self.closed: str | None = None  # cut: a job follows; silence: none does; cancelled: nothing more is needed
        self.dropped_bytes = 0  # because they were not read in time
        self._send_partial = send_partial
        self._unread: list[bytes] = []
        self._size = 0
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<{self.preview_id}: utterance {self.utterance_index} of {self.session_id}>"

    def partial(self, text: str) -> None:
        """Show the speaker what has been recognised so far. May be called from any thread."""
        self._send_partial(self, text)

    def __aiter__(self) -> "PreviewStream":
        return self

    async def __anext__(self) -> bytes:
        """The audio since the last call: Opus packets or pcm16 samples, as `audio_format` says."""
        while not self._unread:
            if self.closed is not None:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        unread, self._unread, self._size = b"".join(self._unread), [], 0
        return unread

    def feed(self, data: bytes) -> None:
        """Called by the node for each preview_audio."""
        if self._size + len(data) > MAX_UNREAD_BYTES:
            self.dropped_bytes += len(data)
            return
        self._unread.append(data)
        self._size += len(data)
        self._changed.set()

    def close(self, reason: str) -> None:
        """Called by the node when nothing more follows."""
        self.closed = self.closed or reason
        self._changed.set()

    @property
    def preview_id(self) -> str:
        return self.opening.preview_id

    @property
    def session_id(self) -> str:
        return self.opening.session_id

    @property
    def turn_id(self) -> str | None:
        """Of the turn that the utterance continues; None: it is the first of its turn."""
        return self.opening.turn_id

    @property
    def utterance_index(self) -> int:
        """The index that its job will have."""
        return self.opening.utterance_index

    @property
    def src_lang(self) -> str:
        return self.opening.src_lang

    @property
    def lang_a(self) -> str | None:
        return self.opening.lang_a

    @property
    def lang_b(self) -> str | None:
        return self.opening.lang_b

    @property
    def auto_langs(self) -> list[str]:
        """The languages to choose from if `src_lang` is auto."""
        return self.opening.auto_langs or []

    @property
    def audio_format(self) -> str:
        return self.opening.audio_format

    @property
    def sample_rate(self) -> int:
        return self.opening.sample_rate

    @property
    def vocabulary(self) -> list[str]:
        """Names and terms that may be said."""
        return self.opening.vocabulary or []

    @property
    def context_text(self) -> str | None:
        """What was said before."""
        return self.opening.context_text

    def duration_ms(self, data: bytes) -> int:
        """Of a piece of its audio."""
        return audio.duration_ms(self.audio_format, data, self.sample_rate)


Preview = Callable[[PreviewStream], Awaitable[None]]


class Previewer:
    """Runs the handler's `preview` for each utterance that the server opens, `limit` at a time."""

    def __init__(
        self, preview: Preview | None, limit: int, node_id: Callable[[], str], send: Callable[[Message], None]
    ) -> None:
        self._preview, self._limit, self._node_id, self._send = preview, limit, node_id, send
        self._streams: dict[str, PreviewStream] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}  # also of streams that were closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def open(self, message: PreviewOpen, *, draining: bool = False) -> None:
        preview, id = self._preview, message.preview_id
        if draining or preview is None or len(self._tasks) >= self._limit:
            self._send(PreviewRefused(id, DRAINING if draining else FULL))
            return
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        stream = self._streams[id] = PreviewStream(message, self._partial)
        task = self._tasks[id] = self._loop.create_task(_run(preview, stream), name=id)
        task.add_done_callback(partial(self._ended, stream, time.monotonic()))

    def audio(self, message: PreviewAudio) -> None:
        stream = self._streams.get(message.preview_id)
        if stream is not None:
            stream.feed(audio.decode_base64(message.audio))

    def close(self, message: PreviewClose) -> None:
        self._close(message.preview_id, message.reason)

    def close_all(self) -> None:
        """The connection is lost, or the node ends."""
        for id in list(self._streams):
            self._close(id, PreviewEnd.CANCELLED)

    def _close(self, id: str, reason: str) -> None:
        stream = self._streams.pop(id, None)
        if stream is not None:
            stream.close(reason)
            if reason == PreviewEnd.CANCELLED:
                self._tasks[id].cancel()

    def _ended(self, stream: PreviewStream, began: float, task: asyncio.Task[None]) -> None:
        del self._tasks[stream.preview_id]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the preview of %r failed", stream, exc_info=error)
        elif stream.dropped_bytes:
            log.warning("the preview of %r was too slow: %d bytes were not heard", stream, stream.dropped_bytes)
        if self._streams.pop(stream.preview_id, None) is not None:
            stream.close(PreviewEnd.CANCELLED)
            self._send(PreviewRefused(stream.preview_id, ENDED_EARLY))
        log.debug("%s done: %s, %d ms", stream.preview_id, stream.closed, (time.monotonic() - began) * 1000)

    # -- words -------------------------------------------------------------------------------------

    def _partial(self, stream: PreviewStream, text: str) -> None:
        if threading.get_ident() == self._loop_thread:
            self._send_partial(stream, text)
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send_partial, stream, text)

    def _send_partial(self, stream: PreviewStream, text: str) -> None:
        if stream.closed is not None:
            return
        self._send(
            NodePartial(
                preview_id=stream.preview_id,
                node_id=self._node_id(),
                session_id=stream.session_id,
                utterance_index=stream.utterance_index,
                text=valid_text(text),
                is_final=False,
                trace_id=stream.opening.trace_id,
            )
        )


async def _run(preview: Preview, stream: PreviewStream) -> None:
    await preview(stream)
