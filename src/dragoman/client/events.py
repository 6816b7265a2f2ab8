"""What a session reports to its user: events, in the order they arrived, errors, and the transcript of both.

`index` is the number of the utterance in its session, from 0.
"""

from bisect import insort
from dataclasses import dataclass, field

from dragoman.connection import ReceiveQueue
from dragoman.protocol import audio
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.rooms import RoomMessage
from dragoman.protocol.session import TranslationResult

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Partial:
    """What has been recognised so far of an utterance. A later one replaces it.

    While the utterance is spoken it has a `preview_id` and no `job_id`. If its text is empty, nothing was said, and the
    words before it are to be removed.
    """

    session_id: str
    index: int
    text: str
    is_final: bool
    job_id: str
    preview_id: str = ""


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


@dataclass(frozen=True, slots=True)
class InRoom:
    """A message of the room that the session is in. `Room` makes captions of them."""

    message: RoomMessage


Event = Partial | Result | Failed | Ended | Rejected | Progress | Throttled | Detected | Resumed | Renewed | InRoom


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


# -- transcript ------------------------------------------------------------------------------------
#
# The results of a session in the order they were spoken, whatever order they arrived in.
#
#     transcript = Transcript()
#     async for event in session:
#         transcript.add(event)
#         show(transcript.lines)
#
# The first event of an utterance creates its line, which keeps its position. The first result of an index counts, as in
# the web client; one that arrived late is marked `backfilled`. A session that replaces a lost one is appended below it.


@dataclass(slots=True, order=True)
class Line:
    """One utterance."""

    session: int  # 0: the first session, 1: the one that replaced it …
    index: int
    text_asr: str = field(default="", compare=False)  # partial, then final
    text_translated: str = field(default="", compare=False)
    backfilled: bool = field(default=False, compare=False)
    failure: Failed | None = field(default=None, compare=False)
    result: Result | None = field(default=None, compare=False)
    ended: str = field(default="", compare=False)  # "empty" or "skipped": no result and no failure follows
    job_id: str = field(default="", compare=False)

    @property
    def done(self) -> bool:
        """Whether a result, a failure or an end is known."""
        return self.result is not None or self.failure is not None or bool(self.ended)


class Transcript:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._line_of: dict[tuple[int, int], Line] = {}
        self._sessions: dict[str, int] = {}

    def add(self, event: Event) -> Line | None:
        """Returns the line that changed; None if the event changes none."""
        match event:
            case Partial(session_id=session_id, index=index, text="", job_id=""):
                self._remove(session_id, index)
                return None
            case Partial(session_id=session_id, index=index, text=text):
                line = self._line(session_id, index)
                if line.done:
                    return None
                line.text_asr = text
            case Result(session_id=session_id, index=index):
                line = self._line(session_id, index)
                if line.result is not None:
                    return None
                line.result, line.failure, line.backfilled = event, None, event.backfilled
                line.text_asr, line.text_translated = event.text_asr, event.text_translated
            case Failed(session_id=session_id, index=index):
                line = self._line(session_id, index)
                if line.done:
                    return None
                line.failure = event
            case Ended(session_id=session_id, index=index, state=state):
                if not self._changes(session_id, index, state):
                    return None
                line = self._line(session_id, index)
                line.ended = state
            case _:
                return None
        line.job_id = event.job_id or line.job_id
        return line

    def _changes(self, session_id: str, index: int, state: str) -> bool:
        """Whether the end of an utterance changes the transcript: it was skipped, or its line is not done yet."""
        line = self._line_of.get((self._sessions.get(session_id, -1), index))
        return state == "skipped" if line is None else not line.done

    def _remove(self, session_id: str, index: int) -> None:
        """Nothing was said: the words of a preview disappear."""
        line = self._line_of.get((self._sessions.get(session_id, -1), index))
        if line is not None and not line.done:
            del self._line_of[line.session, line.index]
            self.lines.remove(line)

    def _line(self, session_id: str, index: int) -> Line:
        session = self._sessions.setdefault(session_id, len(self._sessions))
        line = self._line_of.get((session, index))
        if line is None:
            line = self._line_of[session, index] = Line(session, index)
            insort(self.lines, line)
        return line
