"""The state of a session as a client holds it, and the events it reports."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from dragoman.client import (
    Detected,
    Ended,
    Failed,
    Partial,
    Progress,
    Rejected,
    Result,
    Resumed,
    SessionClosed,
    SessionError,
    SessionLost,
    Throttled,
    Unreachable,
)
from dragoman.client.events import EventQueue
from dragoman.client.session_state import MAX_MESSAGE_BYTES, Chunk, ResendBuffer, SessionState
from dragoman.protocol import audio, codec
from dragoman.protocol.audio import encode_base64
from dragoman.protocol.session import (
    AsrPartial,
    AudioChunk,
    Backpressure,
    Error,
    LanguageDetected,
    ServerHeartbeat,
    SessionInit,
    SessionInitAck,
    SessionResume,
    Utterance,
    UtteranceEnd,
)
from unit.client.fake_server import result, run_of, step


def test_result_decodes_its_audio() -> None:
    made = Result(result("s-1", 3, "hello", tts_audio=encode_base64(b"sound"), backfilled=True))
    assert (made.session_id, made.index, made.job_id) == ("s-1", 3, "job-3")
    assert (made.text_asr, made.text_translated) == ("hello", "[es] hello")
    assert (made.tts_audio, made.tts_format, made.backfilled) == (b"sound", "opus", True)


def test_result_without_audio_has_empty_audio() -> None:
    assert Result(result("s-1", 3)).tts_audio == b""
    assert Result(result("s-1", 3)).backfilled is False


def partial(index: int) -> Partial:
    return Partial("s-1", index, "so far", False, f"job-{index}")


async def test_each_event_is_read_once_in_order() -> None:
    queue = EventQueue()
    queue.put(partial(1))
    queue.put(partial(2))
    queue.end()
    queue.put(partial(3))
    assert [await queue.get(), await queue.get(), await queue.get(), await queue.get()] == [
        partial(1),
        partial(2),
        None,
        None,
    ]


async def test_reader_waits_for_the_next_event() -> None:
    queue = EventQueue()
    reading = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.put(partial(1))
    assert await reading == partial(1)


async def test_readers_share_the_events_and_the_end() -> None:
    queue = EventQueue()
    readers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.put(partial(1))
    queue.end()
    assert sorted(map(str, await asyncio.gather(*readers))) == sorted(map(str, [partial(1), None, None]))


async def test_error_is_raised_after_the_last_event() -> None:
    queue = EventQueue()
    queue.put(partial(1))
    queue.end(ValueError("that is why"))
    queue.end()
    assert await queue.get() == partial(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="that is why"):
            await queue.get()


async def test_only_partials_are_dropped_without_a_reader() -> None:
    queue = EventQueue(max_unread=3)
    for index in range(4):
        queue.put(Detected("en", index))
    for index in range(5):
        queue.put(partial(index))
    assert len(queue) == 4
    assert [await queue.get() for _ in range(4)] == [Detected("en", index) for index in range(4)]


def test_error_has_message_code_and_index() -> None:
    error = SessionError("JOB_TIMEOUT", "the job took too long", 4)
    assert str(error) == "utterance 4: the job took too long (JOB_TIMEOUT)"
    assert (error.code, error.message, error.index) == ("JOB_TIMEOUT", "the job took too long", 4)


def test_every_error_is_a_session_error() -> None:
    for error in (Unreachable("no answer"), SessionLost("gone"), SessionClosed()):
        assert isinstance(error, SessionError)
        assert error.index is None
        assert error.code in str(error)


def ack(**fields: Any) -> SessionInitAck:
    told: dict[str, Any] = {"resume_token": "token-1", "seq": 1, "use_binary_frame": False} | fields
    return SessionInitAck(
        session_id="s-1",
        message="welcome",
        trace_id="trace-1",
        protocol_version="1.0",
        negotiated_codec="opus",
        negotiated_audio_format="opus",
        negotiated_sample_rate=16000,
        negotiated_channel_count=1,
        **told,
    )


def begun(resume: bool = True, **fields: Any) -> SessionState:
    state = SessionState(SessionInit("test", "web", "en", "es", token="t0ken", resume=resume))
    assert state.opened(ack(**fields)) is None
    return state


def numbers(again: list[Chunk | Utterance]) -> list[int]:
    return [what.seq if isinstance(what, Chunk) else what.utterance_index for what in again]


# ---------------------------------------------------------------- opening and resuming


def test_first_message_is_session_init_and_later_ones_session_resume() -> None:
    state = SessionState(SessionInit("test", "web", "en", "es", token="t0ken", resume=True))
    assert state.hello() is state.opening
    state.opened(ack())
    state.receive(result("s-1", 0, seq=7))
    assert state.hello() == SessionResume("s-1", "token-1", 7, "t0ken")


@pytest.mark.parametrize(("resume", "token"), [(False, "token-1"), (True, None)])
def test_without_our_wish_or_the_servers_token_there_is_no_resume(resume: bool, token: str | None) -> None:
    state = begun(resume, resume_token=token)
    assert not state.can_resume
    assert state.hello() is state.opening
    state.chunk(run_of(1), False, 0)
    assert state.to_resend() == []
    assert state.heartbeat(5).last_seq is None


def test_chunks_are_numbered_from_1_so_that_0_is_none() -> None:
    state = begun()
    assert [state.chunk(run_of(1), False, 0).seq for _ in range(3)] == [1, 2, 3]


def test_chunks_after_the_last_cut_are_resent() -> None:
    state = begun()
    for number in range(1, 7):
        state.chunk(run_of(number), number == 3, 0)
    assert state.opened(ack(resumed=True, audio_seq=3, next_index=1)) == Resumed("s-1", 3, 0)
    assert numbers(state.to_resend()) == [4, 5, 6]
    assert state.chunk(run_of(1), False, 0).seq == 7


@pytest.mark.parametrize("audio_seq", [None, 0])
def test_everything_is_said_again_when_nothing_was_cut(audio_seq: int | None) -> None:
    state = begun()
    for _ in range(3):
        state.chunk(run_of(1), False, 0)
    state.opened(ack(resumed=True, audio_seq=audio_seq))
    assert numbers(state.to_resend()) == [1, 2, 3]


def test_chunks_dropped_from_the_buffer_are_reported() -> None:
    state = begun()
    for _ in range(50):
        state.chunk(bytes(48_000), False, 0)
    resumed = state.opened(ack(resumed=True, audio_seq=2))
    buffer = numbers(state.to_resend())
    assert buffer[-1] == 50
    assert resumed == Resumed("s-1", len(buffer), buffer[0] - 3)
    assert sum(len(what.audio) for what in state.to_resend()) > 1_500_000 + 48_000  # more than a server collects


def test_utterances_the_server_has_not_had_are_said_again() -> None:
    state = begun()
    for _ in range(4):
        state.utterance(run_of(1), "opus", 16000)
    state.opened(ack(resumed=True, next_index=2))
    assert numbers(state.to_resend()) == [2, 3]


def test_an_utterance_the_server_spoke_of_is_not_buffer() -> None:
    state = begun()
    for _ in range(4):
        state.utterance(run_of(1), "opus", 16000)
    state.receive(step("s-1", 0, "DISPATCHED"))
    state.receive(result("s-1", 1))
    state.receive(Error(code="JOB_TIMEOUT", message="too long", details={"utterance_index": 2}))
    assert numbers(state.to_resend()) == [3]


def test_repeated_message_is_ignored() -> None:
    state = begun()
    assert state.receive(result("s-1", 0, seq=2)) is not None
    assert state.receive(result("s-1", 1, seq=3)) is not None
    assert state.receive(result("s-1", 1, seq=3)) is None
    assert state.receive(result("s-1", 0, seq=2)) is None
    assert state.receive(result("s-1", 2, seq=4)) is not None


def test_the_ack_of_a_resume_does_not_hide_the_older_messages_behind_it() -> None:
    state = begun()
    state.receive(result("s-1", 0, seq=2))
    state.opened(ack(resumed=True, seq=5))
    assert isinstance(state.receive(result("s-1", 1, seq=3)), Result)
    assert isinstance(state.receive(result("s-1", 2, seq=4)), Result)
    assert state.receive(ack(resumed=True, seq=5)) is None
    assert state.last_seq == 5


def test_heartbeat_acknowledges_received_messages() -> None:
    state = begun()
    state.receive(ServerHeartbeat(session_id="s-1", timestamp=1, seq=2))
    heartbeat = state.heartbeat(99)
    assert (heartbeat.session_id, heartbeat.timestamp, heartbeat.last_seq) == ("s-1", 99, 2)


# ---------------------------------------------------------------- speaking


def test_a_chunk_is_text_or_binary_as_the_server_wants_it() -> None:
    state = begun()
    frame = state.frame(state.chunk(run_of(2), True, 1234))
    sent = codec.decode_client(frame.data)
    assert isinstance(sent, AudioChunk)
    assert (sent.session_id, sent.seq, sent.is_final, sent.client_timestamp_ms) == ("s-1", 1, True, 1234)
    assert (frame.binary, audio.decode_base64(sent.payload)) == (False, run_of(2))
    state.opened(ack(resumed=True, use_binary_frame=True))
    for chunk in state.to_resend():
        frame = state.frame(chunk)
        assert frame.binary
        assert audio.parse_frame(frame.data) == (audio.FrameKind.CHUNK, "s-1", 1, 1234, True, run_of(2))


def test_an_empty_final_has_a_frame_of_its_own() -> None:
    state = begun(use_binary_frame=True)
    frame = state.frame(state.chunk(b"", True, 2**40 + 5))
    assert audio.parse_frame(frame.data) == (audio.FrameKind.FINAL, "s-1", 1, 5, True, b"")


def test_utterance_has_the_languages_of_the_session_by_default() -> None:
    state = begun()
    first = state.utterance(run_of(3), "opus", 16000)
    second = state.utterance(bytes(4), "pcm16", 8000, tgt_lang="zh")
    assert (first.utterance_index, first.src_lang, first.tgt_lang, first.manual_cut) == (0, "en", "es", True)
    assert (second.utterance_index, second.tgt_lang, second.sample_rate) == (1, "zh", 8000)
    assert codec.decode_client(state.frame(first).data) == first


def test_an_utterance_no_server_would_take_is_refused_here() -> None:
    state = begun()
    with pytest.raises(ValueError, match="more than the 750000"):
        state.utterance(bytes(MAX_MESSAGE_BYTES), "pcm16", 16000)
    assert state.utterance(bytes(4), "pcm16", 16000).utterance_index == 0


def test_chunks_and_utterances_are_not_mixed() -> None:
    by_chunks, by_utterances = begun(), begun()
    by_chunks.chunk(run_of(1), False, 0)
    with pytest.raises(SessionError, match="sends audio chunks"):
        by_chunks.utterance(run_of(1), "opus", 16000)
    by_utterances.utterance(run_of(1), "opus", 16000)
    with pytest.raises(SessionError, match="sends numbered utterances"):
        by_utterances.chunk(run_of(1), False, 0)


# ---------------------------------------------------------------- listening


def test_every_message_that_concerns_a_user_is_an_event() -> None:
    state = begun()
    about = AsrPartial(session_id="s-1", utterance_index=0, job_id="job-0", text="so far", is_final=True, trace_id="t")
    assert state.receive(about) == Partial("s-1", 0, "so far", True, "job-0")
    preview = AsrPartial(
        session_id="s-1", utterance_index=1, preview_id="preview-1", text="so", is_final=False, trace_id="t"
    )
    assert state.receive(preview) == Partial("s-1", 1, "so", False, "", "preview-1")
    assert state.receive(step("s-1", 0)) == Progress("s-1", 0, "DISPATCHED", 1.0, "job-0")
    told = result("s-1", 0)
    assert state.receive(told) == Result(told)
    assert state.receive(UtteranceEnd("s-1", 0, "sent", "job-0")) == Ended("s-1", 0, "sent", "job-0")
    assert state.receive(Backpressure(action="PAUSE", resume_after_ms=9)) == Throttled("PAUSE", 9, "")
    assert state.receive(LanguageDetected(session_id="s-1", lang="en", confidence=0.9)) == Detected("en", 0.9)
    assert state.receive(ServerHeartbeat(session_id="s-1", timestamp=1)) is None


def test_an_error_about_an_utterance_is_its_failure_and_any_other_a_refusal() -> None:
    state = begun()
    failed = state.receive(Error(code="JOB_TIMEOUT", message="too long", details={"utterance_index": 3, "job_id": "j"}))
    assert failed == Failed("s-1", 3, "JOB_TIMEOUT", "too long", "j")
    for details in (None, "words", {"utterance_index": "three"}, {}):
        assert state.receive(Error(code="X", message="no", details=details)) == Rejected("X", "no")


def test_an_answer_is_awaited_until_every_utterance_has_one() -> None:
    state = begun()
    state.chunk(run_of(1), False, 0)
    awaited = [state.awaits_answer]
    said = (step("s-1", 0), result("s-1", 0), step("s-1", 1), step("s-1", 2), result("s-1", 2), result("s-1", 1))
    for message in said:
        state.receive(message)
        awaited.append(state.awaits_answer)
    assert awaited == [False, True, False, True, True, True, False]


@pytest.mark.parametrize("how", ["empty", "skipped"])
def test_no_answer_is_awaited_for_an_utterance_that_ended_without_one(how: str) -> None:
    state = begun()
    state.chunk(run_of(1), False, 0)
    awaited = []
    for message in (step("s-1", 0), UtteranceEnd("s-1", 0, how)):
        state.receive(message)
        awaited.append(state.awaits_answer)
    assert awaited == [True, False]
    assert state.fail_unanswered("gone") == []


def test_result_of_a_later_utterance_identifies_an_earlier_one() -> None:
    state = begun()
    state.chunk(run_of(1), False, 0)
    for message in (step("s-1", 1), result("s-1", 1)):
        state.receive(message)
    assert state.awaits_answer
    assert [failed.index for failed in state.fail_unanswered("gone")] == [0]
    state.receive(result("s-1", 0))
    assert not state.awaits_answer


def test_a_number_no_server_gives_does_not_make_us_count_to_it() -> None:
    state = begun()
    state.receive(result("s-1", 2**53))
    assert len(state.fail_unanswered("gone")) == 1024


def test_a_cut_is_unheard_until_something_new_is_placed() -> None:
    state = begun()
    state.receive(step("s-1", 0))
    state.chunk(run_of(1), True, 0)
    unheard = []
    for message in (result("s-1", 0), step("s-1", 1)):
        state.receive(message)
        unheard.append(state.cut_pending)
    assert unheard == [True, False]


def filled(count: int, max_bytes: int = 1000) -> ResendBuffer[str]:
    buffer: ResendBuffer[str] = ResendBuffer(max_bytes)
    for number in range(1, count + 1):
        buffer.add(number, f"item {number}", 10)
    return buffer


def test_item_larger_than_the_buffer_is_dropped_at_once() -> None:
    buffer: ResendBuffer[str] = ResendBuffer(5)
    buffer.add(1, "large", 6)
    assert len(buffer) == 0
    assert buffer.dropped_to == 1


def test_client_package_imports_only_connection_and_protocol() -> None:
    script = "import sys, dragoman.client; print(*(name for name in sys.modules if name.startswith('dragoman.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert loaded == {"client", "connection", "protocol"}
