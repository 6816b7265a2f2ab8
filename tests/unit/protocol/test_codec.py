import json
from collections.abc import Callable

import msgspec
import pytest

from dragoman.protocol import codec
from dragoman.protocol.codes import ErrorCode, ProtocolError
from dragoman.protocol.fields import ABSENT, Message, keep
from dragoman.protocol.node import JobAssign, JobError, JobResult, NodeRegister
from dragoman.protocol.session import AudioChunk, Pipeline, SessionInit, TranslationResult, Utterance
from support.tables import for_each

Decode = Callable[[bytes | str], Message]

CHUNK = b'{"type":"audio_chunk","session_id":"s-1","seq":0,"is_final":false,"payload":"AAAA"}'
RESULT = (
    b'{"type":"job_result","job_id":"job-1","attempt_id":1,"node_id":"node-1","session_id":"s-1","utterance_index":0,'
    b'"success":true,"trace_id":"t","tts_audio":"AAAA","extra":{"a":[1,{"b":"\\u4f60"}]},"error":{"code":"X",'
    b'"message":"y","details":[null]},"text_asr":"\xe4\xbd\xa0","quality_score":0.5}'
)
INIT = (
    b'{"type":"session_init","client_version":"1","platform":"web","src_lang":"zh","tgt_lang":"en",'
    b'"features":{},"auto_langs":["zh","en"],"partial_update_interval_ms":100,"resume":true}'
)
REGISTER = (
    b'{"type":"node_register","node_id":null,"version":"1","capability_schema_version":"2.0","platform":"linux",'
    b'"hardware":{"cpu_cores":2,"memory_gb":24},"installed_models":[],"installed_services":[{"service_id":"a",'
    b'"type":"asr"}],"capability_by_type":[{"type":"asr","ready":true}],"features_supported":{},'
    b'"accept_public_jobs":true}'
)


def refusal(decode: Decode, data: bytes | str) -> str:
    with pytest.raises(ProtocolError) as refused:
        decode(data)
    assert refused.value.code is ErrorCode.INVALID_MESSAGE
    return refused.value.message


def with_extra(value: bytes) -> bytes:
    return RESULT.replace(b'{"a":[1,{"b":"\\u4f60"}]}', value)


@for_each(
    [
        (b"", "The message is not valid JSON: Input data was truncated."),
        (b"null", "The message is not a JSON object with a `type`: Expected `object`, got `null`."),
        (b"{}", "Required field `type` is missing."),
        (b'{"type":"audio_chunk"}', "Required field `session_id` is missing."),
        (b'{"type":"nonsense"}', "Unknown message type: invalid value 'nonsense'."),
        (b'{"type":7}', "Unknown message type: expected `str`."),
        (CHUNK.replace(b'"seq":0', b'"seq":"0"'), "Field `seq`: expected `int`, got `str`."),
        (CHUNK.replace(b'"seq":0', b'"seq":-1'), "Field `seq`: expected `int` >= 0."),
        (CHUNK.replace(b'"AAAA"', b"5"), "Field `payload`: expected `str`."),
        (CHUNK.replace(b'"AAAA"', b'"\xff"'), "The message is not valid UTF-8."),
        (CHUNK.replace(b"s-1", b"\xed\xa0\x80"), "The message is not valid UTF-8."),
        (
            CHUNK + b"}",
            f"The message is not valid JSON: JSON is malformed: trailing characters (byte {len(CHUNK) + 1}).",
        ),
    ]
)
def test_a_refusal_is_a_sentence_that_names_the_field(data: bytes, sentence: str) -> None:
    assert refusal(codec.decode_client, data) == sentence


def test_a_field_deep_in_a_message_is_named_by_its_path() -> None:
    broken = REGISTER.replace(b'"service_id":"a",', b"")
    assert refusal(codec.decode_node, broken) == "Required field `installed_services[0].service_id` is missing."


