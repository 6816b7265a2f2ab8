"""What a handler gets, a Job, and what it returns, a Result. Results are encoded so that the server accepts them, and
kept until the server has read them.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec

from dragoman.protocol import audio, codec
from dragoman.protocol.codes import EmptyReason, ErrorCode
from dragoman.protocol.fields import ABSENT
from dragoman.protocol.node import JobAssign, JobError, JobResult
from dragoman.protocol.session import Pipeline


class ModelNotAvailable(Exception):
    """This node cannot use a model that the job needs: the server gives the job to another node.

    `service_id` is the name of the service in the node's registration; the node gets no jobs for it for a while.
    """

    def __init__(self, service_id: str, version: str = "", reason: str = "") -> None:
        super().__init__(f"{service_id}@{version or 'any'} is not available: {reason or 'no reason given'}")
        self.service_id = service_id
        self.version = version
        self.reason = reason


class JobFailed(Exception):
    """No node can do the job: the server does not try it again. The message becomes the error of the job.

    After any other exception of a handler, and after a subclass with `final = False`, the server tries the job once
    more, on another node.
    """

    final = True


@dataclass(slots=True)
class Result:
    """What was recognised, its translation, and its audio. All three empty is the same as returning None."""

    text_asr: str = ""
    text_translated: str = ""
    tts_audio: bytes = b""
    tts_format: str = audio.OPUS
    extra: Mapping[str, Any] | None = None
    asr_quality_level: str | None = None
    quality_score: float | None = None
    reason_codes: Sequence[str] | None = None
    language: str | None = None  # detected language, if the node detects it
    language_probability: float | None = None  # 0 to 1

    @property
    def is_empty(self) -> bool:
        return not (self.text_asr or self.text_translated or self.tts_audio)


class Job:
    """One utterance, or one text, to translate into one language. `assign` is the whole message of the server."""

    def __init__(
        self,
        assign: JobAssign,
        send_partial: Callable[["Job", str, bool], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self.reassign(assign)
        self.cancelled = False  # a handler in a thread cannot be interrupted: it should check this now and then
        self._send_partial = send_partial
        self._audio: bytes | None = None

    def __repr__(self) -> str:
        return f"<{self.job_id} attempt {self.attempt_id}: {self.what}>"

    @property
    def what(self) -> str:
        """What is to be translated, without what was said."""
        return f"{'text' if self.is_text else f'utterance {self.utterance_index}'} of {self.session_id}"

    def cancel(self) -> None:
        """Called by the node when the server cancels the job."""
        self.cancelled = True

    def reassign(self, assign: JobAssign) -> None:
        """Called by the node when the server starts a new attempt."""
        self.assign = assign
        self._received_at = self._clock()

    @property
    def left_s(self) -> float | None:
        """Seconds until the server gives up this attempt; None if the server sets no deadline."""
        if self.assign.deadline_ms is None:
            return None
        return max(0.0, self._received_at + self.assign.deadline_ms / 1000 - self._clock())

    def partial(self, text: str, is_final: bool = False) -> None:
        """Show the speaker what has been recognised so far. May be called from any thread."""
        self._send_partial(self, text, is_final)

    @property
    def audio(self) -> bytes:
        """The utterance: Opus packets or pcm16 samples, as `audio_format` says."""
        if self._audio is None:
            self._audio = audio.decode_base64(self.assign.audio)
        return self._audio

    @property
    def duration_ms(self) -> int:
        return audio.duration_ms(self.audio_format, self.audio, self.sample_rate)

    @property
    def features(self) -> dict[str, Any]:
        return msgspec.json.decode(self.assign.features, type=dict[str, Any]) if self.assign.features else {}

    @property
    def lane(self) -> tuple[str, str]:
        """Jobs of one lane run one after another. Text jobs do not wait for each other."""
        return self.assign.job_id if self.is_text else self.assign.session_id, self.assign.tgt_lang

    @property
    def job_id(self) -> str:
        return self.assign.job_id

    @property
    def attempt_id(self) -> int:
        return self.assign.attempt_id

    @property
    def session_id(self) -> str:
        return self.assign.session_id

    @property
    def utterance_index(self) -> int:
        return self.assign.utterance_index

    @property
    def turn_id(self) -> str | None:
        return self.assign.turn_id

    @property
    def preview_id(self) -> str | None:
        """Of the preview of this utterance, which another node may have made."""
        return self.assign.preview_id

    @property
    def trace_id(self) -> str:
        return self.assign.trace_id

    @property
    def src_lang(self) -> str:
        return self.assign.src_lang

    @property
    def tgt_lang(self) -> str:
        return self.assign.tgt_lang

    @property
    def pipeline(self) -> Pipeline:
        return self.assign.pipeline

    @property
    def audio_format(self) -> str:
        return self.assign.audio_format

    @property
    def sample_rate(self) -> int:
        return self.assign.sample_rate

    @property
    def is_text(self) -> bool:
        """Whether `text` is to be translated. There is no audio then."""
        return self.assign.text is not None

    @property
    def text(self) -> str:
        return self.assign.text or ""

    @property
    def context_text(self) -> str | None:
        """What was said before."""
        return self.assign.context_text

    @property
    def vocabulary(self) -> list[str]:
        """Names and terms that the text may contain."""
        return self.assign.vocabulary or []


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
