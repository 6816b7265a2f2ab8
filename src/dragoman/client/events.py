"""What a session tells its user, in the order it arrived. `index` is the number of the utterance."""

from dataclasses import dataclass

from dragoman.protocol import audio
from dragoman.protocol.session import TranslationResult


@dataclass(frozen=True, slots=True)
class Partial:
    """What has been recognised so far; a later one replaces it."""

    session_id: str
    index: int
    text: str
    is_final: bool
    job_id: str


@dataclass(frozen=True, slots=True)
class Result:
    """One translated utterance. Everything the server said of it is in `message`."""

    message: TranslationResult

    @property
    def session_id(self) -> str:
        return self.message.session_id

    @property
    def index(self) -> int:
        return self.message.utterance_index

    @property
    def job_id(self) -> str:
        return self.message.job_id

    @property
    def text_asr(self) -> str:
        return self.message.text_asr

    @property
    def text_translated(self) -> str:
        return self.message.text_translated

    @property
    def tts_audio(self) -> bytes:
        """A run of Opus packets or pcm16 samples, as `tts_format` says; empty when there is no sound."""
        return audio.decode_base64(self.message.tts_audio)

    @property
    def tts_format(self) -> str:
        return self.message.tts_format

    @property
    def backfilled(self) -> bool:
        """It came after one with a higher index."""
        return bool(self.message.backfilled)


@dataclass(frozen=True, slots=True)
class Failed:
    """An utterance that will have no result. The session goes on."""

    session_id: str
    index: int
    code: str
    message: str
    job_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes for an utterance. `state` is sent, backfilled, empty (nothing was said), failed, or skipped
    (its result did not come in time after that of a later one)."""

    session_id: str
    index: int
    state: str
    job_id: str  # empty if the server made no job for it


@dataclass(frozen=True, slots=True)
class Refused:
    """The server did not take something we sent, and the session goes on."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of an utterance: DISPATCHED, NODE_ACCEPTED, ASR_FINAL, NMT_DONE …"""

    session_id: str
    index: int
    step: str
    elapsed_ms: float | None
    job_id: str


@dataclass(frozen=True, slots=True)
class Pressed:
    """The server asked us to hold on (PAUSE, BUSY, SLOW_DOWN); sending obeys by itself."""

    action: str
    resume_after_ms: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Detected:
    """The language that is being spoken."""

    lang: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """The connection was lost and the session goes on. `missing` chunks could not be sent again: too old."""

    session_id: str
    sent_again: int
    missing: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The session was lost and a new one has its place; its utterances count from 0. What had been sent to the old one
    and not been answered is gone."""

    session_id: str
    old_session_id: str


Event = Partial | Result | Failed | Ended | Refused | Progress | Pressed | Detected | Resumed | Renewed
