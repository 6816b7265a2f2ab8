from typing import Any, cast

import pytest

from dragoman.engines import EngineFailed, EngineTimeout
from dragoman.node import JobFailed, ModelNotAvailable, Result
from dragoman.node.results import ResultOutbox, encode_draining, encode_failure, encode_result
from dragoman.protocol import audio, codec
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.node import JobResult
from unit.node.fake_scheduler import assignment, details, job


def test_a_result_is_written_again_until_it_was_read() -> None:
    outbox = ResultOutbox(keep_s=30, linger_s=0)
    outbox.add(b"one", now=0)
    assert outbox.to_resend(now=1) == [b"one"]
    assert outbox.to_resend(now=2) == [b"one"]
    outbox.read(outbox.last_mark, now=3)
    assert outbox.to_resend(now=3) == []


def test_what_was_read_lingers_a_moment_in_case_its_reader_died() -> None:
    outbox = ResultOutbox(keep_s=30, linger_s=2)
    outbox.read(outbox.add(b"one", now=0), now=1)
    assert outbox.to_resend(now=2.9) == [b"one"]
    assert outbox.to_resend(now=3) == []
    assert outbox.lost == 0


def test_a_mark_covers_everything_before_it_and_nothing_after() -> None:
    outbox = ResultOutbox(keep_s=30, linger_s=0)
    outbox.add(b"one", now=0)
    second = outbox.add(b"two", now=0)
    outbox.add(b"three", now=0)
    outbox.read(second, now=1)
    assert outbox.to_resend(now=1) == [b"three"]
    assert not outbox.all_read


def test_what_nobody_read_in_time_is_given_up_and_counted() -> None:
    outbox = ResultOutbox(keep_s=30, linger_s=2)
    outbox.add(b"one", now=0)
    outbox.add(b"two", now=10)
    assert outbox.to_resend(now=30) == [b"two"]
    assert outbox.lost == 1


def test_the_oldest_go_when_there_is_too_much() -> None:
    outbox = ResultOutbox(max_bytes=10)
    for text in (b"11111", b"22222", b"33333"):
        outbox.add(text, now=0)
    assert outbox.to_resend(now=0) == [b"22222", b"33333"]
    assert outbox.lost == 1
    assert len(outbox) == 2


def test_an_empty_outbox_has_been_read() -> None:
    assert ResultOutbox().all_read


def test_an_outbox_has_been_read_when_its_last_result_was() -> None:
    outbox = ResultOutbox()
    seen = []
    for mark in (outbox.add(b"one", now=0), outbox.add(b"two", now=0)):
        seen.append(outbox.all_read)
        outbox.read(mark, now=1)
    assert [*seen, outbox.all_read] == [False, False, True]


def decoded(data: bytes) -> JobResult:
    message = codec.decode_node(data)
    assert isinstance(message, JobResult)
    return message


def test_a_result_belongs_to_its_job() -> None:
    given = Result("heard", "dicho", b"\x01\x00\x07", extra={"a": 1}, quality_score=0.5, reason_codes=["X"])
    told = decoded(encode_result(job(3, group_id="g", part_index=0), "node-1", given, 12.345))
    assert (told.job_id, told.attempt_id, told.node_id, told.trace_id) == ("job-3", 1, "node-1", "trace-3")
    assert (told.session_id, told.utterance_index, told.group_id, told.part_index) == ("s-1", 3, "g", 0)
    assert told.success
    assert (told.text_asr, told.text_translated, told.tts_format) == ("heard", "dicho", "opus")
    assert audio.decode_base64(told.tts_audio) == b"\x01\x00\x07"
    assert details(told.extra) == {"a": 1}
    assert details(told.reason_codes) == ["X"]
    assert (told.quality_score, told.processing_time_ms) == (0.5, 12.3)


def test_the_recognised_language_goes_into_extra() -> None:
    given = Result("heard", extra={"a": 1}, language="de", language_probability=0.9)
    told = decoded(encode_result(job(3), "node-1", given, 1))
    assert details(told.extra) == {"a": 1, "language": "de", "language_probability": 0.9}


@pytest.mark.parametrize("given", [None, Result(), Result(extra={"a": 1})])
def test_nothing_heard_is_an_empty_result(given: Result | None) -> None:
    told = decoded(encode_result(job(3), "node-1", given, 1))
    assert told.success
    assert codec.reason_of(told.extra) == "ASR_EMPTY"
    assert (told.text_asr, told.text_translated, bytes(told.tts_audio)) == ("", "", b'""')


def test_a_reason_of_the_handler_is_kept() -> None:
    told = decoded(encode_result(job(3), "node-1", Result(extra={"reason": "NO_TEXT_ASSIGNED"}), 1))
    assert codec.reason_of(told.extra) == "NO_TEXT_ASSIGNED"


@pytest.mark.parametrize(
    "given",
    ["text", Result(text_asr=cast(str, 5)), Result("\ud800"), Result("a", extra={"x": object()})],
)
def test_a_result_the_server_would_refuse_fails_at_once(given: Any) -> None:
    with pytest.raises((TypeError, ValueError, ProtocolError)):
        encode_result(job(3), "node-1", given, 1)


def test_a_result_too_large_for_a_server_fails_its_job_and_not_the_connection() -> None:
    with pytest.raises(ValueError, match="more than the 1000000"):
        encode_result(job(3), "node-1", Result("a", tts_audio=bytes(800_000)), 1)


def test_an_exception_is_a_processing_error() -> None:
    told = decoded(encode_failure(job(3), "node-1", RuntimeError("no \udcff luck" + "." * 1000), 1))
    assert not told.success
    assert told.error is not None
    assert told.error.code == "PROCESSING_ERROR"
    assert told.error.message.startswith("RuntimeError: no ? luck")
    assert len(told.error.message) == 500


@pytest.mark.parametrize(
    ("error", "final"),
    [(JobFailed("x"), True), (EngineFailed("x"), True), (EngineTimeout("x"), False), (RuntimeError("x"), False)],
)
def test_only_a_failure_of_the_job_itself_is_final(error: Exception, final: bool) -> None:
    told = decoded(encode_failure(job(3), "node-1", error, 1))
    assert told.error is not None
    assert codec.is_final(told.error) is final


def test_a_missing_model_is_named() -> None:
    told = decoded(encode_failure(job(3), "node-1", ModelNotAvailable("nmt", "2.0", "not_loaded"), 1))
    assert told.error is not None
    assert told.error.code == "MODEL_NOT_AVAILABLE"
    assert codec.unavailable_model(told.error) == codec.ModelDetails("nmt", "2.0", "not_loaded")


def test_a_draining_node_sends_the_job_elsewhere() -> None:
    told = decoded(encode_draining(assignment(3), "node-1"))
    assert told.error is not None
    assert told.error.code == "MODEL_NOT_AVAILABLE"
    assert codec.unavailable_model(told.error) == codec.ModelDetails("drain", "", "draining")
