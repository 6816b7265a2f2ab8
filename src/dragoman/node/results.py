"""Results of jobs: encoded so that the server accepts them, and kept until the server has read them."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from dragoman.node.job import Job, JobFailed, ModelNotAvailable, Result
from dragoman.protocol import audio, codec
from dragoman.protocol.codes import EmptyReason, ErrorCode
from dragoman.protocol.fields import ABSENT
from dragoman.protocol.node import JobAssign, JobError, JobResult

# By default a server accepts messages of 1 MiB, and refuses a node for good that sends larger ones.
MAX_BYTES = 1_000_000
_MAX_TEXT = 500


def encode_result(job: Job, node_id: str, given: Result | None, took_ms: float) -> bytes:
    """The job_result for what a handler returned.

    Raises ProtocolError, TypeError or ValueError if it cannot be sent.
    """
    if not isinstance(given, Result | None):
        raise TypeError(f"the handler must return a Result or None, not {type(given).__name__}")
    given = given or Result()
    extra = dict(given.extra or {})
    detected = {"language": given.language, "language_probability": given.language_probability}
    extra |= {name: value for name, value in detected.items() if value is not None}
    if given.is_empty and not job.is_text:
        extra.setdefault("reason", EmptyReason.ASR_EMPTY)
    message = _job_result(job.assign, node_id, success=True)
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
    # Encoding accepts any type. What the server would refuse must fail here, where the author of the handler sees it.
    codec.decode_node(data)
    if len(data) > MAX_BYTES:
        raise ValueError(f"the result has {len(data)} bytes, more than the {MAX_BYTES} that a server accepts")
    return data


def encode_failure(job: Job, node_id: str, error: BaseException, took_ms: float) -> bytes:
    """The job_result for an exception of a handler."""
    message = _job_result(job.assign, node_id, success=False)
    message.processing_time_ms = round(took_ms, 1)
    if isinstance(error, ModelNotAvailable):
        message.error = _unavailable(str(error), error.service_id, error.version, error.reason)
    else:
        final = codec.raw({"final": True}) if isinstance(error, JobFailed) and error.final else ABSENT
        message.error = JobError(ErrorCode.PROCESSING_ERROR, _text(f"{type(error).__name__}: {error}"), final)
    return codec.encode(message)


def encode_draining(assign: JobAssign, node_id: str) -> bytes:
    """Refuse a job that arrived while the node drains.

    Only after MODEL_NOT_AVAILABLE does a server place the job on another node at once. The service is one that no job
    needs: the server does not use a service for a while after such an answer, and the node may be back before that.
    """
    message = _job_result(assign, node_id, success=False)
    message.error = _unavailable("The node is draining.", "drain", "", "draining")
    return codec.encode(message)


def valid_text(text: str) -> str:
    """Without lone surrogates: file names in messages of exceptions may have them, JSON may not."""
    return text.encode("utf-8", "replace").decode()


def _job_result(assign: JobAssign, node_id: str, success: bool) -> JobResult:
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


def _text(text: str) -> str:
    return valid_text(text[:_MAX_TEXT])


@dataclass(slots=True)
class _Entry:
    mark: int
    data: bytes
    finished_at: float
    read_at: float | None = None


class ResultOutbox:
    """Results, kept until the server has read them. Pure: the time is an argument.

    A successful write to a socket proves nothing. The node sends a ping with the mark of the last result; the pong
    cannot overtake, so it proves that the server read everything up to the mark. A result that was read is kept for
    `linger_s`: an instance may die between reading a result and recording it. A result that was not read within
    `keep_s` is dropped: its job has expired.
    """

    def __init__(self, keep_s: float = 30.0, linger_s: float = 2.0, max_bytes: int = 64 * 2**20) -> None:
        self._keep_s = keep_s
        self._linger_s = linger_s
        self._max_bytes = max_bytes
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self.last_mark = 0
        self.lost = 0  # results dropped unread

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def all_read(self) -> bool:
        return not self._entries or self._entries[-1].read_at is not None

    def add(self, data: bytes, now: float) -> int:
        """Keep a result; returns its mark."""
        self.last_mark += 1
        self._entries.append(_Entry(self.last_mark, data, now))
        self._bytes += len(data)
        self.prune(now)
        return self.last_mark

    def read(self, mark: int, now: float) -> None:
        """The server has read everything up to `mark`."""
        for entry in reversed(self._entries):
            if entry.read_at is not None:
                break
            if entry.mark <= mark:
                entry.read_at = now
        self.prune(now)

    def to_resend(self, now: float) -> list[bytes]:
        """What to send on a new connection, oldest first."""
        self.prune(now)
        return [entry.data for entry in self._entries]

    def prune(self, now: float) -> None:
        while self._entries and (self._is_over(self._entries[0], now) or self._bytes > self._max_bytes):
            gone = self._entries.popleft()
            self._bytes -= len(gone.data)
            self.lost += gone.read_at is None

    def _is_over(self, entry: _Entry, now: float) -> bool:
        if entry.read_at is None:
            return now >= entry.finished_at + self._keep_s
        return now >= entry.read_at + self._linger_s
