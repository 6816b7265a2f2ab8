"""Messages between compute nodes and the server, on /ws/node.

Fields without a default are required; every other one may be missing or null. What nodes report about themselves is
checked leniently (most of it is optional): a node must not be refused for a detail that is not used.
"""

import re
from typing import Annotated

from msgspec import Meta

from dragoman.protocol.codes import NodeFeature
from dragoman.protocol.fields import (
    ABSENT,
    MAX_ENTRIES,
    MAX_PAIRS,
    Base64,
    ClaimedNodeId,
    Count,
    Id,
    Index,
    JsonAny,
    JsonArray,
    JsonObject,
    LangPair,
    Langs,
    Message,
    Name,
    Names,
    Part,
    SampleRate,
    Sentence,
    Text,
    Token,
    UnixMs,
    Word,
)
from dragoman.protocol.session import Error, Pipeline

# ---------------------------------------------------------------- capabilities of a node


class Gpu(Part):
    name: Name
    memory_gb: float | None = None


class Hardware(Part):
    cpu_cores: Count
    memory_gb: float
    gpus: Annotated[list[Gpu], Meta(max_length=MAX_ENTRIES)] | None = None


class InstalledModel(Part):
    model_id: Name
    kind: Name | None = None
    src_lang: Name | None = None
    tgt_lang: Name | None = None
    dialect: Name | None = None
    version: Name | None = None
    enabled: bool | None = None


class InstalledService(Part):
    service_id: Name
    type: Name
    device: Name | None = None
    status: Name | None = None
    version: Name | None = None


class Capability(Part):
    """One entry of `capability_by_type`: whether the node is ready for asr, nmt, tts, semantic…"""

    type: Name
    ready: bool


class LanguageCapabilities(Part):
    """A node serves every ordered pair asr × semantic."""

    asr_languages: Langs | None = None
    tts_languages: Langs | None = None
    semantic_languages: Langs | None = None
    semantic_core_ready: bool | None = None


class ResourceUsage(Part):
    cpu_percent: float
    mem_percent: float
    running_jobs: Count
    gpu_percent: float | None = None
    gpu_mem_percent: float | None = None
    gpu_queue_length: Count | None = None


# ---------------------------------------------------------------- node → server


class NodeRegister(Message, tag="node_register"):
    version: Name
    capability_schema_version: Word
    platform: Name
    hardware: Hardware
    accept_public_jobs: bool
    node_id: ClaimedNodeId | None = None
    installed_models: Annotated[list[InstalledModel], Meta(max_length=MAX_ENTRIES)] | None = None
    installed_services: Annotated[list[InstalledService], Meta(max_length=MAX_ENTRIES)] | None = None
    capability_by_type: Annotated[list[Capability], Meta(max_length=MAX_ENTRIES)] | None = None
    features_supported: JsonObject = ABSENT
    advanced_features: Names | None = None
    language_capabilities: LanguageCapabilities | None = None
    # Source and target of text jobs; the source `auto`: the node detects the language.
    text_pairs: Annotated[list[LangPair], Meta(max_length=MAX_PAIRS)] | None = None
    token: Token | None = None


class NodeHeartbeat(Message, tag="node_heartbeat"):
    node_id: Id
    timestamp: UnixMs
    resource_usage: ResourceUsage
    installed_models: Annotated[list[InstalledModel], Meta(max_length=MAX_ENTRIES)] | None = None
    installed_services: Annotated[list[InstalledService], Meta(max_length=MAX_ENTRIES)] | None = None
    capability_by_type: Annotated[list[Capability], Meta(max_length=MAX_ENTRIES)] | None = None
    language_capabilities: LanguageCapabilities | None = None
    rerun_metrics: JsonAny = ABSENT
    asr_metrics: JsonAny = ABSENT
    processing_metrics: JsonAny = ABSENT


class JobAck(Message, tag="job_ack"):
    """The job is in the node's queue."""

    job_id: Id
    attempt_id: Count
    node_id: Id
    session_id: Id
    trace_id: Id


class JobStarted(Message, tag="job_started"):
    """The node works on the job."""

    job_id: Id
    attempt_id: Count
    node_id: Id
    session_id: Id
    trace_id: Id


class NodePartial(Message, tag="asr_partial", kw_only=True):
    """What was recognised so far, of a job or of a preview."""

    job_id: Id | None = None
    preview_id: Id | None = None
    node_id: Id
    session_id: Id
    utterance_index: Index
    text: Text
    is_final: bool
    trace_id: Id

    def __post_init__(self) -> None:
        if not self.job_id and not self.preview_id:
            raise ValueError("Object missing required field `job_id` or `preview_id`")


class PreviewRefused(Message, tag="preview_refused"):
    """The node does not preview the utterance, or not any more."""

    preview_id: Id
    reason: Sentence


