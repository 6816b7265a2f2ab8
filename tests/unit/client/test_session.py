import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from dragoman.client import (
    Failed,
    Partial,
    Progress,
    Recording,
    Rejected,
    Result,
    Session,
    SessionClosed,
    SessionError,
    Throttle,
    Throttled,
    Unreachable,
    UnsupportedAudio,
)
from dragoman.protocol.audio import decode_base64, opus_packets
from dragoman.protocol.codes import BadAudio
from dragoman.protocol.session import (
    AsrPartial,
    AudioChunk,
    Backpressure,
    ClientHeartbeat,
    Error,
    SessionClose,
    SessionInit,
    TtsPlayEnded,
    TtsStarted,
    Utterance,
)
from support.waiting import ON_BOTH_LOOPS
from unit.client.fake_server import QUICK, FakeServer, run_of, serving, session_at
from unit.client.test_recording import wav


async def texts(session: Session) -> list[str]:
    """Results to the end of the session."""
    return [result.text_asr async for result in session.results()]


# ---------------------------------------------------------------- opening


@ON_BOTH_LOOPS
async def test_a_session_in_ten_lines(server: FakeServer) -> None:
    heard = []
    async with session_at(server) as session:
        async for result in session.translate([run_of(13), run_of(13)], fast=True):
            heard.append((result.index, result.text_translated))
    assert heard == [(0, f"[es] {26 * 5} bytes")]


async def test_session_init_has_identity_and_languages(server: FakeServer) -> None:
    options = {"src": "auto", "tgt": "zh", "mode": "two_way_auto", "lang_a": "en", "lang_b": "zh"}
    features = {"emotion": True}
    async with session_at(server, token="t0ken", sample_rate=8000, features=features, **options) as session:
        init = await server.hears(SessionInit)
        assert (init.src_lang, init.tgt_lang, init.lang_a, init.token) == ("auto", "zh", "en", "t0ken")
        assert (init.resume, init.audio_format, init.sample_rate) == (True, "opus", 8000)
        assert bytes(init.features) == b'{"emotion":true}'
        assert (session.id, session.trace_id) == ("s-1", "trace-s-1")


async def test_unreachable_server_is_reported_at_once() -> None:
    async with serving() as server:
        url = server.url
    with pytest.raises(Unreachable, match="not connected to ws"):
        async with Session(url, src="en", tgt="es"):
            pass


async def test_a_session_the_server_refuses_is_not_opened(server: FakeServer) -> None:
    server.refuses = Error(code="INVALID_MESSAGE", message="Field `audio_format`: use opus or pcm16.")
    with pytest.raises(SessionError, match="use opus or pcm16") as error:
        async with session_at(server, audio_format="mp3"):
            pass
    assert error.value.code == "INVALID_MESSAGE"
    await server.connections[0].gone.wait()


async def test_refused_token_is_reported(server: FakeServer) -> None:
    server.hangs_up_with = 4501
    with pytest.raises(SessionError) as error:
        async with session_at(server):
            pass
    assert error.value.code == "UNAUTHORIZED"
    assert len(server.connections) == 1


async def test_an_instance_that_is_leaving_is_asked_again(server: FakeServer) -> None:
    server.hangs_up_with = 4000
    opening = asyncio.ensure_future(session_at(server).open())
    await server.until(lambda: len(server.connections) >= 2)
    server.hangs_up_with = None
    await opening


async def test_opening_can_be_given_up(server: FakeServer) -> None:
    server.silent = True
    session = session_at(server)
    opening = asyncio.ensure_future(session.open())
    await server.hears(SessionInit)
    opening.cancel()
    await asyncio.wait({opening})
    await server.connections[0].gone.wait()


async def test_a_server_that_does_not_answer_is_left_for_the_next() -> None:
    async with serving() as mute, serving() as server:
        mute.silent = True
        quick = dataclasses.replace(QUICK, answer_s=0.05)
        async with session_at(server, url=[mute.url, server.url], timing=quick) as session:
            assert session.id == "s-1"


