"""Messages between clients and the server, on /ws/session.

Fields without a default are required; every other one may be missing or null. Order in a file is order of a
session's life: open, speak, listen, close. Messages about rooms are in `rooms.py`.
"""

from typing import Any

from dragoman.protocol.fields import (
    ABSENT,
    Base64,
    Count,
    Id,
    Index,
    JsonAny,
    JsonArray,
    JsonObject,
    Lang,
    Langs,
    Message,
    Name,
    Numbered,
    OptionalLang,
    Part,
    SampleRate,
    Sentence,
    SmallJsonObject,
    Token,
    UnixMs,
    Word,
)
from dragoman.protocol.rooms import RoomCommand, RoomMessage, WebrtcMessage

VAD_SERVER = "server"  # `vad`: the server finds where utterances begin and end

# ---------------------------------------------------------------- client → server


class SessionInit(Message, tag="session_init"):
    client_version: Word
    platform: Word
    src_lang: Lang
    tgt_lang: Lang
    dialect: Word | None = None
    features: SmallJsonObject = ABSENT
    pairing_code: Word | None = None
    tenant_id: Name | None = None
    mode: Word | None = None
    lang_a: OptionalLang = None
    lang_b: OptionalLang = None
    auto_langs: Langs | None = None
    enable_streaming_asr: bool | None = None
    partial_update_interval_ms: Count | None = None
    trace_id: Id | None = None
    token: Token | None = None
    audio_format: Word | None = None
    sample_rate: SampleRate | None = None
    resume: bool | None = False
    utterance_end: bool | None = False
    previews: bool | None = False  # words while the user speaks
    vad: Word | None = None


class SessionResume(Message, tag="session_resume"):
    session_id: Id
    resume_token: Name
    last_seq: Count
    token: Token | None = None


class AudioChunk(Message, tag="audio_chunk"):
    session_id: Id
    seq: Count
    is_final: bool
    payload: Base64 = ABSENT
    client_timestamp_ms: UnixMs | None = None


class Pipeline(Part, omit_defaults=False):
    """The steps of a job. A message to a node always has all five."""

    use_asr: bool
    use_nmt: bool
    use_tts: bool
    use_semantic: bool | None = False
    use_tone: bool | None = False

    def __post_init__(self) -> None:
        self.use_semantic = bool(self.use_semantic)
        self.use_tone = bool(self.use_tone)


class Utterance(Message, tag="utterance"):
    session_id: Id
    utterance_index: Index
    manual_cut: bool
    src_lang: Lang
    tgt_lang: Lang
    audio: Base64
    audio_format: Word
    sample_rate: SampleRate
    dialect: Word | None = None
    features: SmallJsonObject = ABSENT
    mode: Word | None = None
    lang_a: OptionalLang = None
    lang_b: OptionalLang = None
    auto_langs: Langs | None = None
    enable_streaming_asr: bool | None = None
    partial_update_interval_ms: Count | None = None
    trace_id: Id | None = None
    pipeline: Pipeline | None = None


class ClientHeartbeat(Message, tag="client_heartbeat"):
    session_id: Id
    timestamp: UnixMs
    last_seq: Count | None = None


class TtsStarted(Message, tag="tts_started"):
    session_id: Id
    trace_id: Id
    group_id: Id
    ts_start_ms: UnixMs


class TtsPlayEnded(Message, tag="tts_play_ended"):
    session_id: Id
    trace_id: Id
    group_id: Id
    ts_end_ms: UnixMs


class SessionClose(Message, tag="session_close"):
    session_id: Id
    reason: Sentence


ClientMessage = (
    SessionInit
    | SessionResume
    | AudioChunk
    | Utterance
    | ClientHeartbeat
    | TtsStarted
    | TtsPlayEnded
    | SessionClose
    | RoomCommand
)

# ---------------------------------------------------------------- server → client


class SessionInitAck(Numbered, tag="session_init_ack"):
    session_id: Id
    message: str
    trace_id: Id
    protocol_version: str
    use_binary_frame: bool
    negotiated_codec: str
    negotiated_audio_format: str
    negotiated_sample_rate: int
    negotiated_channel_count: int
    assigned_node_id: str | None = None
    resume_token: str | None = None
    resumed: bool | None = None
    next_index: Index | None = None
    audio_seq: Count | None = None
    vad: str | None = None


class ServerHeartbeat(Numbered, tag="server_heartbeat"):
    session_id: Id
    timestamp: UnixMs


class ServiceTimings(Part):
    asr_ms: float | None = None
    nmt_ms: float | None = None
    tts_ms: float | None = None
    total_ms: float | None = None


class NetworkTimings(Part):
    web_to_scheduler_ms: float | None = None
    scheduler_to_node_ms: float | None = None
    node_to_scheduler_ms: float | None = None
    scheduler_to_web_ms: float | None = None


class TranslationResult(Numbered, tag="translation_result"):
    session_id: Id
    utterance_index: Index
    job_id: Id
    trace_id: Id
    text_asr: str
    text_translated: str
    tts_audio: Base64
    tts_format: str
    scheduler_sent_at_ms: UnixMs
    extra: JsonObject = ABSENT
    group_id: Id | None = None
    part_index: Count | None = None
    service_timings: ServiceTimings | None = None
    network_timings: NetworkTimings | None = None
    backfilled: bool | None = False
    asr_quality_level: str | None = None
    reason_codes: JsonArray = ABSENT
    quality_score: float | None = None
    rerun_count: Count | None = None
    segments_meta: JsonAny = ABSENT


class UtteranceEnd(Numbered, tag="utterance_end"):
    """How an utterance ended: `state` is sent, backfilled, empty, failed or skipped. The last message about it.

    Only for sessions that asked for it in session_init. `job_id` is missing if no job was made for the index.
    """

    session_id: Id
    utterance_index: Index
    state: str
    job_id: Id | None = None


class AsrPartial(Message, tag="asr_partial", kw_only=True):
    """What was recognised so far: by a job, or by a preview while the utterance is spoken. An empty text of a preview:
    the words disappear, because no utterance follows."""

    session_id: Id
    utterance_index: Index
    job_id: Id | None = None
    preview_id: Id | None = None
    text: str
    is_final: bool
    trace_id: Id


class UiEvent(Numbered, tag="ui_event"):
    trace_id: Id
    session_id: Id
    job_id: Id
    utterance_index: Index
    event: str
    status: str
    elapsed_ms: float | None = None
    error_code: str | None = None
    hint: str | None = None


class Backpressure(Numbered, tag="backpressure"):
    action: str
    resume_after_ms: Count | None = None
    message: str | None = None


class LanguageDetected(Numbered, tag="language_detected"):
    session_id: Id
    lang: str
    confidence: float


class SessionCloseAck(Numbered, tag="session_close_ack"):
    session_id: Id


class Error(Numbered, tag="error"):
    """Also sent to nodes. To clients `trace_id` is always that of session_init_ack, the job's goes into `details`."""

    code: str
    message: str
    details: Any = None
    trace_id: Id | None = None


ServerMessage = (
    SessionInitAck
    | ServerHeartbeat
    | TranslationResult
    | UtteranceEnd
    | AsrPartial
    | UiEvent
    | Backpressure
    | LanguageDetected
    | SessionCloseAck
    | RoomMessage
    | WebrtcMessage
    | Error
)
