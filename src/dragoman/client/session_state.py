"""What a client knows of its session: what it sent, what it received, what it must resend. No socket, no clock.

Chunks are numbered from 1 over all connections of the session, so `audio_seq` of a resume (the last chunk that is part
of an utterance) means the same on both sides; 0 or nothing means none. The server numbers its messages too: a message
that was received before is ignored.
"""

from typing import Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack, assert_never

import msgspec

from dragoman.client.events import (
    Detected,
    Ended,
    Event,
    Failed,
    InRoom,
    Partial,
    Progress,
    Rejected,
    Result,
    Resumed,
    SessionError,
    Throttled,
)
from dragoman.connection import Frame
from dragoman.protocol import audio, codec
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.fields import Numbered
from dragoman.protocol.rooms import (
    Caption,
    CaptionLost,
    CaptionPartial,
    CaptionTranslation,
    RoomCreateAck,
    RoomError,
    RoomExpired,
    RoomJoined,
    RoomMembers,
    RoomOk,
    WebrtcAnswer,
    WebrtcIce,
    WebrtcOffer,
)
from dragoman.protocol.session import (
    VAD_SERVER,
    AsrPartial,
    AudioChunk,
    Backpressure,
    ClientHeartbeat,
    Error,
    LanguageDetected,
    ServerHeartbeat,
    ServerMessage,
    SessionClose,
    SessionCloseAck,
    SessionInit,
    SessionInitAck,
    SessionResume,
    TranslationResult,
    UiEvent,
    Utterance,
    UtteranceEnd,
)

# A server cuts after 1.5 MB of audio at the latest; the rest is audio that it has not read yet.
KEEP_BYTES = 2 * 2**20
KEEP_UTTERANCE_BYTES = 16 * 2**20
# By default a server accepts messages of 1 MiB, and refuses a client for good that sends larger ones.
MAX_MESSAGE_BYTES = 1_000_000
# By default a server answers no utterance whose index is so much higher than that of an unanswered one.
MAX_UNANSWERED = 1024

# Fields that each utterance carries itself; the session has the defaults.
_INHERITED = (
    "src_lang",
    "tgt_lang",
    "dialect",
    "features",
    "mode",
    "lang_a",
    "lang_b",
    "auto_langs",
    "enable_streaming_asr",
    "partial_update_interval_ms",
)
_BY_CHUNKS, _BY_UTTERANCES = "audio chunks", "numbered utterances"


class Chunk(NamedTuple):
    seq: int
    audio: bytes
    is_final: bool
    at_ms: int


class UtteranceOptions(TypedDict, total=False):
    """Fields of one utterance that differ from those of its session."""

    src_lang: str
    tgt_lang: str
    mode: str
    lang_a: str
    lang_b: str
    auto_langs: list[str]
    dialect: str
    enable_streaming_asr: bool
    partial_update_interval_ms: int
    trace_id: str


T = TypeVar("T")