# ---------------------------------------------------------------- speaking


async def test_chunks_are_numbered_and_a_cut_makes_an_utterance(session: Session, server: FakeServer) -> None:
    await session.send(run_of(1))
    await session.send(run_of(2))
    await session.cut()
    await session.send(run_of(3), final=True)
    await server.until(lambda: len(server.session.utterances) == 2)
    assert server.session.utterances == [run_of(3), run_of(3)]
    sent = [message for message in server.received if isinstance(message, AudioChunk)]
    assert [(chunk.seq, chunk.is_final) for chunk in sent] == [(1, False), (2, False), (3, True), (4, True)]
    assert decode_base64(sent[2].payload) == b""


async def test_binary_frames_are_sent_where_the_server_wants_them(server: FakeServer) -> None:
    server.binary = True
    async with session_at(server) as session:
        await session.send(run_of(2))
        await session.cut()
        await server.until(lambda: len(server.session.utterances) == 1)
        assert [(frame.seq, frame.is_final, frame.audio) for frame in server.frames] == [
            (1, False, run_of(2)),
            (2, True, b""),
        ]


async def test_a_large_chunk_goes_out_in_pieces(server: FakeServer) -> None:
    async with session_at(server, audio_format="pcm16") as session:
        await session.send(bytes(100_000), final=True)
        await server.until(lambda: server.session.utterances)
        assert server.session.utterances == [bytes(100_000)]
        sent = [message for message in server.received if isinstance(message, AudioChunk)]
        assert [chunk.is_final for chunk in sent] == [False, False, True]
        assert max(len(chunk.payload) for chunk in sent) <= 64_002


async def test_nothing_is_not_sent(session: Session, server: FakeServer) -> None:
    await session.send(b"")
    await session.send(run_of(1), final=True)
    await server.until(lambda: server.session.utterances)
    assert server.session.chunk_seqs == [1]


@pytest.mark.parametrize(("format", "data"), [("opus", b"\x05\x00abc"), ("pcm16", b"odd")])
async def test_broken_audio_is_refused_before_it_is_sent(server: FakeServer, format: str, data: bytes) -> None:
    async with session_at(server, audio_format=format) as session:
        with pytest.raises(BadAudio):
            await session.send(data)
        with pytest.raises(BadAudio):
            await session.utterance(data)
        assert not any(isinstance(message, AudioChunk | Utterance) for message in server.received)


async def test_utterances_are_numbered_and_answered(session: Session, server: FakeServer) -> None:
    numbers = [await session.utterance(run_of(1)), await session.utterance(bytes(8), audio_format="pcm16")]
    assert numbers == [0, 1]
    await session.finish()
    assert await texts(session) == ["5 bytes", "8 bytes"]


async def test_many_may_speak_and_each_is_sent_whole(server: FakeServer) -> None:
    async with session_at(server, audio_format="pcm16") as session:
        await asyncio.gather(*(session.send(bytes([n]) * 60_000) for n in range(4)))
        await session.cut()
        await server.until(lambda: server.session.utterances)
        said = server.session.utterances[0]
        assert [said[at] for at in range(0, len(said), 30_000)] == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_pause_holds_chunks_back_and_then_they_go(session: Session, server: FakeServer) -> None:
    server.says(Backpressure(action="PAUSE", resume_after_ms=150, message="Redis is away"))
    events = session.events()
    assert await anext(events) == Throttled("PAUSE", 150, "Redis is away")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await session.send(run_of(1), final=True)
    assert loop.time() - began >= 0.14
    await server.until(lambda: server.session.utterances)


async def test_a_busy_server_gets_one_chunk_at_a_time(server: FakeServer) -> None:
    async with session_at(server, throttle=Throttle(per_s=10_000, slow_s=0.05)) as session:
        server.says(Backpressure(action="BUSY", resume_after_ms=10_000))
        await anext(session.events())
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(4):
            await session.send(run_of(1))
        assert loop.time() - began >= 0.14


