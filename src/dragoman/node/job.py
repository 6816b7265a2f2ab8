"""What a handler gets, a Job, and what it returns, a Result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec

from dragoman.protocol import audio
from dragoman.protocol.node import JobAssign
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
