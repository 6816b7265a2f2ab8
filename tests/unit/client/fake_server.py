"""A real WebSocket server on 127.0.0.1 that keeps sessions as the protocol says, with the test as its mind.

It cuts at every final and answers each utterance with its length. A resume forgets what was not cut, as an instance
does that takes the session over from a dead one: only what the client sends again is there.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dragoman.client import Session, Throttle, Timing
from dragoman.protocol import audio, codec
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.fields import Message, Numbered
from dragoman.protocol.session import (
    AudioChunk,
    ClientHeartbeat,
    Error,
    ServerHeartbeat,
    SessionClose,
    SessionCloseAck,
    SessionInit,
    SessionInitAck,
    SessionResume,
    TranslationResult,
    UiEvent,
    Utterance,
)
from support.fake_peer import FakePeer, PeerConnection

QUICK = Timing(
    connect_s=5, answer_s=5, heartbeat_s=60, reconnect_s=5, cut_s=0.5, settle_s=0.5, close_s=5,
    backoff_first_s=0.001, backoff_longest_s=0.01,
)  # fmt: skip


@dataclass
class Spoken:
    """One session."""

    id: str
    token: str
    resume: bool
    format: str = "opus"
    sample_rate: int = 16000
    seq: int = 0
    next_index: int = 0
    audio_seq: int = 0
    buffer: list[tuple[int, bytes]] = field(default_factory=list)
    outbox: list[Numbered] = field(default_factory=list)
    utterances: list[bytes] = field(default_factory=list)  # the audio of each
    chunk_seqs: list[int] = field(default_factory=list)
    acked_seq: int = 0


class FakeServer(FakePeer):
    path = "/ws/session"

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, Spoken] = {}
        self.frames: list[audio.AudioFrame] = []
        # what a test may change
        self.keeps_sessions = True  # gives resume tokens
        self.forgets = False  # answers every resume with INVALID_SESSION
        self.refuses: Error | None = None  # the answer to the next session_init or session_resume
        self.hangs_up_with: int | None = None
        self.silent = False  # answers no session_init
        self.binary = False
        self.answers = True  # translates by itself
        self.acks_close = True

    @property
    def session(self) -> Spoken:
        """The newest."""
        return list(self.sessions.values())[-1]

    def on_connected(self, connection: PeerConnection) -> None:
        if self.hangs_up_with is not None:
            connection.close(self.hangs_up_with)

    def on_frame(self, connection: PeerConnection, data: bytes, *, binary: bool) -> None:
        if binary:
            frame = audio.parse_frame(data)
            self.frames.append(frame)
            self._chunk(self.sessions[frame.session_id], frame.seq, frame.audio, frame.is_final)
            self.notify()
        else:
            self.heard(connection, codec.decode_client(data))

    # ------------------------------------------------------------ what clients say

    def heard(self, connection: PeerConnection, message: Message) -> None:
        match message:
            case SessionInit() | SessionResume() if self.silent:
                pass
            case SessionInit() | SessionResume() if self.refuses is not None:
                connection.send(self.refuses)
                self.refuses = None
            case SessionInit():
                self._init(connection, message)
            case SessionResume():
                self._resume(connection, message)
            case AudioChunk():
                data = audio.decode_base64(message.payload) if message.payload else b""
                self._chunk(self.sessions[message.session_id], message.seq, data, message.is_final)
            case Utterance():
                session = self.sessions[message.session_id]
                session.next_index = message.utterance_index + 1
                self._order(session, audio.decode_base64(message.audio), message.utterance_index)
            case ClientHeartbeat():
                session = self.sessions[message.session_id]
                session.acked_seq = message.last_seq or 0
                self.says(ServerHeartbeat(session_id=session.id, timestamp=message.timestamp))
            case SessionClose():
                session = self.sessions[message.session_id]
                self._cut(session)
                if self.acks_close:
                    self.says(SessionCloseAck(session_id=session.id), session)
        self.note(message)

    def _init(self, connection: PeerConnection, init: SessionInit) -> None:
        number = len(self.sessions) + 1
        resume = bool(init.resume) and self.keeps_sessions
        session = Spoken(
            f"s-{number}", f"token-{number}", resume, init.audio_format or "opus", init.sample_rate or 16000
        )
        self.sessions[session.id] = session
        connection.session = session
        self.says(self._ack(session, resume_token=session.token if resume else None), session)

    def _resume(self, connection: PeerConnection, message: SessionResume) -> None:
        session = self.sessions.get(message.session_id)
        if self.forgets or session is None or session.token != message.resume_token:
            connection.send(Error(code=ErrorCode.INVALID_SESSION, message="There is no such session."))
            return
        for other in self._connections_of(session):
            other.session = None
        connection.session = session
        session.buffer.clear()
        missed = [one for one in session.outbox if (one.seq or 0) > message.last_seq]
        ack = self._ack(session, resumed=True, next_index=session.next_index, audio_seq=session.audio_seq)
        self.says(ack, session)
        for one in missed:
            connection.send(one)

    def _ack(self, session: Spoken, **fields: Any) -> SessionInitAck:
        return SessionInitAck(
            session_id=session.id,
            message="welcome",
            trace_id=f"trace-{session.id}",
            protocol_version="1.0",
            use_binary_frame=self.binary,
            negotiated_codec="opus",
            negotiated_audio_format=session.format,
            negotiated_sample_rate=session.sample_rate,
            negotiated_channel_count=1,
            **fields,
        )

    def _chunk(self, session: Spoken, seq: int, data: bytes, is_final: bool) -> None:
        session.chunk_seqs.append(seq)
        session.buffer.append((seq, data))
        if is_final:
            self._cut(session)

    def _cut(self, session: Spoken) -> None:
        data = b"".join(piece for _, piece in session.buffer)
        if session.buffer:
            session.audio_seq = session.buffer[-1][0]
        session.buffer.clear()
        if data:
            session.next_index += 1
            self._order(session, data, session.next_index - 1)

    def _order(self, session: Spoken, data: bytes, index: int) -> None:
        session.utterances.append(data)
        self.says(step(session.id, index), session)
        if self.answers:
            self.translates(index, f"{len(data)} bytes", session=session)

    # ------------------------------------------------------------ what we say

    def says(self, message: Message, session: Spoken | None = None) -> None:
        """To the session's connection, numbered and kept if it can resume; it may have none now."""
        session = session or self.session
        if session.resume and isinstance(message, Numbered):
            session.seq += 1
            message = msgspec.structs.replace(message, seq=session.seq)
            session.outbox.append(message)
        for connection in self._connections_of(session):
            if not connection.gone.is_set():
                connection.send(message)

    def _connections_of(self, session: Spoken) -> list[PeerConnection]:
        return [one for one in self.connections if one.session is session]

    def translates(self, index: int, text: str = "heard", *, session: Spoken | None = None, **fields: Any) -> None:
        session = session or self.session
        self.says(result(session.id, index, text, **fields), session)

    def fails(self, index: int, code: str, message: str) -> None:
        self.says(Error(code=code, message=message, details={"utterance_index": index, "job_id": f"job-{index}"}))


