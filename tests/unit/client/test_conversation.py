from typing import Any

import pytest

from dragoman.client import Detected, Ended, Failed, Partial, Pressed, Progress, Refused, Result, Resumed, SessionError
from dragoman.client.conversation import MAX_MESSAGE_BYTES, Chunk, Conversation
from dragoman.protocol import audio, codec
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


def begun(resume: bool = True, **fields: Any) -> Conversation:
    talk = Conversation(SessionInit("test", "web", "en", "es", token="t0ken", resume=resume))
    assert talk.opened(ack(**fields)) is None
    return talk


def numbers(again: list[Chunk | Utterance]) -> list[int]:
    return [what.seq if isinstance(what, Chunk) else what.utterance_index for what in again]


# ---------------------------------------------------------------- opening and resuming


def test_the_first_word_is_session_init_and_after_that_session_resume() -> None:
    talk = Conversation(SessionInit("test", "web", "en", "es", token="t0ken", resume=True))
    assert talk.hello() is talk.opening
    talk.opened(ack())
    talk.receive(result("s-1", 0, seq=7))
    assert talk.hello() == SessionResume("s-1", "token-1", 7, "t0ken")


@pytest.mark.parametrize(("resume", "token"), [(False, "token-1"), (True, None)])
def test_without_our_wish_or_the_servers_token_there_is_no_resume(resume: bool, token: str | None) -> None:
    talk = begun(resume, resume_token=token)
    assert not talk.can_resume
    assert talk.hello() is talk.opening
    talk.chunk(run_of(1), False, 0)
    assert talk.again() == []
    assert talk.heartbeat(5).last_seq is None


def test_chunks_are_numbered_from_1_so_that_0_is_none() -> None:
    talk = begun()
    assert [talk.chunk(run_of(1), False, 0).seq for _ in range(3)] == [1, 2, 3]


def test_what_is_not_in_a_cut_is_said_again() -> None:
    talk = begun()
    for number in range(1, 7):
        talk.chunk(run_of(number), number == 3, 0)
    assert talk.opened(ack(resumed=True, audio_seq=3, next_index=1)) == Resumed("s-1", 3, 0)
    assert numbers(talk.again()) == [4, 5, 6]
    assert talk.chunk(run_of(1), False, 0).seq == 7


@pytest.mark.parametrize("audio_seq", [None, 0])
def test_everything_is_said_again_when_nothing_was_cut(audio_seq: int | None) -> None:
    talk = begun()
    for _ in range(3):
        talk.chunk(run_of(1), False, 0)
    talk.opened(ack(resumed=True, audio_seq=audio_seq))
    assert numbers(talk.again()) == [1, 2, 3]


def test_what_was_too_old_to_be_kept_is_told() -> None:
    talk = begun()
    for _ in range(50):
        talk.chunk(bytes(48_000), False, 0)
    resumed = talk.opened(ack(resumed=True, audio_seq=2))
    kept = numbers(talk.again())
    assert kept[-1] == 50
    assert resumed == Resumed("s-1", len(kept), kept[0] - 3)
    assert sum(len(what.audio) for what in talk.again()) > 1_500_000 + 48_000  # more than a server collects


def test_utterances_the_server_has_not_had_are_said_again() -> None:
    talk = begun()
    for _ in range(4):
        talk.utterance(run_of(1), "opus", 16000)
    talk.opened(ack(resumed=True, next_index=2))
    assert numbers(talk.again()) == [2, 3]


def test_an_utterance_the_server_spoke_of_is_not_kept() -> None:
    talk = begun()
    for _ in range(4):
        talk.utterance(run_of(1), "opus", 16000)
    talk.receive(step("s-1", 0, "DISPATCHED"))
    talk.receive(result("s-1", 1))
    talk.receive(Error(code="JOB_TIMEOUT", message="too long", details={"utterance_index": 2}))
    assert numbers(talk.again()) == [3]


def test_what_was_heard_before_is_not_heard_again() -> None:
    talk = begun()
    assert talk.receive(result("s-1", 0, seq=2)) is not None
    assert talk.receive(result("s-1", 1, seq=3)) is not None
    assert talk.receive(result("s-1", 1, seq=3)) is None
    assert talk.receive(result("s-1", 0, seq=2)) is None
    assert talk.receive(result("s-1", 2, seq=4)) is not None


def test_the_ack_of_a_resume_does_not_hide_the_older_messages_behind_it() -> None:
    talk = begun()
    talk.receive(result("s-1", 0, seq=2))
    talk.opened(ack(resumed=True, seq=5))
    assert isinstance(talk.receive(result("s-1", 1, seq=3)), Result)
    assert isinstance(talk.receive(result("s-1", 2, seq=4)), Result)
    assert talk.receive(ack(resumed=True, seq=5)) is None
    assert talk.last_seq == 5


def test_a_heartbeat_tells_what_was_heard() -> None:
    talk = begun()
    talk.receive(ServerHeartbeat(session_id="s-1", timestamp=1, seq=2))
    heartbeat = talk.heartbeat(99)
    assert (heartbeat.session_id, heartbeat.timestamp, heartbeat.last_seq) == ("s-1", 99, 2)


# ---------------------------------------------------------------- speaking


def test_a_chunk_is_text_or_binary_as_the_server_wants_it() -> None:
    talk = begun()
    frame = talk.frame(talk.chunk(run_of(2), True, 1234))
    sent = codec.decode_client(frame.data)
    assert isinstance(sent, AudioChunk)
    assert (sent.session_id, sent.seq, sent.is_final, sent.client_timestamp_ms) == ("s-1", 1, True, 1234)
    assert (frame.binary, audio.decode_base64(sent.payload)) == (False, run_of(2))
    talk.opened(ack(resumed=True, use_binary_frame=True))
    for chunk in talk.again():
        frame = talk.frame(chunk)
        assert frame.binary
        assert audio.parse_frame(frame.data) == (audio.FrameKind.CHUNK, "s-1", 1, 1234, True, run_of(2))


