"""A node that previews: what its handler gets, what the server gets, and when it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dragoman.node import Capabilities, Job, Node, PreviewStream, Result, SimSettings
from dragoman.node.preview import MAX_UNREAD_BYTES, Previewer
from dragoman.node.sim import SimEngine
from dragoman.protocol.audio import encode_base64
from dragoman.protocol.fields import Message
from dragoman.protocol.node import (
    JobResult,
    NodeHeartbeat,
    NodePartial,
    NodeRegister,
    PreviewAudio,
    PreviewClose,
    PreviewOpen,
    PreviewRefused,
)
from support.waiting import wait_until
from unit.node.fake_scheduler import FakeScheduler, running

PCM_MS = 32  # bytes of a millisecond


def opening(number: int = 1, **fields: Any) -> PreviewOpen:
    about: dict[str, Any] = {"session_id": "s-1", "utterance_index": 3, "src_lang": "en", "trace_id": "t"}
    return PreviewOpen(preview_id=f"preview-{number}", audio_format="pcm16", sample_rate=16000, **about | fields)


def piece(data: bytes, number: int = 1, seq: int = 0) -> PreviewAudio:
    return PreviewAudio(preview_id=f"preview-{number}", seq=seq, audio=encode_base64(data))


class Desk:
    def __init__(self, preview: Callable[[PreviewStream], Awaitable[None]] | None, limit: int = 2) -> None:
        self.said: list[Message] = []
        self.previewer = Previewer(preview, limit, lambda: "node-1", self.said.append)

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.said if isinstance(message, NodePartial)]

    @property
    def refused(self) -> list[str]:
        return [message.preview_id for message in self.said if isinstance(message, PreviewRefused)]

    async def has_said(self, number: int) -> None:
        await wait_until(lambda: len(self.texts) == number)

    async def idle(self) -> None:
        await wait_until(lambda: not len(self.previewer))


async def spell(stream: PreviewStream) -> None:
    heard = b""
    async for audio in stream:
        heard += audio
        stream.partial(heard.decode())


async def test_audio_reaches_the_handler_and_its_words_the_server() -> None:
    desk = Desk(spell)
    desk.previewer.open(opening())
    for seq, data in enumerate((b"ab", b"cd"), 1):
        desk.previewer.audio(piece(data, seq=seq))
        await desk.has_said(seq)
    desk.previewer.close(PreviewClose("preview-1", "cut"))
    await desk.idle()
    assert desk.texts == ["ab", "abcd"]
    (first, _) = desk.said
    assert first == NodePartial(
        preview_id="preview-1",
        node_id="node-1",
        session_id="s-1",
        utterance_index=3,
        text="ab",
        is_final=False,
        trace_id="t",
    )


async def test_a_slow_handler_gets_everything_since_its_last_call_at_once() -> None:
    gate, got = asyncio.Event(), list[bytes]()

    async def slow(stream: PreviewStream) -> None:
        async for audio in stream:
            got.append(audio)
            await gate.wait()

    desk = Desk(slow)
    desk.previewer.open(opening())
    desk.previewer.audio(piece(b"a"))
    await wait_until(lambda: got)
    for data in (b"b", b"c", b"d"):
        desk.previewer.audio(piece(data))
    desk.previewer.close(PreviewClose("preview-1", "cut"))
    gate.set()
    await desk.idle()
    assert got == [b"a", b"bcd"]


async def test_what_a_handler_does_not_read_for_too_long_is_dropped() -> None:
    streams: list[PreviewStream] = []

    async def deaf(stream: PreviewStream) -> None:
        streams.append(stream)
        await asyncio.Event().wait()

    desk = Desk(deaf)
    desk.previewer.open(opening())
    await wait_until(lambda: streams)
    for _ in range(3):
        desk.previewer.audio(piece(bytes(MAX_UNREAD_BYTES // 2)))
    assert streams[0].dropped_bytes == MAX_UNREAD_BYTES // 2
    desk.previewer.close_all()
    await desk.idle()


async def test_words_after_the_end_are_not_sent() -> None:
    ended = asyncio.Event()

    async def late(stream: PreviewStream) -> None:
        async for _ in stream:
            pass
        stream.partial("too late")
        ended.set()

    desk = Desk(late)
    desk.previewer.open(opening())
    desk.previewer.audio(piece(b"a"))
    desk.previewer.close(PreviewClose("preview-1", "silence"))
    await ended.wait()
    await desk.idle()
    assert desk.said == []


async def test_a_cancelled_preview_is_interrupted_and_its_place_is_free() -> None:
    interrupted = asyncio.Event()

    async def endless(stream: PreviewStream) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert stream.closed == "cancelled"
            interrupted.set()

    desk = Desk(endless, limit=1)
    desk.previewer.open(opening())
    await asyncio.sleep(0)
    desk.previewer.close(PreviewClose("preview-1", "cancelled"))
    await interrupted.wait()
    await desk.idle()
    desk.previewer.open(opening(2))
    assert desk.refused == []
    desk.previewer.close_all()
    await desk.idle()


async def test_previews_beyond_the_limit_of_a_draining_node_and_without_a_handler_are_refused() -> None:
    desk = Desk(spell, limit=1)
    desk.previewer.open(opening(1))
    desk.previewer.open(opening(2))
    desk.previewer.open(opening(3), draining=True)
    assert desk.refused == ["preview-2", "preview-3"]
    desk.previewer.close_all()
    await desk.idle()
    unable = Desk(None, limit=0)
    unable.previewer.open(opening())
    assert unable.refused == ["preview-1"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_handler_that_ends_early_refuses_the_rest(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def short(stream: PreviewStream) -> None:
        if fails:
            raise RuntimeError("no model")

    desk = Desk(short)
    desk.previewer.open(opening())
    await desk.idle()
    assert desk.refused == ["preview-1"]
    assert ("no model" in caplog.text) is fails


async def test_words_may_come_from_another_thread() -> None:
    async def threaded(stream: PreviewStream) -> None:
        async for audio in stream:
            await asyncio.to_thread(stream.partial, audio.decode())

    desk = Desk(threaded)
    desk.previewer.open(opening())
    desk.previewer.audio(piece(b"hello"))
    await wait_until(lambda: desk.texts == ["hello"])
    desk.previewer.close(PreviewClose("preview-1", "cut"))
    await desk.idle()


# -- a whole node ----------------------------------------------------------------------------------


class Handler:
    async def __call__(self, job: Job) -> Result:
        return Result(f"heard {job.preview_id}")

    async def preview(self, stream: PreviewStream) -> None:
        await spell(stream)


async def plain(job: Job) -> Result:
    return Result("heard")


async def registered(fake: FakeScheduler, node: Node) -> list[str]:
    async with running(node):
        return list((await fake.hears(NodeRegister)).advanced_features or ())


async def test_a_node_says_that_it_previews_if_its_handler_can(fake: FakeScheduler) -> None:
    said = await registered(fake, Node(fake.url, Handler(), languages=["en"], slots=3))
    assert {"preview", "previews:3"} <= set(said)


@pytest.mark.parametrize(
    ("handler", "capabilities"),
    [
        (plain, Capabilities.of(["en"])),
        (Handler(), Capabilities(["en"], ["en"], previews=0)),
        (Handler(), Capabilities(text_pairs=[("en", "es")])),
    ],
)
async def test_a_node_that_cannot_preview_or_should_not_does_not_say_so(
    fake: FakeScheduler, handler: Any, capabilities: Capabilities
) -> None:
    said = await registered(fake, Node(fake.url, handler, capabilities))
    assert not [feature for feature in said if feature.startswith("preview")]


def test_previews_without_a_handler_for_them_are_refused() -> None:
    with pytest.raises(ValueError, match="no function `preview`"):
        Node("ws://127.0.0.1:1/ws/node", plain, Capabilities(["en"], ["en"], previews=2))


async def test_a_node_previews_and_its_job_knows_the_preview(fake: FakeScheduler) -> None:
    async with running(Node(fake.url, Handler(), languages=["en", "es"])):
        await fake.hears(NodeHeartbeat)  # it has registered
        fake.says(opening())
        fake.says(piece(b"words"))
        assert (await fake.hears(NodePartial)).text == "words"
        fake.says(PreviewClose("preview-1", "cut"))
        job = fake.assigns(3, preview_id="preview-1")
        result = await fake.hears(JobResult, lambda one: one.job_id == job.job_id)
        assert result.text_asr == "heard preview-1"


async def test_previews_end_with_their_connection(fake: FakeScheduler) -> None:
    ended = asyncio.Event()

    class Endless(Handler):
        async def preview(self, stream: PreviewStream) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async with running(Node(fake.url, Endless(), languages=["en"])):
        await fake.hears(NodeHeartbeat)  # it has registered
        fake.says(opening())
        fake.says(piece(b"words"))
        fake.closes(4000)
        async with asyncio.timeout(30):
            await ended.wait()


async def test_a_simulated_node_says_words_at_the_configured_rate() -> None:
    desk = Desk(SimEngine(SimSettings(words_per_s=2.0)).preview)
    desk.previewer.open(opening())
    for seconds in range(1, 4):
        desk.previewer.audio(piece(bytes(1000 * PCM_MS), seq=seconds))
        await desk.has_said(seconds)
    desk.previewer.close(PreviewClose("preview-1", "cut"))
    await desk.idle()
    assert desk.texts == ["utterance 3", "utterance 3 of s-1", "utterance 3 of s-1 word4 word5"]