def result(session_id: str, index: int, text: str = "heard", **fields: Any) -> TranslationResult:
    return TranslationResult(
        session_id=session_id,
        utterance_index=index,
        job_id=f"job-{index}",
        trace_id=f"trace-{index}",
        text_asr=text,
        text_translated=f"[es] {text}",
        tts_audio=fields.pop("tts_audio", audio.NO_AUDIO),
        tts_format="opus",
        scheduler_sent_at_ms=1,
        group_id=f"group_{session_id}_{index}",
        part_index=0,
        **fields,
    )


def step(session_id: str, index: int, event: str = "DISPATCHED") -> UiEvent:
    return UiEvent(
        trace_id=f"trace-{index}", session_id=session_id, job_id=f"job-{index}", utterance_index=index,
        event=event, status="ok", elapsed_ms=1.0,
    )  # fmt: skip


def run_of(packets: int) -> bytes:
    return audio.opus_run([audio.SILENCE_PACKET] * packets)


@asynccontextmanager
async def serving() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.listen()
    try:
        yield server
    finally:
        await server.close()


def session_at(server: FakeServer, **options: Any) -> Session:
    """A session that does not wait where a real one would."""
    unhurried = Throttle(per_s=10_000, slow_s=0.02, after_final_s=0.0)
    defaults: dict[str, Any] = {"src": "en", "tgt": "es", "timing": QUICK, "throttle": unhurried}
    return Session(options.pop("url", server.url), **defaults | options)
