"""One session as its client knows it: what to say, what was heard, what to say again. No socket, no clock.

Chunks and finals are numbered from 1 for as long as the session lives, over all its connections: `audio_seq` of
a resume (the last chunk that is in a cut) then means the same on both sides, and 0 or nothing means none. What the
server sends is numbered too; what was heard before is not heard again.
"""

import logging
from typing import Any, NamedTuple

import msgspec

from dragoman.client.errors import SessionError
from dragoman.client.events import Detected, Ended, Event, Failed, Partial, Pressed, Progress, Refused, Result, Resumed
from dragoman.client.kept import Kept
from dragoman.client.link import Frame
from dragoman.protocol import audio, codec
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.session import (
    AsrPartial,
    AudioChunk,
    Backpressure,
    ClientHeartbeat,
    Error,
    LanguageDetected,
    ServerMessage,
    SessionClose,
    SessionInit,
    SessionInitAck,
    SessionResume,
    TranslationResult,
    UiEvent,
    Utterance,
    UtteranceEnd,
)

log = logging.getLogger("dragoman.client")

# A server cuts at 1.5 MB of audio at the latest; the rest is for what it has not read yet.
KEEP_BYTES = 2 * 2**20
KEEP_UTTERANCE_BYTES = 16 * 2**20
# A server takes messages of 1 MiB unless told otherwise, and does not want a client back that sends larger ones.
MAX_MESSAGE_BYTES = 1_000_000
# A server answers no utterance that is so much later than one it has not answered, unless told otherwise.
MOST_BELOW = 1024

# What an utterance says itself, and a session says for all of its own.
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


