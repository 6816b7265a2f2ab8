"""From what a handler returned, or raised, to the bytes of a job_result that the server will take."""

import time
from typing import Any

from dragoman.node.job import Job, JobFailed, ModelNotAvailable, Result
from dragoman.protocol import audio, codec
from dragoman.protocol.codes import EmptyReason, ErrorCode
from dragoman.protocol.fields import ABSENT
from dragoman.protocol.node import JobAssign, JobError, JobResult

# A server takes messages of 1 MiB unless told otherwise, and does not want a node back that sends larger ones.
MAX_BYTES = 1_000_000
_MESSAGE_LENGTH = 500


def result(job: Job, node_id: str, given: Result | None, took_ms: float) -> bytes:
    """Raises ProtocolError, TypeError or ValueError if the handler's result cannot be sent."""
    if not isinstance(given, Result | None):
        raise TypeError(f"the handler must return a Result or None, not {type(given).__name__}")
    given = given or Result()
    extra = dict(given.extra or {})
    detected = {"language": given.language, "language_probability": given.language_probability}
    extra |= {name: value for name, value in detected.items() if value is not None}
    if given.is_empty:
        extra.setdefault("reason", EmptyReason.ASR_EMPTY)
    message = _blank(job.assign, node_id, success=True)
    message.text_asr = given.text_asr
    message.text_translated = given.text_translated
    message.tts_audio = audio.encode_base64(given.tts_audio)
    message.tts_format = given.tts_format
    message.extra = codec.raw(extra) if extra else ABSENT
    message.asr_quality_level = given.asr_quality_level
    message.quality_score = given.quality_score
    message.reason_codes = codec.raw(list(given.reason_codes)) if given.reason_codes else ABSENT
    message.processing_time_ms = round(took_ms, 1)
    data = codec.encode(message)
    # Encoding takes any type; what the server would refuse must fail here, where the author of the handler sees it.
    codec.decode_node(data)
    if len(data) > MAX_BYTES:
        raise ValueError(f"the result has {len(data)} bytes, more than the {MAX_BYTES} that a server takes")
    return data


def failure(job: Job, node_id: str, error: BaseException, took_ms: float) -> bytes:
    """A handler's exception as a job_result."""
    message = _blank(job.assign, node_id, success=False)
    message.processing_time_ms = round(took_ms, 1)
    if isinstance(error, ModelNotAvailable):
        message.error = _unavailable(str(error), error.service_id, error.version, error.reason)
    else:
        final = codec.raw({"final": True}) if isinstance(error, JobFailed) and error.final else ABSENT
        message.error = JobError(ErrorCode.PROCESSING_ERROR, _text(f"{type(error).__name__}: {error}"), final)
    return codec.encode(message)


def draining(assign: JobAssign, node_id: str) -> bytes:
    """No to a job that came while the node is leaving.

    MODEL_NOT_AVAILABLE is the one answer that makes a server place the job elsewhere at once. The service it names
    is one that no job needs, so its cool-down does not outlive the node's restart.
    """
    message = _blank(assign, node_id, success=False)
    message.error = _unavailable("The node is draining.", "drain", "", "draining")
    return codec.encode(message)


def _blank(assign: JobAssign, node_id: str, success: bool) -> JobResult:
    return JobResult(
        job_id=assign.job_id,
        attempt_id=assign.attempt_id,
        node_id=node_id,
        session_id=assign.session_id,
        utterance_index=assign.utterance_index,
        success=success,
        trace_id=assign.trace_id,
        group_id=assign.group_id,
        part_index=assign.part_index,
        node_completed_at_ms=time.time_ns() // 1_000_000,
    )


def _unavailable(sentence: str, service_id: str, version: str, reason: str) -> JobError:
    details: dict[str, Any] = {
        "service_id": _text(service_id),
        "service_version": _text(version),
        "reason": _text(reason),
    }
    return JobError(ErrorCode.MODEL_NOT_AVAILABLE, _text(sentence), codec.raw(details))


def plain(text: str) -> str:
    """Free of lone surrogates, which file names in messages of exceptions may hold, and JSON may not."""
    return text.encode("utf-8", "replace").decode()


def _text(text: str) -> str:
    return plain(text[:_MESSAGE_LENGTH])