class ResendBuffer(Generic[T]):
    """What was sent and may have to be sent again, by its number.

    A server does not report its progress while the connection lasts, so the newest `max_bytes` are kept: more than a
    server collects before it cuts. `dropped_to` is the highest number that was dropped, so that a loss can be reported.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: dict[int, tuple[T, int]] = {}
        self._bytes = 0
        self.dropped_to = -1

    def __len__(self) -> int:
        return len(self._items)

    def add(self, number: int, item: T, size: int) -> None:
        """Numbers must rise."""
        self._items[number] = (item, size)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self.dropped_to = next(iter(self._items))
            self.remove(self.dropped_to)

    def remove(self, number: int) -> None:
        _, size = self._items.pop(number, (None, 0))
        self._bytes -= size

    def remove_to(self, number: int) -> None:
        for covered in [one for one in self._items if one <= number]:
            self.remove(covered)

    def items(self) -> list[T]:
        return [item for item, _ in self._items.values()]


class SessionState:
    def __init__(self, opening: SessionInit) -> None:
        self.opening = opening
        self.session_id = ""
        self.trace_id = ""
        self.vad = False
        self.last_seq = 0
        self.next_index = 0
        self.cut_pending = False  # a cut was sent, and the server has not mentioned a new utterance since
        self._highest = -1  # the highest index that the server mentioned, or that we assigned
        self._unanswered: dict[int, str] = {}  # index → job id, if known
        self._audio_pending = False  # audio was sent, and the server has not mentioned a new utterance since
        self._next_seq = 1
        self._fed_by: str | None = None
        self._resume_token: str | None = None
        self._binary = False
        self._chunks: ResendBuffer[Chunk] = ResendBuffer(KEEP_BYTES)
        self._utterances: ResendBuffer[Utterance] = ResendBuffer(KEEP_UTTERANCE_BYTES)

    @property
    def format(self) -> str:
        return self.opening.audio_format or audio.OPUS

    @property
    def sample_rate(self) -> int:
        return self.opening.sample_rate or 16_000

    @property
    def can_resume(self) -> bool:
        return self._resume_token is not None

    @property
    def awaits_answer(self) -> bool:
        """Whether an utterance has not ended. A server that does not send utterance_end never ends an empty one."""
        return bool(self._unanswered)

    @property
    def is_fed(self) -> bool:
        return self._fed_by is not None

    # ------------------------------------------------------------ opening

    def hello(self) -> SessionInit | SessionResume:
        """The first message of a connection."""
        if self._resume_token is None:
            return self.opening
        return SessionResume(self.session_id, self._resume_token, self.last_seq, self.opening.token)

    def opened(self, ack: SessionInitAck) -> Resumed | None:
        """The server's answer to `hello`. After a resume, `to_resend()` must be sent again."""
        self._binary, self.vad = ack.use_binary_frame, ack.vad == VAD_SERVER
        if self.session_id != ack.session_id:
            self.session_id, self.trace_id = ack.session_id, ack.trace_id
            self.last_seq = ack.seq or 0
            self._resume_token = ack.resume_token if self.opening.resume else None
            return None
        # Older messages follow the ack of a resume, so its `seq` says nothing about them.
        self._resume_token = ack.resume_token or self._resume_token
        covered = ack.audio_seq or 0
        self._chunks.remove_to(covered)
        self._utterances.remove_to((ack.next_index or 0) - 1)
        missing = max(0, self._chunks.dropped_to - covered)
        return Resumed(self.session_id, len(self._chunks) + len(self._utterances), missing)

    def to_resend(self) -> list[Chunk | Utterance]:
        """What the server does not have, oldest first."""
        return [*self._chunks.items(), *self._utterances.items()]

    # ------------------------------------------------------------ sending

    def chunk(self, data: bytes, is_final: bool, now_ms: int) -> Chunk:
        """Number a chunk, and keep it if it may have to be resent."""
        self._feed(_BY_CHUNKS)
        chunk = Chunk(self._next_seq, data, is_final, now_ms)
        self._next_seq += 1
        self.cut_pending = is_final
        self._audio_pending |= bool(data)
        if self.can_resume:
            self._chunks.add(chunk.seq, chunk, len(data) + 1)
        return chunk

    def utterance(self, data: bytes, format: str, sample_rate: int, **options: Unpack[UtteranceOptions]) -> Utterance:
        """Number an utterance, and keep it if it may have to be resent."""
        self._feed(_BY_UTTERANCES)
        fields: dict[str, Any] = {name: getattr(self.opening, name) for name in _INHERITED}
        fields.update(options)
        message = Utterance(
            session_id=self.session_id,
            utterance_index=self.next_index,
            manual_cut=True,
            audio=audio.encode_base64(data),
            audio_format=format,
            sample_rate=sample_rate,
            **fields,
        )
        if len(message.audio) > MAX_MESSAGE_BYTES:
            limit = MAX_MESSAGE_BYTES * 3 // 4
            raise ValueError(
                f"the utterance has {len(data)} bytes of audio, more than the {limit} that a server accepts"
            )
        self._highest = self.next_index
        self._unanswered[self.next_index] = ""
        if self.can_resume:
            self._utterances.add(self.next_index, message, len(message.audio))
        self.next_index += 1
        return message

    def _feed(self, by: str) -> None:
        if self._fed_by not in (None, by):
            raise SessionError(ErrorCode.INVALID_MESSAGE, f"this session sends {self._fed_by}; it cannot send both")
        self._fed_by = by

    def frame(self, what: Chunk | Utterance) -> Frame:
        """Encode it as the current connection wants it."""
        if isinstance(what, Utterance):
            return Frame(codec.encode(what))
        if not self._binary:
            payload = audio.encode_base64(what.audio)
            return Frame(codec.encode(AudioChunk(self.session_id, what.seq, what.is_final, payload, what.at_ms)))
        kind = audio.FrameKind.CHUNK if what.audio else audio.FrameKind.FINAL
        low = (1 << 32) - 1
        frame = audio.AudioFrame(kind, self.session_id, what.seq & low, what.at_ms & low, what.is_final, what.audio)
        return Frame(audio.build_frame(frame), binary=True)

    def heartbeat(self, now_ms: int) -> ClientHeartbeat:
        return ClientHeartbeat(self.session_id, now_ms, self.last_seq if self.can_resume else None)

    def close(self, reason: str) -> SessionClose:
        return SessionClose(self.session_id, reason)

    # ------------------------------------------------------------ receiving

    def receive(self, message: ServerMessage) -> Event | None:
        """The event for the user; None if there is none, or if the message was received before."""
        seq = message.seq if isinstance(message, Numbered) else None
        if seq is not None:
            if seq <= self.last_seq:
                return None
            self.last_seq = seq
        match message:
            case TranslationResult(utterance_index=index):
                self._mentioned(index, message.job_id, answered=True)
                return Result(message)
            case UtteranceEnd(utterance_index=index):
                self._mentioned(index, message.job_id or "", answered=True)
                return Ended(message.session_id, index, message.state, message.job_id or "")
            case AsrPartial():
                return Partial(
                    message.session_id,
                    message.utterance_index,
                    message.text,
                    message.is_final,
                    message.job_id or "",
                    message.preview_id or "",
                )
            case UiEvent():
                return self._progress(message)
            case Error():
                return self._error(message)
            case Backpressure():
                return Throttled(message.action, message.resume_after_ms, message.message or "")
            case LanguageDetected():
                return Detected(message.lang, message.confidence)
            case SessionInitAck() | SessionCloseAck() | ServerHeartbeat():
                return None
            case Caption() | CaptionTranslation() | CaptionLost() | CaptionPartial() | RoomMembers():
                return InRoom(message)
            case RoomCreateAck() | RoomJoined() | RoomOk() | RoomError() | RoomExpired():
                return InRoom(message)
            case WebrtcOffer() | WebrtcAnswer() | WebrtcIce():
                return None
            case _:
                assert_never(message)

    def _progress(self, message: UiEvent) -> Progress:
        self._mentioned(message.utterance_index, message.job_id)
        return Progress(message.session_id, message.utterance_index, message.event, message.elapsed_ms, message.job_id)

    def _error(self, message: Error) -> Failed | Rejected:
        about = _about(message.details)
        if about is None:
            return Rejected(message.code, message.message)
        self._mentioned(about.utterance_index, about.job_id, answered=True)
        return Failed(self.session_id, about.utterance_index, message.code, message.message, about.job_id)

    def _mentioned(self, index: int, job_id: str, *, answered: bool = False) -> None:
        """The server mentioned this utterance, so it has the audio."""
        if index > self._highest:
            # Indexes have no gaps: the utterances below exist too, and wait for a node.
            self._unanswered |= dict.fromkeys(range(max(self._highest + 1, index - MAX_UNANSWERED), index), "")
            self._highest, self.cut_pending, self._audio_pending = index, False, False
            self._unanswered[index] = job_id
        elif index in self._unanswered:
            self._unanswered[index] = job_id
        if answered:
            self._unanswered.pop(index, None)
        self._utterances.remove(index)

    def fail_unanswered(self, why: str) -> list[Failed]:
        """The session is gone: every unanswered utterance failed, also one that the server has not numbered yet."""
        gone = self._unanswered | ({self._highest + 1: ""} if self._audio_pending else {})
        return [
            Failed(self.session_id, index, ErrorCode.SESSION_CLOSED, why, job) for index, job in sorted(gone.items())
        ]


class _About(msgspec.Struct):
    """`details` of an error about one utterance."""

    utterance_index: int
    job_id: str = ""


def _about(details: Any) -> _About | None:
    try:
        return msgspec.convert(details, _About)
    except msgspec.ValidationError:
        return None
