"""The literal names of the wire: what clients and nodes send and get today must decode and encode the same tomorrow.

samples.json holds at least one message of each type and, over all samples, every field of every type.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from dragoman.protocol import audio, codec
from dragoman.protocol.codes import ErrorCode, ProtocolError
from dragoman.protocol.fields import Message
from dragoman.protocol.node import NodeMessage, ToNode
from dragoman.protocol.session import ClientMessage, ServerMessage
from support.tables import for_each

SAMPLES: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("samples.json").read_text(encoding="utf-8")
)
DECODERS: dict[str, Callable[[bytes | str], Message]] = {
    "client": codec.decode_client,
    "server": codec.decode_server,
    "node": codec.decode_node,
    "to_node": codec.decode_to_node,
}
UNIONS: dict[str, Any] = {"client": ClientMessage, "server": ServerMessage, "node": NodeMessage, "to_node": ToNode}
EVERY_SAMPLE = [(side, name) for side in DECODERS for name in SAMPLES[side]]
EVERY_TYPE = [(side, kind) for side, union in UNIONS.items() for kind in get_args(union)]

# What the server never leaves out, by type. (Types that are not here have only required fields, or none that matter.)
ALWAYS = {
    "translation_result": "session_id utterance_index job_id trace_id text_asr text_translated tts_audio tts_format "
    "scheduler_sent_at_ms",
    "session_init_ack": "session_id message trace_id protocol_version use_binary_frame negotiated_codec "
    "negotiated_audio_format negotiated_sample_rate negotiated_channel_count",
    "asr_partial": "session_id utterance_index job_id text is_final trace_id",
    "ui_event": "trace_id session_id job_id utterance_index event status",
    "job_assign": "job_id attempt_id session_id utterance_index src_lang tgt_lang pipeline audio audio_format "
    "sample_rate trace_id",
    "node_register_ack": "node_id message status",
    "error": "code message",
}


def tag_of(kind: type[Message]) -> str:
    return str(kind.__struct_config__.tag)


def sample_of(side: str, kind: type[Message]) -> dict[str, Any]:
    return max((s for s in SAMPLES[side].values() if s["type"] == tag_of(kind)), key=len)


def known(message: dict[str, Any], kind: type) -> dict[str, Any]:
    """The message without nulls and without what the type does not know, as it must come back."""
    names = {field.name for field in msgspec.structs.fields(kind)} | {"type"}
    return {name: value for name, value in message.items() if name in names and value is not None}


@for_each(EVERY_SAMPLE)
def test_a_message_decodes_and_encodes_to_itself(side: str, name: str) -> None:
    sample = SAMPLES[side][name]
    message = DECODERS[side](json.dumps(sample))
    again = json.loads(codec.encode(message))
    for part in ("capability_by_type", "installed_services"):  # nodes say more of these than anybody reads
        for entry in sample.get(part, ()):
            entry.pop("devices", None)
    assert again == known(sample, type(message))


@for_each(EVERY_SAMPLE)
def test_a_sample_of_non_ascii_text_is_the_same_as_bytes_and_as_str(side: str, name: str) -> None:
    text = json.dumps(SAMPLES[side][name], ensure_ascii=False)
    assert codec.encode(DECODERS[side](text)) == codec.encode(DECODERS[side](text.encode()))


@for_each(EVERY_TYPE)
def test_every_field_of_every_type_has_been_seen_in_a_sample(side: str, kind: type[Message]) -> None:
    seen = {name for s in SAMPLES[side].values() if s["type"] == tag_of(kind) for name in s}
    unseen = {field.encode_name for field in msgspec.structs.fields(kind)} - seen
    # seq is the server's mark on what it forwards; no client sends it.
    assert unseen <= ({"seq"} if side in ("client", "to_node") else set())


@for_each(EVERY_TYPE)
def test_unknown_fields_are_ignored(side: str, kind: type[Message]) -> None:
    sample = sample_of(side, kind)
    message = DECODERS[side](json.dumps(sample | {"x_new": {"deep": [1, {"a": None}]}}))
    assert codec.encode(message) == codec.encode(DECODERS[side](json.dumps(sample)))


@for_each(EVERY_TYPE)
def test_null_is_the_same_as_nothing_for_every_optional_field(side: str, kind: type[Message]) -> None:
    sample = sample_of(side, kind)
    for field in msgspec.structs.fields(kind):
        if not field.required:
            without = {name: value for name, value in sample.items() if name != field.name}
            with_null = DECODERS[side](json.dumps(sample | {field.name: None}))
            as_sent = json.loads(codec.encode(with_null))
            assert as_sent.get(field.name) is None
            assert {k: v for k, v in as_sent.items() if v is not None} == json.loads(
                codec.encode(DECODERS[side](json.dumps(without)))
            )


@for_each(EVERY_TYPE)
def test_a_missing_required_field_is_named(side: str, kind: type[Message]) -> None:
    sample = sample_of(side, kind)
    for field in msgspec.structs.fields(kind):
        if field.required:
            without = {name: value for name, value in sample.items() if name != field.name}
            with pytest.raises(ProtocolError) as refused:
                DECODERS[side](json.dumps(without))
            assert refused.value.code is ErrorCode.INVALID_MESSAGE
            assert refused.value.message == f"Required field `{field.name}` is missing."


@for_each(EVERY_TYPE)
def test_a_required_field_of_the_wrong_type_is_named(side: str, kind: type[Message]) -> None:
    sample = sample_of(side, kind)
    takes_anything = {"sdp", "candidate"}
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in takes_anything:
            wrong = {"no": "such"} if isinstance(sample[field.name], (str, int, float, list)) else 7
            with pytest.raises(ProtocolError) as refused:
                DECODERS[side](json.dumps(sample | {field.name: wrong}))
            assert f"`{field.name}`" in refused.value.message


# What a node may leave out of what it tells of itself: the server needs none of it to register the node.
OPTIONAL_OF_NODES = {
    "node_register": "node_id installed_models installed_services capability_by_type features_supported "
    "advanced_features language_capabilities text_pairs token",
    "node_heartbeat": "installed_models installed_services capability_by_type language_capabilities rerun_metrics "
    "asr_metrics processing_metrics",
}
EVERY_OPTIONAL_OF_NODES = [(tag, name) for tag, names in OPTIONAL_OF_NODES.items() for name in names.split()]


@for_each(EVERY_OPTIONAL_OF_NODES)
def test_node_message_is_accepted_when_an_optional_field_is_absent_or_null(tag: str, name: str) -> None:
    sample = SAMPLES["node"][tag]
    without = {key: value for key, value in sample.items() if key != name}
    for message in (without, without | {name: None}):
        assert tag_of(type(codec.decode_node(json.dumps(message)))) == tag


@for_each(product(OPTIONAL_OF_NODES, ["asr_languages", "tts_languages", "semantic_languages"]))
def test_language_capabilities_are_accepted_when_a_list_is_absent_or_null(tag: str, name: str) -> None:
    sample = SAMPLES["node"][tag]
    without = {key: value for key, value in sample["language_capabilities"].items() if key != name}
    for capabilities in (without, without | {name: None}):
        message = codec.decode_node(json.dumps(sample | {"language_capabilities": capabilities}))
        assert getattr(message.language_capabilities, name) is None  # type: ignore[union-attr]


def test_empty_optional_fields_are_omitted_and_required_fields_are_present() -> None:
    for side in ("server", "to_node"):
        for kind in get_args(UNIONS[side]):
            if tag_of(kind) in ALWAYS:
                sample = sample_of(side, kind)
                names = ALWAYS[tag_of(kind)].split()
                smallest = DECODERS[side](json.dumps({"type": tag_of(kind)} | {n: sample[n] for n in names}))
                assert set(json.loads(codec.encode(smallest))) == {"type", *names}


@for_each(["is_manual_cut", "is_timeout_triggered", "is_max_duration_triggered"])
def test_a_cut_flag_that_is_false_is_left_out(name: str) -> None:
    sample = SAMPLES["to_node"]["job_assign with everything"]
    message = codec.decode_to_node(json.dumps(sample | {name: False}))
    assert name not in json.loads(codec.encode(message))


def test_a_pipeline_reaches_a_node_with_all_five_steps() -> None:
    sample = SAMPLES["client"]["utterance with everything"]
    short = {"use_asr": True, "use_nmt": False, "use_tts": True, "use_tone": None}
    utterance = json.loads(codec.encode(codec.decode_client(json.dumps(sample | {"pipeline": short}))))
    assert utterance["pipeline"] == short | {"use_semantic": False, "use_tone": False}


@for_each(["platform", "mode", "audio_format"])
def test_unknown_values_of_open_fields_are_accepted(field: str) -> None:
    sample = SAMPLES["client"]["session_init with everything"]
    message = codec.decode_client(json.dumps(sample | {field: "hologram"}))
    assert json.loads(codec.encode(message))[field] == "hologram"


def test_the_codes_are_those_of_the_protocol() -> None:
    words = """
        INVALID_MESSAGE INTERNAL_ERROR INVALID_SESSION SESSION_CLOSED NODE_UNAVAILABLE NODE_OVERLOADED
        MODEL_NOT_AVAILABLE MODEL_LOAD_FAILED UNSUPPORTED_FEATURE INVALID_PAIRING_CODE NO_AVAILABLE_NODE
        WS_DISCONNECTED NMT_TIMEOUT TTS_TIMEOUT JOB_TIMEOUT MODEL_VERIFY_FAILED MODEL_CORRUPTED NO_GPU_AVAILABLE
        NODE_ID_CONFLICT INVALID_CAPABILITY_SCHEMA SCHEDULER_DEPENDENCY_DOWN PROCESSING_ERROR INSTANCE_LOST
        LIMIT_EXCEEDED
    """
    assert [str(code) for code in ErrorCode] == words.split()


def test_binary_frame_of_a_web_client_is_decoded_and_encoded_unchanged() -> None:
    for sample in SAMPLES["binary"].values():
        data = bytes.fromhex(sample["starts_with"]) + bytes(sample["audio_bytes"])
        frame = audio.parse_frame(data)
        assert frame.kind == sample["frame_type"]
        assert (frame.session_id, frame.seq, frame.ts_low32) == (
            sample["session_id"],
            sample["seq"],
            sample["ts_low32"],
        )
        assert len(frame.audio) == sample["audio_bytes"]
        assert frame.is_final == (frame.kind == audio.FrameKind.FINAL)
        assert audio.build_frame(frame) == data


def test_the_audio_of_every_sample_is_a_run_of_opus_packets() -> None:
    for side, names in (("client", ("payload", "audio")), ("node", ("tts_audio",)), ("to_node", ("audio",))):
        for sample in SAMPLES[side].values():
            message = DECODERS[side](json.dumps(sample))
            for name in names:
                if isinstance(sample.get(name), str):
                    audio.opus_packets(audio.decode_base64(getattr(message, name)))