def test_an_empty_final_has_a_frame_of_its_own() -> None:
    talk = begun(use_binary_frame=True)
    frame = talk.frame(talk.chunk(b"", True, 2**40 + 5))
    assert audio.parse_frame(frame.data) == (audio.FrameKind.FINAL, "s-1", 1, 5, True, b"")


def test_an_utterance_has_the_languages_of_the_session_unless_told_otherwise() -> None:
    talk = begun()
    first = talk.utterance(run_of(3), "opus", 16000)
    second = talk.utterance(bytes(4), "pcm16", 8000, tgt_lang="zh")
    assert (first.utterance_index, first.src_lang, first.tgt_lang, first.manual_cut) == (0, "en", "es", True)
    assert (second.utterance_index, second.tgt_lang, second.sample_rate) == (1, "zh", 8000)
    assert codec.decode_client(talk.frame(first).data) == first


def test_an_utterance_no_server_would_take_is_refused_here() -> None:
    talk = begun()
    with pytest.raises(ValueError, match="more than the 750000"):
        talk.utterance(bytes(MAX_MESSAGE_BYTES), "pcm16", 16000)
    assert talk.utterance(bytes(4), "pcm16", 16000).utterance_index == 0


def test_chunks_and_utterances_are_not_mixed() -> None:
    by_chunks, by_utterances = begun(), begun()
    by_chunks.chunk(run_of(1), False, 0)
    with pytest.raises(SessionError, match="fed by audio chunks"):
        by_chunks.utterance(run_of(1), "opus", 16000)
    by_utterances.utterance(run_of(1), "opus", 16000)
    with pytest.raises(SessionError, match="fed by numbered utterances"):
        by_utterances.chunk(run_of(1), False, 0)


# ---------------------------------------------------------------- listening


def test_every_message_that_concerns_a_user_is_an_event() -> None:
    talk = begun()
    assert talk.receive(AsrPartial("s-1", 0, "job-0", "so far", True, "t")) == Partial(
        "s-1", 0, "so far", True, "job-0"
    )
    assert talk.receive(step("s-1", 0)) == Progress("s-1", 0, "DISPATCHED", 1.0, "job-0")
    told = result("s-1", 0)
    assert talk.receive(told) == Result(told)
    assert talk.receive(UtteranceEnd("s-1", 0, "sent", "job-0")) == Ended("s-1", 0, "sent", "job-0")
    assert talk.receive(Backpressure(action="PAUSE", resume_after_ms=9)) == Pressed("PAUSE", 9, "")
    assert talk.receive(LanguageDetected(session_id="s-1", lang="en", confidence=0.9)) == Detected("en", 0.9)
    assert talk.receive(ServerHeartbeat(session_id="s-1", timestamp=1)) is None


def test_an_error_about_an_utterance_is_its_failure_and_any_other_a_refusal() -> None:
    talk = begun()
    failed = talk.receive(Error(code="JOB_TIMEOUT", message="too long", details={"utterance_index": 3, "job_id": "j"}))
    assert failed == Failed("s-1", 3, "JOB_TIMEOUT", "too long", "j")
    for details in (None, "words", {"utterance_index": "three"}, {}):
        assert talk.receive(Error(code="X", message="no", details=details)) == Refused("X", "no")


def test_an_answer_is_awaited_until_every_utterance_has_one() -> None:
    talk = begun()
    talk.chunk(run_of(1), False, 0)
    awaited = [talk.awaits_answer]
    said = (step("s-1", 0), result("s-1", 0), step("s-1", 1), step("s-1", 2), result("s-1", 2), result("s-1", 1))
    for message in said:
        talk.receive(message)
        awaited.append(talk.awaits_answer)
    assert awaited == [False, True, False, True, True, True, False]


@pytest.mark.parametrize("state", ["empty", "skipped"])
def test_no_answer_is_awaited_for_an_utterance_that_ended_without_one(state: str) -> None:
    talk = begun()
    talk.chunk(run_of(1), False, 0)
    awaited = []
    for message in (step("s-1", 0), UtteranceEnd("s-1", 0, state)):
        talk.receive(message)
        awaited.append(talk.awaits_answer)
    assert awaited == [True, False]
    assert talk.failed_with_it("gone") == []


def test_an_utterance_is_known_by_a_later_one_that_was_heard_of_first() -> None:
    talk = begun()
    talk.chunk(run_of(1), False, 0)
    for message in (step("s-1", 1), result("s-1", 1)):
        talk.receive(message)
    assert talk.awaits_answer
    assert [failed.index for failed in talk.failed_with_it("gone")] == [0]
    talk.receive(result("s-1", 0))
    assert not talk.awaits_answer


def test_a_number_no_server_gives_does_not_make_us_count_to_it() -> None:
    talk = begun()
    talk.receive(result("s-1", 2**53))
    assert len(talk.failed_with_it("gone")) == 1024


def test_a_cut_is_unheard_until_something_new_is_placed() -> None:
    talk = begun()
    talk.receive(step("s-1", 0))
    talk.chunk(run_of(1), True, 0)
    unheard = []
    for message in (result("s-1", 0), step("s-1", 1)):
        talk.receive(message)
        unheard.append(talk.cut_unheard)
    assert unheard == [True, False]
