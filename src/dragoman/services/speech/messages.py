"""Builds the messages to nodes and clients from cuts and results. No state, no decisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import Protocol

import msgspec

from dragoman.domain.job_signals import End
from dragoman.domain.pool import AUTO
from dragoman.domain.segmenter import Cut, OpenUtterance
from dragoman.protocol import extra, ids
from dragoman.protocol.audio import NO_AUDIO, OPUS, encode_base64
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import ErrorCode, RoomErrorCode, UiEventName
from dragoman.protocol.node import JobAssign, JobResult, PreviewOpen
from dragoman.protocol.peer import JobEnded, RoomUtterance
from dragoman.protocol.session import (
    Error,
    NetworkTimings,
    Pipeline,
    SessionInit,
    SessionInitAck,
    TranslationResult,
    UiEvent,
    Utterance,
)
from dragoman.services.speech.job_request import InRoom, JobRequest

PADDING_BY_HAND_MS = 280
NO_FRAME = msgspec.Raw(b"null")
MAX_LAG_MS = 60_000  # beyond it the clocks of the two machines differ
KNOWN_CODES = frozenset[str](ErrorCode) | frozenset[str](RoomErrorCode)


class About(Protocol):
    """What a message about a job contains."""

    @property
    def job_id(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def trace_id(self) -> str: ...

    @property
    def cut_at(self) -> float: ...

    @property
    def room(self) -> RoomUtterance | None:
        """If it was spoken in a room."""


@dataclass(frozen=True, slots=True)
class NoJob:
    """An index without an utterance."""

    index: int
    cut_at: float
    job_id: str = ""
    trace_id: str = ""
    room: RoomUtterance | None = None


def preview_opening(
    preview_id: str,
    init: SessionInit,
    utterance: OpenUtterance,
    session_id: str,
    trace_id: str,
    audio_format: str,
    sample_rate: int,
    vocabulary: Sequence[str],
) -> PreviewOpen:
    return PreviewOpen(
        preview_id=preview_id,
        session_id=session_id,
        utterance_index=utterance.index,
        src_lang=init.src_lang,
        audio_format=audio_format,
        sample_rate=sample_rate,
        trace_id=trace_id,
        turn_id=utterance.turn_id,
        lang_a=init.lang_a,
        lang_b=init.lang_b,
        auto_langs=list(init.auto_langs) if init.auto_langs else None,
        vocabulary=list(vocabulary) or None,
    )


def init_in_room(init: SessionInit, spoken: str) -> SessionInit:
    """As if the session had been opened for what it speaks in its room: it is recognised, and perhaps no more."""
    if spoken == AUTO:
        return msgspec.structs.replace(init, src_lang=AUTO, tgt_lang="")
    return msgspec.structs.replace(init, src_lang=spoken, tgt_lang="", lang_a=None, lang_b=None, auto_langs=None)


def assignment_of_cut(
    session_id: str, init: SessionInit, cut: Cut, audio_format: str, sample_rate: int, preview_id: str | None = None
) -> JobAssign:
    return JobAssign(
        job_id=ids.job_id(),
        attempt_id=1,
        session_id=session_id,
        utterance_index=cut.index,
        src_lang=init.src_lang,
        tgt_lang=init.tgt_lang,
        pipeline=Pipeline(use_asr=True, use_nmt=True, use_tts=True),
        audio=encode_base64(cut.audio),
        audio_format=audio_format,
        sample_rate=sample_rate,
        trace_id=ids.trace_id(),
        dialect=init.dialect,
        features=init.features,
        mode=init.mode,
        lang_a=init.lang_a,
        lang_b=init.lang_b,
        auto_langs=list(init.auto_langs) if init.auto_langs else None,
        enable_streaming_asr=init.enable_streaming_asr is not False,
        partial_update_interval_ms=init.partial_update_interval_ms,
        padding_ms=cut.padding_ms,
        turn_id=cut.turn_id,
        is_manual_cut=cut.is_manual_cut,
        is_timeout_triggered=cut.is_timeout_triggered,
        is_max_duration_triggered=cut.is_max_duration_triggered,
        preview_id=preview_id,
    )


def assignment_of_utterance(message: Utterance, turn_id: str) -> JobAssign:
    """Cut by the client: manual, and a turn of its own."""
    return JobAssign(
        job_id=ids.job_id(),
        attempt_id=1,
        session_id=message.session_id,
        utterance_index=message.utterance_index,
        src_lang=message.src_lang,
        tgt_lang=message.tgt_lang,
        pipeline=message.pipeline or Pipeline(use_asr=True, use_nmt=True, use_tts=True),
        audio=message.audio,
        audio_format=message.audio_format,
        sample_rate=message.sample_rate,
        trace_id=message.trace_id or ids.trace_id(),
        dialect=message.dialect,
        features=message.features,
        mode=message.mode,
        lang_a=message.lang_a,
        lang_b=message.lang_b,
        auto_langs=list(message.auto_langs) if message.auto_langs else None,
        enable_streaming_asr=message.enable_streaming_asr is not False,
        partial_update_interval_ms=message.partial_update_interval_ms,
        padding_ms=PADDING_BY_HAND_MS,
        turn_id=turn_id,
        is_manual_cut=True,
    )


def assignment_in_room(assignment: JobAssign, in_room: InRoom) -> JobAssign:
    """Of an utterance that is spoken in a room: recognise only, or translate into the one language of its turn."""
    turn = in_room.turn
    whole, detects = bool(turn.target), turn.lang == AUTO
    return msgspec.structs.replace(
        assignment,
        src_lang=turn.lang,
        tgt_lang=turn.target or turn.lang,
        pipeline=Pipeline(use_asr=True, use_nmt=whole, use_tts=whole and turn.voice),
        mode=assignment.mode if detects else None,
        lang_a=assignment.lang_a if detects else None,
        lang_b=assignment.lang_b if detects else None,
        auto_langs=assignment.auto_langs if detects else None,
        context_text=in_room.context or None,
        vocabulary=list(in_room.vocabulary) or None,
    )


def needs_of(pipeline: Pipeline) -> frozenset[str]:
    """The service types without which a node cannot serve the pipeline.

    A voice is one of them only if nothing else is asked for: a result without sound is still a translation.
    """
    steps = {"asr": pipeline.use_asr, "nmt": pipeline.use_nmt, "semantic": bool(pipeline.use_semantic)}
    needs = frozenset(name for name, used in steps.items() if used)
    return needs or frozenset(("tts",) if pipeline.use_tts else ())


def without_voice(assignment: JobAssign) -> JobAssign:
    """The same job for a node that has no voice."""
    pipeline = msgspec.structs.replace(assignment.pipeline, use_tts=False)
    return msgspec.structs.replace(assignment, pipeline=pipeline)


def lag_ms(sent_at_ms: float | None) -> float | None:
    """The time since another machine sent something, by its own clock; None where the two clocks cannot agree."""
    lag = None if sent_at_ms is None else round(time() * 1000 - sent_at_ms, 1)
    return lag if lag is not None and 0 <= lag <= MAX_LAG_MS else None


def network_timings(request: JobRequest | None, end: End, result: JobResult) -> NetworkTimings | None:
    """The known network times of an utterance and its result; only the client knows the last one."""
    there = request.client_lag_ms if request is not None else None, end.ack_ms
    back = lag_ms(result.node_completed_at_ms)
    return NetworkTimings(*there, back) if (*there, back) != (None, None, None) else None


def translation(
    session_id: str, trace_id: str, about: About, end: End, request: JobRequest | None, *, backfilled: bool
) -> TranslationResult:
    """Of an end with a result. `request`: if the job was driven by this instance."""
    result = end.result
    assert result is not None, "only a result is translated"
    return TranslationResult(
        session_id=session_id,
        utterance_index=about.index,
        job_id=about.job_id,
        trace_id=trace_id,
        text_asr=result.text_asr or "",
        text_translated=result.text_translated or "",
        tts_audio=result.tts_audio or NO_AUDIO,
        tts_format=result.tts_format or OPUS,
        scheduler_sent_at_ms=int(time() * 1000),
        extra=extra.for_clients(result.extra),
        # Old clients report playback only if there is a group.
        group_id=ids.group_id(session_id, about.index) if result.text_asr else None,
        part_index=0 if result.text_asr else None,
        service_timings=extra.service_timings(result.extra, result.processing_time_ms),
        network_timings=network_timings(request, end, result),
        backfilled=backfilled,
        asr_quality_level=result.asr_quality_level,
        reason_codes=result.reason_codes,
        quality_score=result.quality_score,
        rerun_count=result.rerun_count,
        segments_meta=result.segments_meta,
    )


def event(
    session_id: str,
    trace_id: str,
    about: About,
    name: UiEventName,
    *,
    code: str | None = None,
    hint: str | None = None,
) -> UiEvent:
    return UiEvent(
        trace_id=trace_id,
        session_id=session_id,
        job_id=about.job_id,
        utterance_index=about.index,
        event=name,
        status="ok" if code is None else "error",
        elapsed_ms=round((monotonic() - about.cut_at) * 1000, 1),
        error_code=code,
        hint=hint,
    )


def failure(session_trace_id: str, about: About, end: End) -> Error:
    """Has the trace of the session, or the web client shows an alert; that of the job is in the details."""
    code = end.code if end.code in KNOWN_CODES else ErrorCode.PROCESSING_ERROR
    details = {"job_id": about.job_id, "utterance_index": about.index, "trace_id": about.trace_id}
    return Error(code=code, message=end.message, details=details, trace_id=session_trace_id)


def opened(
    session_id: str, trace_id: str, audio_format: str, sample_rate: int, *, binary_frames: bool, vad: str | None
) -> SessionInitAck:
    return SessionInitAck(
        session_id=session_id,
        message="session opened",
        trace_id=trace_id,
        protocol_version="1.0",
        use_binary_frame=binary_frames,
        negotiated_codec=audio_format,
        negotiated_audio_format=audio_format,
        negotiated_sample_rate=sample_rate,
        negotiated_channel_count=1,
        vad=vad,
    )


def ended_message(session_id: str, about: About, end: End) -> JobEnded:
    """The end of a job, for a session that is, or may soon be, on another instance."""
    return JobEnded(
        session_id=session_id,
        index=about.index,
        job_id=about.job_id,
        trace_id=about.trace_id,
        outcome=end.outcome.value,
        code=end.code,
        message=end.message,
        node_id=end.node_id or "",
        frame=msgspec.Raw(encode(end.result)) if end.result is not None else NO_FRAME,
        room=about.room,
    )
