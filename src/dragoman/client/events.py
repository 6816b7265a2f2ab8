"""What a session reports to its user: events, in the order they arrived, and errors.

`index` is the number of the utterance in its session, from 0.
"""

from dataclasses import dataclass

from dragoman.connection import ReceiveQueue
from dragoman.protocol import audio
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.session import TranslationResult

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Partial:
    """What has been recognised so far of an utterance. A later one replaces it."""

    session_id: str
    index: int
    text: str
    is_final: bool
    job_id: str


@dataclass(frozen=True, slots=True)
class Result:
    """One translated utterance. `message` is the whole message of the server."""

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
        """What was recognised."""
        return self.message.text_asr

    @property
    def text_translated(self) -> str:
        return self.message.text_translated

    @property
    def tts_audio(self) -> bytes:
        """Opus packets or pcm16 samples, as `tts_format` says; empty if the result has no audio."""
        return audio.decode_base64(self.message.tts_audio)

    @property
    def tts_format(self) -> str:
        return self.message.tts_format

    @property
    def backfilled(self) -> bool:
        """It arrived after a result with a higher index."""
        return bool(self.message.backfilled)


@dataclass(frozen=True, slots=True)
class Failed:
    """An utterance that gets no result. The session goes on."""

    session_id: str
    index: int
    code: str
    message: str
    job_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more is sent for an utterance.

    `state`: sent, backfilled, empty (nothing was said), failed, or skipped (its result did not arrive in time after
    the result of a later utterance).
    """

    session_id: str
    index: int
    state: str
    job_id: str  # empty if the server made no job for it


@dataclass(frozen=True, slots=True)
class Rejected:
    """The server rejected a message of ours. The session goes on."""

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
class Throttled:
    """The server asked us to send less (PAUSE, BUSY, SLOW_DOWN). The session obeys by itself."""

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
    """The connection was lost, and the session goes on with a new one. `missing` chunks were too old to be resent."""

    session_id: str
    sent_again: int
    missing: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The session was lost, and a new one replaces it. Its utterances are counted from 0.

    Utterances of the old session that were not answered are lost.
    """

    session_id: str
    old_session_id: str


Event = Partial | Result | Failed | Ended | Rejected | Progress | Throttled | Detected | Resumed | Renewed


class EventQueue(ReceiveQueue[Event]):
    """Events that wait for the reader.

    When more than `max_unread` events wait, the oldest Partial or Progress is dropped. Other events are never dropped.
    """

    def __init__(self, max_unread: int = 4096) -> None:
        super().__init__()
        self._max_unread = max_unread

    def put(self, event: Event) -> None:
        if self._ended:
            return
        self._add(event)
        if len(self._items) > self._max_unread:
            self._drop_one()

    def _drop_one(self) -> None:
        for at, event in enumerate(self._items):
            if isinstance(event, Partial | Progress):
                del self._items[at]
                return


# ---------------------------------------------------------------- errors


class SessionError(Exception):
    """The base of all errors of a session.

    `code`: an error code of the protocol, the name of a close code, or UNREACHABLE. `index`: the utterance, if the
    error concerns one.
    """

    def __init__(self, code: str, message: str, index: int | None = None) -> None:
        super().__init__(f"{message} ({code})" if index is None else f"utterance {index}: {message} ({code})")
        self.code = code
        self.message = message
        self.index = index


class Unreachable(SessionError):
    """No server answered in time."""

    def __init__(self, message: str) -> None:
        super().__init__("UNREACHABLE", message)


class SessionLost(SessionError):
    """The server no longer has the session, so it cannot be resumed."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_SESSION, message)


class SessionClosed(SessionError):
    """Audio was sent after the session had been closed."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.SESSION_CLOSED, "the session is closed")