async def test_a_recording_is_spoken_at_the_pace_of_speech(session: Session, server: FakeServer) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await session.speak([run_of(4)] * 3)
    assert loop.time() - began >= 0.23
    await session.speak([run_of(400)] * 3, fast=True)
    assert loop.time() - began < 10


async def test_recording_is_sent_in_shorter_pieces_at_the_pace_of_speech(session: Session, server: FakeServer) -> None:
    recording = Recording("opus", 16_000, run_of(20))
    for fast, packets in ((False, [3, 3, 3, 3, 3, 3, 2]), (True, [13, 7])):
        server.received.clear()
        await session.speak(recording, fast=fast)
        await session.wait_answered()
        sent = [one.payload for one in server.received if isinstance(one, AudioChunk) and one.payload]
        assert [count for payload in sent if (count := opus_packets(decode_base64(payload)))] == packets


async def test_playback_marks_are_sent_for_results_that_have_a_group(session: Session, server: FakeServer) -> None:
    await session.utterance(run_of(1))
    result = await anext(session.results())
    session.tts_started(result)
    session.tts_play_ended(result)
    started, ended = await server.hears(TtsStarted), await server.hears(TtsPlayEnded)
    assert (started.session_id, started.trace_id, started.group_id) == ("s-1", "trace-0", "group_s-1_0")
    assert ended.group_id == started.group_id
    ungrouped = Result(msgspec.structs.replace(result.message, group_id=None))
    session.tts_started(ungrouped)
    session.tts_play_ended(ungrouped)
    await session.utterance(run_of(1))
    await server.until(lambda: len(server.session.utterances) == 2)
    assert len([message for message in server.received if isinstance(message, TtsStarted | TtsPlayEnded)]) == 2


# ---------------------------------------------------------------- files


