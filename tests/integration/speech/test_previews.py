"""Previews over a real Redis: words while a client speaks, on one instance and across two; nothing else changes."""

import asyncio
import base64
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dragoman.domain.preview import PARTIAL_S
from dragoman.node import Node, SimSettings
from dragoman.node.sim import SimEngine
from dragoman.protocol.audio import SILENCE_PACKET, opus_run
from dragoman.protocol.peer import ToPreview, encode_peer
from dragoman.protocol.session import SessionInit, SessionResume
from dragoman.services.routing.router import drop_silently
from dragoman.services.speech import previews
from dragoman.services.speech.session import Session
from integration.speech.test_session import WHO
from support.cluster import SPOKEN_PACKET
from support.in_process import TIMEOUT_S, InProcessInstance, InProcessNode, OpenInstance, RecordingSocket
from support.voice import silent, vowel
from support.waiting import wait_until

CHUNK_MS = 200
CHUNK = opus_run([SPOKEN_PACKET] * (CHUNK_MS // 20))


class Client:
    """Speaks in chunks, as fast as the test does."""

    def __init__(self, instance: InProcessInstance, *, wants: bool = True, **init: Any) -> None:
        self.instance, self.socket, self.seq = instance, RecordingSocket(), 0
        self.session: Session = instance.services.sessions.open(
            self.socket, SessionInit("1", "web", "en", "es", previews=wants, **init), WHO
        )

    def speak(self, chunks: int = 2, *, cut: bool = False) -> bytes:
        for number in range(chunks):
            self.seq += 1
            self.session.chunk(CHUNK, cut and number == chunks - 1, self.seq)
        return CHUNK * chunks

    async def speak_until(self, condition: Callable[[], object]) -> None:
        """In chunks of 20 ms, so that it takes long until a cut by length."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self.seq += 1
                self.session.chunk(opus_run([SPOKEN_PACKET]), False, self.seq)
                await asyncio.sleep(0.02)

    @property
    def partials(self) -> list[tuple[int, str]]:
        return [(one["utterance_index"], one["text"]) for one in self.socket.of("asr_partial")]

    @property
    def results(self) -> list[int]:
        return [one["utterance_index"] for one in self.socket.of("translation_result")]

    async def hears(self, index: int, text: str) -> None:
        await wait_until(lambda: (index, text) in self.partials, TIMEOUT_S)

    async def has_results(self, *indexes: int) -> None:
        await wait_until(lambda: self.results == list(indexes), TIMEOUT_S)


async def opened(node: InProcessNode, number: int = 1) -> str:
    """The preview that the node was sent as the `number`th."""
    await wait_until(lambda: len(node.previews) >= number, TIMEOUT_S)
    return node.previews[number - 1]


async def closed(node: InProcessNode, preview_id: str) -> str:
    """The reason why a preview was closed."""
    closes = partial(node.socket.of, "preview_close")
    await wait_until(lambda: preview_id in [one["preview_id"] for one in closes()], TIMEOUT_S)
    (reason,) = [one["reason"] for one in closes() if one["preview_id"] == preview_id]
    return str(reason)


async def remote(open_instance: OpenInstance, *nodes: str, **options: Any) -> tuple[InProcessInstance, ...]:
    """Two instances: `a` for the client, `b`, and nodes of b that a knows."""
    a, b = await open_instance("a"), await open_instance("b")
    for id in nodes:
        await b.node(id, **{"previews": 2} | options)
    await wait_until(lambda: a.knows(*nodes), TIMEOUT_S)
    return a, b


async def test_words_reach_the_client_while_it_speaks_and_the_result_follows(open_instance: OpenInstance) -> None:
    a = await open_instance()
    node = await a.node("n", previews=1)
    client = Client(a)
    audio = client.speak()
    preview_id = await opened(node)
    (opening,) = node.socket.of("preview_open")
    assert (opening["session_id"], opening["utterance_index"], opening["src_lang"]) == (client.session.id, 0, "en")
    assert (opening["audio_format"], opening["sample_rate"]) == ("opus", 16000)
    await wait_until(lambda: node.previewed(preview_id) == audio, TIMEOUT_S)
    node.preview(preview_id, "we have")
    await client.hears(0, "we have")
    (message,) = client.socket.of("asr_partial")
    assert message["preview_id"] == preview_id
    assert "job_id" not in message
    assert not node.jobs
    client.speak(1, cut=True)
    (job,) = await wait_until(lambda: node.jobs, TIMEOUT_S)
    assert job["preview_id"] == preview_id
    assert await closed(node, preview_id) == "cut"
    node.answer(job)
    await client.has_results(0)
    assert a.count("dragoman_previews") == 0
    assert a.count("dragoman_preview_first_partial_seconds_count") == 1


async def test_words_reach_the_client_of_another_instance(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    node = await b.node("n", previews=1)
    await wait_until(lambda: a.knows("n"), TIMEOUT_S)
    client = Client(a)
    audio = client.speak()
    preview_id = await opened(node)
    node.preview(preview_id, "we have")
    await client.hears(0, "we have")
    await wait_until(lambda: node.previewed(preview_id) == audio, TIMEOUT_S)
    client.speak(1, cut=True)
    (job,) = await wait_until(lambda: node.jobs, TIMEOUT_S)
    assert job["preview_id"] == preview_id
    node.answer(job)
    await client.has_results(0)


async def test_a_client_that_does_not_ask_for_previews_has_none(open_instance: OpenInstance) -> None:
    a = await open_instance()
    node = await a.node("n", previews=1, working=True)
    client = Client(a, wants=False)
    client.speak(cut=True)
    await client.has_results(0)
    assert not node.previews
    assert "preview_id" not in node.jobs[0]


async def test_no_session_has_previews_when_the_operator_has_turned_them_off(open_instance: OpenInstance) -> None:
    a = await open_instance("a", speech__previews=False)
    node = await a.node("n", previews=1, working=True)
    client = Client(a)
    client.speak(cut=True)
    await client.has_results(0)
    assert not node.previews


async def test_no_partial_is_sent_after_the_cut(open_instance: OpenInstance) -> None:
    a = await open_instance()
    node = await a.node("n", previews=1)
    client = Client(a)
    client.speak()
    preview_id = await opened(node)
    node.preview(preview_id, "we have")
    node.preview(preview_id, "we have a")  # waits for its turn
    client.speak(1, cut=True)
    node.preview(preview_id, "we have a big")
    (job,) = await wait_until(lambda: node.jobs, TIMEOUT_S)
    node.answer(job)
    await client.has_results(0)
    await asyncio.sleep(PARTIAL_S * 1.2)  # until the one that waited would have been sent
    assert client.partials == [(0, "we have")]


async def test_at_most_four_partials_a_second_are_sent_and_the_last_is_among_them(open_instance: OpenInstance) -> None:
    a = await open_instance()
    node = await a.node("n", previews=1)
    client = Client(a)
    client.speak()
    preview_id = await opened(node)
    for number in range(50):
        node.preview(preview_id, f"word {number}")
    await client.hears(0, "word 49")
    assert client.partials == [(0, "word 0"), (0, "word 49")]


async def test_words_disappear_when_no_utterance_follows(open_instance: OpenInstance) -> None:
    """A client with quiet finals: what it sends next is withheld."""
    a = await open_instance(speech__quiet_final_ms=10_000)
    node = await a.node("n", previews=1)
    client = Client(a)
    quiet = opus_run([SILENCE_PACKET] * 20)
    client.session.chunk(quiet, False, 1)
    preview_id = await opened(node)
    node.preview(preview_id, "um")
    await client.hears(0, "um")
    client.session.chunk(quiet, True, 2)
    assert client.partials == [(0, "um"), (0, "")]
    assert await closed(node, preview_id) == "silence"
    assert not node.jobs


@pytest.mark.parametrize("speaks_first", [False, True])
async def test_another_node_previews_the_utterance_from_its_beginning_when_the_first_is_lost(
    open_instance: OpenInstance, speaks_first: bool
) -> None:
    a = await open_instance()
    first = await a.node("n1", previews=1)
    client = Client(a)
    audio = client.speak()
    preview_id = await opened(first)
    if speaks_first:
        first.preview(preview_id, "we have")
    second = await a.node("n2", previews=1)
    first.disconnect()
    audio += client.speak(1)
    again = await opened(second)
    assert second.previewed(again) == audio
    second.preview(again, "we have a")
    await client.hears(0, "we have a")
    client.speak(1, cut=True)
    (job,) = await wait_until(lambda: second.jobs, TIMEOUT_S)
    assert job["preview_id"] == again
    second.answer(job)
    await client.has_results(0)
    assert a.count("dragoman_preview_refused_total", reason="node_lost") == 1


async def test_the_result_comes_without_a_preview_when_the_only_node_that_previews_is_lost(
    open_instance: OpenInstance,
) -> None:
    a = await open_instance()
    first = await a.node("n1", previews=1)
    other = await a.node("n2", working=True)
    client = Client(a)
    client.speak()
    await opened(first)
    first.disconnect()
    client.speak(1)
    client.speak(1, cut=True)
    await client.has_results(0)
    assert "preview_id" not in other.jobs[0]
    assert a.count("dragoman_preview_refused_total", reason="no_node") == 1


async def test_the_instance_of_the_node_may_end_in_mid_utterance(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    there = await b.node("n1", previews=1)
    await wait_until(lambda: a.knows("n1"), TIMEOUT_S)
    client = Client(a)
    client.speak()
    there.preview(await opened(there), "we have")
    await client.hears(0, "we have")
    here = await a.node("n2", previews=1, working=True)
    await b.services.presence.close()  # its inbox is gone, as after a takeover
    await client.speak_until(lambda: here.previews)
    client.speak(1, cut=True)
    await client.has_results(0)


@pytest.mark.parametrize("resume_at", ["the same instance", "another instance"])
async def test_a_session_that_is_resumed_in_mid_utterance_opens_a_new_preview(
    open_instance: OpenInstance, resume_at: str
) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    node = await b.node("n", previews=1)
    await wait_until(lambda: a.knows("n"), TIMEOUT_S)
    client = Client(a, resume=True)
    (ack,) = await wait_until(lambda: client.socket.of("session_init_ack"), TIMEOUT_S)
    audio = client.speak()
    first = await opened(node)
    node.preview(first, "we have")
    await client.hears(0, "we have")
    client.socket.closed = True
    a.services.sessions.socket_closed(client.socket)
    assert await closed(node, first) == "cancelled"
    there = a if resume_at == "the same instance" else b
    client.socket = RecordingSocket()
    resume = SessionResume(client.session.id, ack["resume_token"], 0)
    client.session = await there.services.resumption.resume(client.socket, resume, WHO)
    audio = (audio if there is a else b"") + client.speak()
    second = await opened(node, 2)
    await wait_until(lambda: node.previewed(second) == audio, TIMEOUT_S)
    node.preview(second, "a big problem")
    await client.hears(0, "a big problem")
    node.preview(first, "late words")
    client.speak(1, cut=True)
    (job,) = await wait_until(lambda: node.jobs, TIMEOUT_S)
    node.answer(job)
    await client.has_results(0)
    assert "late words" not in [text for _, text in client.partials]


async def test_the_next_preview_of_a_turn_and_its_job_go_to_the_same_node_after_a_cut_by_length(
    open_instance: OpenInstance,
) -> None:
    a = await open_instance(speech__max_duration_ms=600)
    nodes = [await a.node(f"n{number}", previews=2, working=True) for number in range(4)]
    client = Client(a)
    for _ in range(4):
        client.speak(3)  # each time a cut by length
    client.speak(3, cut=True)
    await client.has_results(0, 1, 2, 3, 4)
    (busy,) = [node for node in nodes if node.previews]
    assert len(busy.previews) == 5
    assert [job["utterance_index"] for job in busy.jobs] == [0, 1, 2, 3, 4]
    assert [job["preview_id"] for job in busy.jobs] == busy.previews
    turn_ids = {job["turn_id"] for job in busy.jobs}
    assert turn_ids == {one.get("turn_id") for one in busy.socket.of("preview_open")} - {None}


async def test_the_job_goes_elsewhere_when_the_node_of_its_preview_has_no_free_slot(
    open_instance: OpenInstance,
) -> None:
    a = await open_instance()
    previewer = await a.node("n1", slots=1, previews=2)
    other = await a.node("n2", working=True)
    busy, client = Client(a), Client(a)
    busy.speak()
    await opened(previewer)
    busy.speak(1, cut=True)
    await wait_until(lambda: previewer.jobs, TIMEOUT_S)
    client.speak()
    second = await opened(previewer, 2)
    client.speak(1, cut=True)
    await client.has_results(0)
    assert other.jobs[0]["preview_id"] == second


async def test_a_node_gets_no_more_previews_than_it_declares(open_instance: OpenInstance) -> None:
    a, b = await remote(open_instance, "n")
    node = next(iter(b.services.local_nodes.all()))
    speakers = [Client(a), Client(b), Client(a), Client(b)]
    for one in speakers:
        one.speak()
    await wait_until(
        lambda: (
            sum(one.count("dragoman_preview_refused_total", reason="full") for one in (a, b))
            + sum(one.count("dragoman_preview_refused_total", reason="no_node") for one in (a, b))
            >= 2
        ),
        TIMEOUT_S,
    )
    assert len(node.previews) == 2


async def test_a_preview_that_its_node_refuses_goes_to_another_node(open_instance: OpenInstance) -> None:
    a = await open_instance()
    nodes = {id: await a.node(id, previews=1) for id in ("n1", "n2")}
    client = Client(a)
    audio = client.speak()
    (first,) = [node for node in nodes.values() if node.previews]
    (second,) = [node for node in nodes.values() if not node.previews]
    first.refuse(first.previews[0])
    audio += client.speak(1)
    assert second.previewed(await opened(second)) == audio
    assert a.count("dragoman_preview_refused_total", reason="node") == 1


async def test_audio_for_a_full_inbox_is_dropped_and_the_result_comes_as_without_a_preview(
    open_instance: OpenInstance,
) -> None:
    limits = {"scheduler__phase2__stream_maxlen": 100, "scheduler__phase2__stream_block_ms": 100}
    a, b = await open_instance("a", **limits), await open_instance("b", **limits)
    node = await b.node("n", previews=4, working=True)
    await wait_until(lambda: a.knows("n"), TIMEOUT_S)
    client, late = Client(a), Client(a)
    client.speak()
    preview_id = await opened(node)
    # Eleven entries that b does not handle are more than a tenth of its inbox.
    blocked = asyncio.Event()

    async def block(message: ToPreview) -> None:
        await blocked.wait()

    b.services.handlers.register(ToPreview, block, rehome=drop_silently)
    unknown = encode_peer(ToPreview("nobody", 1, "p", "a", [], closes=True))
    for _ in range(11):
        await a.stores.inboxes.push("b", "to_preview", unknown)
    dropped = partial(a.count, "dragoman_preview_audio_dropped_total", reason="inbox_full")
    await client.speak_until(dropped)
    late.speak()
    refused = partial(a.count, "dragoman_preview_refused_total", reason="inbox_full")
    await wait_until(lambda: refused() == 1, TIMEOUT_S)
    b.services.handlers.register(ToPreview, b.services.node_previews.on_message, rehome=drop_silently)
    blocked.set()
    client.speak(1, cut=True)
    await client.has_results(0)
    assert node.jobs[0]["preview_id"] == preview_id


async def test_audio_for_a_node_that_does_not_read_is_dropped(open_instance: OpenInstance) -> None:
    a = await open_instance()
    node = await a.node("n", previews=1, working=True)
    client = Client(a)
    client.speak()
    preview_id = await opened(node)
    node.socket.buffered = previews.SLOW_NODE_BYTES + 1
    dropped = partial(a.count, "dragoman_preview_audio_dropped_total", reason="slow_node")
    await client.speak_until(dropped)
    client.speak(1, cut=True)
    await client.has_results(0)
    assert await closed(node, preview_id) == "cut"


async def test_a_preview_whose_session_is_gone_with_its_instance_is_closed(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await open_instance()
    node = await a.node("n", previews=1)
    frames = ToPreview("n", node.local.epoch, "preview-1", "gone", [], opens=True)
    a.services.node_previews.on_message(frames)
    assert len(node.local.previews) == 1
    monkeypatch.setattr(previews, "IDLE_S", 0.0)
    assert await closed(node, "preview-1") == "cancelled"
    assert not node.local.previews


class Talkative:
    """Answers every piece of audio of a preview with words, and every job with a result."""

    def __init__(self, node: InProcessNode) -> None:
        self._node, self._pieces = node, Counter[str]()

    def hears(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "preview_audio":
                self._pieces[message["preview_id"]] += 1
                self._node.preview(message["preview_id"], f"{self._pieces[message['preview_id']]} pieces")
            case "preview_close":
                self._node.preview(message["preview_id"], "late words")
            case "job_assign":
                self._node.answer(message)


async def talk(client: Client, pieces: int) -> None:
    for number in range(pieces):
        client.speak(1, cut=number == pieces - 1)
        await asyncio.sleep(CHUNK_MS / 1000)


@pytest.mark.long
async def test_a_hundred_speakers_at_once_see_words_and_none_after_a_result(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    for id, instance in (("n1", a), ("n2", b)):
        node = await instance.node(id, slots=100, previews=50)
        node.socket.listen(Talkative(node).hears)
    await wait_until(lambda: a.knows("n2") and b.knows("n1"), TIMEOUT_S)
    clients = [Client(a if number % 2 else b) for number in range(100)]
    async with asyncio.TaskGroup() as talking:
        for client in clients:
            talking.create_task(talk(client, 12))
    for client in clients:
        await client.has_results(0)
    for client in clients:
        kinds = [message["type"] for message in client.socket.sent]
        assert "asr_partial" not in kinds[kinds.index("translation_result") :]
        assert "late words" not in [text for _, text in client.partials]
    assert sum(bool(client.partials) for client in clients) > 90
    for instance in (a, b):
        await wait_until(lambda instance=instance: instance.count("dragoman_previews") == 0, TIMEOUT_S)  # type: ignore[misc]
        assert not any(node.previews for node in instance.services.local_nodes.all())


async def test_a_node_slower_than_real_time_delays_no_result(open_instance: OpenInstance) -> None:
    a = await open_instance()
    engine = SimEngine(SimSettings(delay_ms=0, jitter_ms=0, preview_ms=60_000))
    node = Node(f"ws{a.base.removeprefix('http')}/ws/node", engine, languages=["en", "es"], node_id="slow")
    running = asyncio.create_task(node.run())
    await wait_until(lambda: a.knows("slow"), TIMEOUT_S)
    client = Client(a)
    await talk(client, 5)
    await client.has_results(0)
    assert all("job_id" in one for one in client.socket.of("asr_partial"))
    node.stop()
    await running


async def test_previews_follow_the_voice_detector_through_cuts_by_length_and_by_silence(
    open_instance: OpenInstance,
) -> None:
    """What a preview gets begins with the audio of its job; a cut at the quietest point may be before its end."""
    a = await open_instance(speech__max_duration_ms=2000)
    node = await a.node("n", previews=2, working=True)
    client = Client(a, wants=False, vad="server", audio_format="pcm16")
    stream = silent(600) + vowel(3000) + silent(900) + vowel(600) + silent(900)
    for at in range(0, len(stream), 6400):
        client.seq += 1
        client.session.chunk(stream[at : at + 6400], False, client.seq)
        await asyncio.sleep(0.05)
    await wait_until(lambda: len(client.results) >= 3 and len(client.results) == len(node.jobs), TIMEOUT_S)
    jobs = {job["preview_id"]: base64.b64decode(job["audio"]) for job in node.jobs}
    assert list(jobs) == node.previews
    for preview_id in node.previews:
        previewed = node.previewed(preview_id)
        shorter = min(len(previewed), len(jobs[preview_id]))
        assert shorter
        assert previewed[:shorter] == jobs[preview_id][:shorter]
        assert await closed(node, preview_id) == "cut"