class Conversation:
    def __init__(self, opening: SessionInit) -> None:
        self.opening = opening
        self.session_id = ""
        self.trace_id = ""
        self.last_seq = 0
        self.next_index = 0
        self.cut_unheard = False  # a cut was asked for, and no new utterance was heard of since
        self._heard = -1  # the highest utterance the server has spoken of, or that we numbered
        self._open: dict[int, str] = {}  # those neither translated nor failed, with their jobs as far as we heard
        self._spoke_unheard = False  # audio was sent, and no new utterance was heard of since
        self._next_seq = 1
        self._fed_by: str | None = None
        self._resume_token: str | None = None
        self._binary = False
        self._chunks: Kept[Chunk] = Kept(KEEP_BYTES)
        self._utterances: Kept[Utterance] = Kept(KEEP_UTTERANCE_BYTES)

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
        """Whether an utterance known has not ended. A server that does not send utterance_end says nothing of an empty
        one."""
        return bool(self._open)

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
        """The answer to `hello`. After a resume `again()` is what to send."""
        self._binary = ack.use_binary_frame
        if self.session_id != ack.session_id:
            self.session_id, self.trace_id = ack.session_id, ack.trace_id
            self.last_seq = ack.seq or 0
            self._resume_token = ack.resume_token if self.opening.resume else None
            return None
        # The ack of a resume comes before older messages, so its `seq` says nothing about them.
        self._resume_token = ack.resume_token or self._resume_token
        covered = ack.audio_seq or 0
        self._chunks.forget_to(covered)
        self._utterances.forget_to((ack.next_index or 0) - 1)
        missing = max(0, self._chunks.given_up - covered)
        return Resumed(self.session_id, len(self._chunks) + len(self._utterances), missing)

    def again(self) -> list[Chunk | Utterance]:
        """What the server does not have, oldest first."""
        return [*self._chunks.items(), *self._utterances.items()]

    # ------------------------------------------------------------ speaking

    def chunk(self, data: bytes, is_final: bool, now_ms: int) -> Chunk:
        """Number a chunk, and keep it if it may be needed again."""
        self._feed(_BY_CHUNKS)
        chunk = Chunk(self._next_seq, data, is_final, now_ms)
        self._next_seq += 1
        self.cut_unheard = is_final
        self._spoke_unheard |= bool(data)
        if self.can_resume:
            self._chunks.add(chunk.seq, chunk, len(data) + 1)
        return chunk

    def utterance(self, data: bytes, format: str, sample_rate: int, **fields: Any) -> Utterance:
        """Number an utterance, and keep it if it may be needed again."""
        self._feed(_BY_UTTERANCES)
        inherited = {name: getattr(self.opening, name) for name in _INHERITED}
        message = Utterance(
            session_id=self.session_id,
            utterance_index=self.next_index,
            manual_cut=True,
            audio=audio.encode_base64(data),
            audio_format=format,
            sample_rate=sample_rate,
            **inherited | fields,
        )
        if len(message.audio) > MAX_MESSAGE_BYTES:
            limit = MAX_MESSAGE_BYTES * 3 // 4
            raise ValueError(f"the utterance has {len(data)} bytes of audio, more than the {limit} that a server takes")
        self._heard = self.next_index
        self._open[self.next_index] = ""
        if self.can_resume:
            self._utterances.add(self.next_index, message, len(message.audio))
        self.next_index += 1
        return message

    def _feed(self, by: str) -> None:
        if self._fed_by not in (None, by):
            raise SessionError(
                ErrorCode.INVALID_MESSAGE, f"this session is fed by {self._fed_by}; both cannot be mixed"
            )
        self._fed_by = by

    def frame(self, what: Chunk | Utterance) -> Frame:
        """As the connection of now wants it."""
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

    def goodbye(self, reason: str) -> SessionClose:
        return SessionClose(self.session_id, reason)

    # ------------------------------------------------------------ listening

    def receive(self, message: ServerMessage) -> Event | None:
        """What the message means to the user; None if nothing, or if it was heard before."""
        seq = None if isinstance(message, AsrPartial) else message.seq
        if seq is not None:
            if seq <= self.last_seq:
                return None
            self.last_seq = seq
        match message:
            case TranslationResult(utterance_index=index):
                self._heard_of(index, message.job_id, answered=True)
                return Result(message)
            case UtteranceEnd(utterance_index=index):
                self._heard_of(index, message.job_id or "", answered=True)
                return Ended(message.session_id, index, message.state, message.job_id or "")
            case AsrPartial():
                return Partial(
                    message.session_id, message.utterance_index, message.text, message.is_final, message.job_id
                )
            case UiEvent():
                return self._progress(message)
            case Error():
                return self._error(message)
            case Backpressure():
                return Pressed(message.action, message.resume_after_ms, message.message or "")
            case LanguageDetected():
                return Detected(message.lang, message.confidence)
        return None

    def _progress(self, message: UiEvent) -> Progress:
        self._heard_of(message.utterance_index, message.job_id)
        return Progress(message.session_id, message.utterance_index, message.event, message.elapsed_ms, message.job_id)

    def _error(self, message: Error) -> Failed | Refused:
        about = _about(message.details)
        if about is None:
            return Refused(message.code, message.message)
        self._heard_of(about.utterance_index, about.job_id, answered=True)
        return Failed(self.session_id, about.utterance_index, message.code, message.message, about.job_id)

    def _heard_of(self, index: int, job_id: str, *, answered: bool = False) -> None:
        """The server has this utterance: nobody will ask for it again."""
        if index > self._heard:
            # They are numbered without gaps: those below are there too, and wait for a node.
            self._open |= dict.fromkeys(range(max(self._heard + 1, index - MOST_BELOW), index), "")
            self._heard, self.cut_unheard, self._spoke_unheard = index, False, False
            self._open[index] = job_id
        elif index in self._open:
            self._open[index] = job_id
        if answered:
            self._open.pop(index, None)
        self._utterances.forget(index)

    def failed_with_it(self, why: str) -> list[Failed]:
        """The session is gone, and with it every utterance whose answer was not heard; the last may have been said
        without our hearing its number."""
        gone = self._open | ({self._heard + 1: ""} if self._spoke_unheard else {})
        return [
            Failed(self.session_id, index, ErrorCode.SESSION_CLOSED, why, job) for index, job in sorted(gone.items())
        ]


class _About(msgspec.Struct):
    """`details` of an error that concerns one utterance."""

    utterance_index: int
    job_id: str = ""


def _about(details: Any) -> _About | None:
    try:
        return msgspec.convert(details, _About)
    except msgspec.ValidationError:
        return None