class JobError(Part):
    code: Name
    message: Text
    details: JsonAny = ABSENT


class JobResult(Message, tag="job_result"):
    job_id: Id
    attempt_id: Count
    node_id: Id
    session_id: Id
    utterance_index: Index
    success: bool
    trace_id: Id
    text_asr: Text | None = None
    text_translated: Text | None = None
    tts_audio: Base64 = ABSENT
    tts_format: Word | None = None
    extra: JsonObject = ABSENT
    processing_time_ms: float | None = None
    error: JobError | None = None
    group_id: Id | None = None
    part_index: Count | None = None
    node_completed_at_ms: float | None = None
    asr_quality_level: Name | None = None
    reason_codes: JsonArray = ABSENT
    quality_score: float | None = None
    rerun_count: Count | None = None
    segments_meta: JsonAny = ABSENT


class NodeError(Message, tag="node_error"):
    node_id: Id
    code: Name
    message: Text
    details: JsonAny = ABSENT


NodeMessage = NodeRegister | NodeHeartbeat | JobAck | JobStarted | NodePartial | JobResult | PreviewRefused | NodeError

# ---------------------------------------------------------------- server → node


class NodeRegisterAck(Message, tag="node_register_ack"):
    node_id: Id
    message: str
    status: str


class JobAssign(Message, tag="job_assign"):
    job_id: Id
    attempt_id: Count
    session_id: Id
    utterance_index: Index
    src_lang: str
    tgt_lang: str
    pipeline: Pipeline
    audio: Base64
    audio_format: str
    sample_rate: SampleRate
    trace_id: Id
    dialect: str | None = None
    features: JsonObject = ABSENT
    mode: str | None = None
    lang_a: str | None = None
    lang_b: str | None = None
    auto_langs: list[str] | None = None
    enable_streaming_asr: bool | None = None
    partial_update_interval_ms: Count | None = None
    group_id: Id | None = None
    part_index: Count | None = None
    context_text: str | None = None
    padding_ms: Count | None = None
    turn_id: Id | None = None
    deadline_ms: Count | None = None  # time left for this attempt when the message was sent
    text: str | None = None  # of a text job, which has no audio
    vocabulary: list[str] | None = None  # names and terms that the text may contain
    is_manual_cut: bool | None = False
    is_timeout_triggered: bool | None = False
    is_max_duration_triggered: bool | None = False
    preview_id: Id | None = None  # of its utterance, which this node may have previewed


class JobCancel(Message, tag="job_cancel"):
    job_id: Id
    trace_id: Id | None = None
    reason: str | None = None


class NodeControl(Message, tag="node_control"):
    command: str
    reason: str | None = None


class PreviewOpen(Message, tag="preview_open"):
    """An utterance has begun: recognise what follows in preview_audio. `utterance_index` is the one it will have."""

    preview_id: Id
    session_id: Id
    utterance_index: Index
    src_lang: str
    audio_format: str
    sample_rate: SampleRate
    trace_id: Id
    turn_id: Id | None = None  # of the turn that it continues
    lang_a: str | None = None
    lang_b: str | None = None
    auto_langs: list[str] | None = None
    vocabulary: list[str] | None = None  # names and terms that may be said
    context_text: str | None = None


class PreviewAudio(Message, tag="preview_audio"):
    """The audio since the last one. A gap in `seq`: some was dropped on the way."""

    preview_id: Id
    seq: Count
    audio: Base64


class PreviewClose(Message, tag="preview_close"):
    preview_id: Id
    reason: str


ToNode = NodeRegisterAck | JobAssign | JobCancel | PreviewOpen | PreviewAudio | PreviewClose | NodeControl | Error

# ---------------------------------------------------------------- features with an argument

_NUMBER = re.compile(r"(slots|previews):([1-9][0-9]{0,5})")


def advanced_features(slots: int, *, text_jobs: bool = False, previews: int = 0) -> list[str]:
    """The features of nodes that use the SDK; older nodes have none."""
    lacks = {NodeFeature.TEXT_JOBS: not text_jobs, NodeFeature.PREVIEW: not previews}
    features = [feature for feature in NodeFeature if not lacks.get(feature)]
    return [*features, f"slots:{slots}", *([f"previews:{previews}"] if previews else [])]


def slots_of(features: list[str] | None) -> int | None:
    """N of `slots:N`; None: the node does not say, or it is not a sensible number."""
    return _number("slots", features)


def previews_of(features: list[str] | None) -> int:
    """N of `previews:N`, of a node that can preview."""
    return (_number("previews", features) or 0) if NodeFeature.PREVIEW in (features or ()) else 0


def _number(name: str, features: list[str] | None) -> int | None:
    for feature in features or ():
        if (match := _NUMBER.fullmatch(feature)) and match[1] == name:
            return int(match[2])
    return None