async def test_a_file_is_streamed_in_its_own_format(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(wav(8000, samples=bytes(8000)))
    async with session_at(server) as session:
        assert [result.text_asr async for result in session.stream_file(path, fast=True)] == ["8000 bytes"]
    assert [(one.format, one.sample_rate) for one in server.sessions.values()] == [("opus", 16000), ("pcm16", 8000)]
    assert (await server.hears(SessionClose)).session_id == "s-1"  # the one nobody spoke in


@pytest.mark.parametrize("size", [2, 4094, 4098, 8190, 8192, 8194, 20_002])
async def test_file_is_streamed_to_its_last_sample_when_the_last_piece_is_short(
    server: FakeServer, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(wav(16_000, samples=bytes(size)))
    async with session_at(server) as session:
        assert [result.text_asr async for result in session.stream_file(path, fast=True)] == [f"{size} bytes"]


async def test_a_file_whose_session_is_not_answered_is_streamed_on_another_connection(
    server: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(wav(8000, samples=bytes(8000)))
    async with session_at(server, timing=dataclasses.replace(QUICK, answer_s=0.05)) as session:
        server.silent = True
        results = session.stream_file(path, fast=True)
        first = asyncio.ensure_future(anext(results))
        await server.hears(SessionInit, lambda init: init.audio_format == "pcm16")
        server.silent = False
        assert (await first).text_asr == "8000 bytes"
    assert server.connections[0].gone.is_set()
    assert server.connections[-1].session is server.session


async def test_a_file_of_the_sessions_format_needs_no_other_session(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "speech.opus-packets"
    path.write_bytes(run_of(30))
    async with session_at(server) as session:
        assert [result.text_asr async for result in session.stream_file(path, fast=True)] == ["150 bytes"]
    assert len(server.sessions) == 1


async def test_a_session_that_was_spoken_in_does_not_change_its_format(session: Session, server: FakeServer) -> None:
    await session.send(run_of(1))
    with pytest.raises(SessionError, match="the recording is pcm16 at 16000 Hz, not opus at 16000 Hz"):
        await session.speak(Recording("pcm16", 16000, bytes(100)))


async def test_a_file_that_cannot_be_sent_is_refused_before_anything_is_said(
    server: FakeServer, tmp_path: Path
) -> None:
    (tmp_path / "song.mp3").write_bytes(b"ID3 la la la")
    async with session_at(server) as session:
        with pytest.raises(UnsupportedAudio):
            session.stream_file(tmp_path / "song.mp3")
        with pytest.raises(FileNotFoundError):
            session.stream_file(tmp_path / "nowhere.wav")


# ---------------------------------------------------------------- listening


def partial_of(text: str) -> AsrPartial:
    return AsrPartial(session_id="s-1", utterance_index=0, job_id="job-0", text=text, is_final=False, trace_id="t")


async def test_events_come_in_the_order_of_arrival(server: FakeServer) -> None:
    server.answers = False
    async with session_at(server) as session:
        for _ in range(3):
            await session.utterance(run_of(1))
        await server.until(lambda: len(server.session.utterances) == 3)
        server.translates(1)
        server.says(partial_of("so far"))
        server.translates(0, backfilled=True)
        server.fails(2, "JOB_TIMEOUT", "the job took too long")
        server.says(Error(code="INVALID_MESSAGE", message="what?"))
        await session.close()
        seen = [event async for event in session if not isinstance(event, Progress)]
        assert [type(event) for event in seen] == [Result, Partial, Result, Failed, Rejected]
        assert [event.index for event in seen if isinstance(event, Result)] == [1, 0]
        assert [event.backfilled for event in seen if isinstance(event, Result)] == [False, True]


async def test_an_utterance_that_failed_raises_among_results_and_the_session_goes_on(server: FakeServer) -> None:
    server.answers = False
    async with session_at(server) as session:
        await session.utterance(run_of(1))
        await session.utterance(run_of(1))
        await server.until(lambda: len(server.session.utterances) == 2)
        server.fails(0, "NO_AVAILABLE_NODE", "no node for this job")
        server.translates(1, "fine")
        with pytest.raises(SessionError, match="utterance 0: no node for this job") as error:
            await anext(session.results())
        assert (error.value.code, error.value.index) == ("NO_AVAILABLE_NODE", 0)
        assert (await anext(session.results())).text_asr == "fine"


async def test_refused_utterance_raises_among_the_results(session: Session, server: FakeServer) -> None:
    server.says(Error(code="INVALID_MESSAGE", message="The audio is not valid base64."))
    with pytest.raises(SessionError, match="not valid base64"):
        await anext(session.results())


async def test_unreadable_message_is_ignored(session: Session, server: FakeServer) -> None:
    transport = server.connections[0].transport
    assert transport is not None
    for nonsense in (b"{", b'{"type":"news"}', b'{"type":"asr_partial"}'):
        transport.send(1, nonsense)  # type: ignore[arg-type]
    await session.utterance(run_of(1))
    assert (await anext(session.results())).index == 0


# ---------------------------------------------------------------- the whole of it


async def live(pieces: int, then: Exception | None = None) -> AsyncIterator[bytes]:
    for _ in range(pieces):
        await asyncio.sleep(0)
        yield run_of(1)
    if then is not None:
        raise then


async def test_live_audio_is_translated_as_it_comes(session: Session, server: FakeServer) -> None:
    assert [result.text_asr async for result in session.translate(live(4))] == ["20 bytes"]


async def test_a_source_that_breaks_ends_the_session_with_its_error(session: Session, server: FakeServer) -> None:
    with pytest.raises(OSError, match="the microphone is gone"):
        await anext(session.translate(live(3, OSError("the microphone is gone"))))
    assert (await server.hears(SessionClose)).reason == "error"


async def test_the_last_result_is_waited_for_before_the_session_is_closed(server: FakeServer) -> None:
    server.answers = False

    async def late() -> None:
        await server.until(lambda: server.session.utterances)
        server.translates(0, "late")

    async with session_at(server) as session:
        answering = asyncio.ensure_future(late())
        assert [result.text_asr async for result in session.translate([run_of(1)])] == ["late"]
        await answering
    order = [type(message) for message in server.received]
    assert order.index(SessionClose) == len(order) - 1


async def test_an_earlier_result_is_waited_for_as_well(server: FakeServer) -> None:
    server.answers = False
    async with session_at(server, timing=dataclasses.replace(QUICK, settle_s=60)) as session:
        for length in (1, 2):
            await session.send(run_of(length), final=True)
        await server.until(lambda: len(server.session.utterances) == 2)
        settled = asyncio.ensure_future(session.wait_answered())
        results = session.results()
        server.translates(1)
        assert (await anext(results)).index == 1
        for _ in range(10):
            await asyncio.sleep(0)  # whoever heard of it has done what it does then
        assert not settled.done()
        server.translates(0)
        await settled
        assert (await anext(results)).index == 0


async def test_an_empty_utterance_is_not_waited_for_for_ever(server: FakeServer) -> None:
    server.answers = False
    async with session_at(server) as session:
        assert [result async for result in session.translate([run_of(1)])] == []


async def test_leaving_the_loop_stops_the_speech(server: FakeServer) -> None:
    async with session_at(server) as session:
        await session.utterance(run_of(1))
        async for _ in session.results():
            break
    await server.hears(SessionClose)
    await server.connections[0].gone.wait()
    async with session_at(server) as session:
        server.translates(0)
        async for _ in session.translate([run_of(50)] * 100):
            break
    assert len(server.session.chunk_seqs) < 100


# ---------------------------------------------------------------- closing


async def test_closing_waits_for_outstanding_results_and_the_ack(server: FakeServer) -> None:
    server.acks_close = False
    async with session_at(server) as session:
        await session.send(run_of(2))
        closing = asyncio.ensure_future(session.close())
        assert (await server.hears(SessionClose)).session_id == "s-1"
        assert not closing.done()
        server.heard(server.connections[0], SessionClose("s-1", "again"))
        server.acks_close = True
        server.heard(server.connections[0], SessionClose("s-1", "again"))
        await closing
        assert await texts(session) == ["10 bytes"]
    assert server.connections[0].goodbye == 1000


async def test_a_server_that_does_not_ack_is_left_anyway(server: FakeServer) -> None:
    server.acks_close = False
    quick = dataclasses.replace(QUICK, close_s=0.05)
    async with session_at(server, timing=quick) as session:
        pass
    assert await texts(session) == []
    await server.connections[0].gone.wait()


async def test_an_exception_inside_closes_without_waiting(server: FakeServer) -> None:
    server.acks_close = False
    with pytest.raises(KeyError):
        async with session_at(server):
            raise KeyError
    await server.hears(SessionClose)
    await server.connections[0].gone.wait()


async def test_nothing_can_be_said_after_the_end(server: FakeServer) -> None:
    async with session_at(server) as session:
        pass
    for saying in (session.send(run_of(1)), session.cut(), session.utterance(run_of(1))):
        with pytest.raises(SessionClosed):
            await saying
    await session.close()
    await session.abort()


async def test_a_session_that_was_never_opened_can_be_closed() -> None:
    await Session("ws://127.0.0.1:1/ws/session", src="en", tgt="es").close()


async def test_heartbeats_acknowledge_received_messages(server: FakeServer) -> None:
    async with session_at(server, timing=dataclasses.replace(QUICK, heartbeat_s=0.01)) as session:
        await session.utterance(run_of(1))
        await anext(session.results())
        beat = await server.hears(ClientHeartbeat, lambda beat: (beat.last_seq or 0) >= 3)
        assert beat.session_id == "s-1"
