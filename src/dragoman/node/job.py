"""What a handler gets and what it gives back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec

from dragoman.protocol import audio
from dragoman.protocol.node import JobAssign
from dragoman.protocol.session import Pipeline


class ModelNotAvailable(Exception):
    """The job needs a model this node cannot use now; the server gives the job to another node."""

    def __init__(self, service_id: str, version: str = "", reason: str = "") -> None:
        super().__init__(f"{service_id}@{version or 'any'} is not available: {reason or 'no reason given'}")
        self.service_id = service_id
        self.version = version
        self.reason = reason


class JobFailed(Exception):
    """The job cannot be done, here or on another node: the server does not try it again. Its text is the job's error.

    After any other exception of a handler the server tries the job once more, on another node. A subclass with
    `final = False` asks for that as well.
    """

    final = True


@dataclass(slots=True)
class Result:
    """What was heard, what it means, how it sounds. All three empty is the same as returning None."""

    text_asr: str = ""
    text_translated: str = ""
    tts_audio: bytes = b""
    tts_format: str = audio.OPUS
    extra: Mapping[str, Any] | None = None
    asr_quality_level: str | None = None
    quality_score: float | None = None
    reason_codes: Sequence[str] | None = None
    language: str | None = None  # that was recognised, if the node finds out
    language_probability: float | None = None  # 0 to 1

    @property
    def is_empty(self) -> bool:
        return not (self.text_asr or self.text_translated or self.tts_audio)


class Job:
    """One utterance to be translated into one language. Everything the server said of it is in `assign`."""

    def __init__(
        self,
        assign: JobAssign,
        say: Callable[["Job", str, bool], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self.reassigned(assign)
        self.cancelled = False  # for handlers in threads, which cannot be interrupted: look here now and then
        self._say = say
        self._audio: bytes | None = None

    def __repr__(self) -> str:
        return f"<{self.job_id} attempt {self.attempt_id}: utterance {self.utterance_index} of {self.session_id}>"

    def reassigned(self, assign: JobAssign) -> None:
        """Take over what the server says of a new attempt."""
        self.assign = assign
        self._received_at = self._clock()

    @property
    def left_s(self) -> float | None:
        """Seconds until the server gives this attempt up; None if the server sets no deadline."""
        if self.assign.deadline_ms is None:
            return None
        return max(0.0, self._received_at + self.assign.deadline_ms / 1000 - self._clock())

    def partial(self, text: str, is_final: bool = False) -> None:
        """Show the speaker what has been heard so far. From any thread; costs nothing when nobody listens."""
        self._say(self, text, is_final)

    @property
    def audio(self) -> bytes:
        """A run of Opus packets or pcm16 samples, as `audio_format` says."""
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
        """Jobs of one lane are worked one after another."""
        return self.assign.session_id, self.assign.tgt_lang

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
    def context_text(self) -> str | None:
        return self.assign.context_text