@for_each([b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\ud800"', b'"\\ud800x"', b'{"a":"\xff"}', b'{"\xff":1}', b"[1,]"])
def test_raw_fields_are_still_checked_to_be_valid_json(value: bytes) -> None:
    refusal(codec.decode_node, with_extra(value))
    refusal(codec.decode_node, RESULT.replace(b'"extra"', b'"unknown":' + value + b',"extra"'))


def test_a_lone_surrogate_in_a_str_is_refused() -> None:
    assert refusal(codec.decode_client, '{"type":"\ud800"}') == "The message is not valid UTF-8."


def test_a_message_nested_too_deeply_is_refused() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert refusal(codec.decode_node, with_extra(deep)) == "The message is nested too deeply."


@for_each([17, 20, 400, 5000])
def test_a_huge_number_is_refused(digits: int) -> None:
    assert "`seq`" in refusal(codec.decode_client, CHUNK.replace(b'"seq":0', b'"seq":' + b"9" * digits))


def test_an_index_goes_up_to_two_to_the_53() -> None:
    highest = CHUNK.replace(b'"seq":0', b'"seq":%d' % 2**53)
    chunk = codec.decode_client(highest)
    assert isinstance(chunk, AudioChunk)
    assert chunk.seq == 2**53


def test_a_refusal_does_not_quote_a_whole_message() -> None:
    assert len(refusal(codec.decode_client, b'{"type":"%b"}' % (b"z" * 1_000_000))) <= 200


@for_each(["a}b", "a b", "", "x" * 36, "en\n"])
def test_a_language_that_could_not_be_part_of_a_key_is_refused(name: str) -> None:
    broken = INIT.replace(b'"zh"', json.dumps(name).encode(), 1)
    assert "`src_lang`" in refusal(codec.decode_client, broken)


@for_each(["node-{1}", "", "a:b", "x" * 65])
def test_a_node_may_not_claim_an_id_that_could_not_be_part_of_a_key(name: str) -> None:
    broken = REGISTER.replace(b'"node_id":null', b'"node_id":' + json.dumps(name).encode())
    assert "`node_id`" in refusal(codec.decode_node, broken)


def test_audio_goes_from_a_result_to_a_listener_byte_for_byte() -> None:
    result = codec.decode_node(RESULT.replace(b'"AAAA"', b'"AA\\/A"'))
    assert isinstance(result, JobResult)
    sent = TranslationResult("s-1", 0, "job-1", "t", "", "", result.tts_audio, "opus", 1, extra=result.extra)
    encoded = codec.encode(sent)
    assert b'"tts_audio":"AA\\/A"' in encoded
    assert b'"extra":{"a":[1,{"b":"\\u4f60"}]}' in encoded


def test_absent_payloads_stay_absent_when_passed_on() -> None:
    init = codec.decode_client(INIT.replace(b'"features":{},', b""))
    assert isinstance(init, SessionInit)
    for features in (init.features, keep(init.features), ABSENT):
        assign = JobAssign(
            "job-1", 1, "s-1", 0, "zh", "en", Pipeline(True, True, True), codec.raw("AAAA"), "opus", 16000, "t"
        )
        assign.features = features
        assert "features" not in json.loads(codec.encode(assign))


def test_a_kept_payload_does_not_hold_its_message() -> None:
    result = codec.decode_node(RESULT)
    assert isinstance(result, JobResult)
    kept = keep(result.extra)
    assert bytes(kept) == bytes(result.extra)
    assert kept is not result.extra


def test_a_payload_that_is_null_is_absent() -> None:
    chunk = codec.decode_client(CHUNK.replace(b'"AAAA"', b"null"))
    assert isinstance(chunk, AudioChunk)
    assert chunk.payload is ABSENT


def test_a_required_payload_may_not_be_null() -> None:
    data = (
        b'{"type":"utterance","session_id":"s-1","utterance_index":0,"manual_cut":true,"src_lang":"zh",'
        b'"tgt_lang":"en","audio":null,"audio_format":"opus","sample_rate":16000}'
    )
    assert refusal(codec.decode_client, data) == "Field `audio`: expected `str`."
    assert isinstance(codec.decode_client(data.replace(b"null", b'""')), Utterance)


@for_each(
    [
        (b'{"a":{"reason":"x"},"reason":"ASR_EMPTY"}', "ASR_EMPTY"),
        (b'{"reason":null}', None),
        (b'{"reason":{"why":1}}', None),
        (b"{}", None),
    ]
)
def test_the_reason_of_an_empty_result_is_found(extra: bytes, reason: str | None) -> None:
    result = codec.decode_node(with_extra(extra))
    assert isinstance(result, JobResult)
    assert codec.reason_of(result.extra) == reason


def test_a_result_without_extra_has_no_reason() -> None:
    assert codec.reason_of(ABSENT) is None


def test_the_missing_model_is_found_in_the_details() -> None:
    details = codec.raw({"service_id": "nmt", "service_version": "2", "reason": "not_loaded", "more": 1})
    error = JobError(ErrorCode.MODEL_NOT_AVAILABLE, "", details)
    assert codec.unavailable_model(error) == codec.ModelDetails("nmt", "2", "not_loaded")


@for_each([ABSENT, msgspec.Raw(b"null"), msgspec.Raw(b"[]"), msgspec.Raw(b'{"service_id":1}')])
def test_details_that_name_no_model_are_no_error(details: msgspec.Raw) -> None:
    assert codec.unavailable_model(JobError("MODEL_NOT_AVAILABLE", "", details)) is None


@for_each(["INVALID_MESSAGE", "INVALID_SESSION", "SESSION_CLOSED"])
def test_a_failure_is_final_by_its_code(code: str) -> None:
    assert codec.is_final(JobError(code, ""))


@for_each([(b'{"final":true,"more":1}', True), (b'{"final":false}', False), (b'{"final":1}', False), (b"[]", False)])
def test_failure_is_final_when_its_node_marks_it_final(details: bytes, final: bool) -> None:
    assert codec.is_final(JobError("PROCESSING_ERROR", "", msgspec.Raw(details))) is final
    assert not codec.is_final(JobError("PROCESSING_ERROR", ""))


def test_a_register_without_an_id_is_the_first_one() -> None:
    register = codec.decode_node(REGISTER)
    assert isinstance(register, NodeRegister)
    assert register.node_id is None


# ---------------------------------------------------------------- whatever comes, nothing but ProtocolError


def decoded(decode: Decode, data: bytes | str) -> Message | ProtocolError:
    try:
        return decode(data)
    except ProtocolError as error:
        return error


def test_a_type_of_any_length_is_refused_as_one_that_is_not_known() -> None:
    with pytest.raises(ProtocolError, match="Unknown message type: invalid value 'xxx") as refused:
        codec.decode_client(b'{"type":"%b"}' % (b"x" * 100_000))
    assert len(refused.value.message) <= 200
