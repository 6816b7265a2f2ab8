"""The running server gives every message a client or node can send the answer the protocol names.

The messages are the real ones of samples.json, spoken to a real process.
"""

import json
from copy import deepcopy
from functools import partial
from pathlib import Path
from time import time
from typing import Any, get_args

import pytest

from dragoman.protocol.audio import SILENCE_PACKET, AudioFrame, FrameKind, build_frame, encode_base64, opus_run
from dragoman.protocol.node import NodeMessage
from dragoman.protocol.session import ClientMessage
from support.cluster import SPOKEN_PACKET
from support.raw_node import RawNode, at_once, silent
from support.speech import (
    ACKING,
    TIMEOUT_S,
    Harness,
    Scenario,
    Talker,
    after,
    module_harness,
)
from support.tables import for_each
from support.waiting import wait_until

SAMPLES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "samples.json").read_text())
TYPES = {"client": get_args(ClientMessage), "node": get_args(NodeMessage)}
SOURCES = Path(__file__).parents[2] / "src"

BINARY = BRISK = 1  # the second instance
PAUSE_MS = 1000
QUIET_FINALS = "dragoman_quiet_finals_total"

# How each message of a client is answered, within a session that has a node; "" = not at all.
ANSWERS = {
    "session_init": "session_init_ack",
    "session_resume": "error INVALID_SESSION",
    "audio_chunk": "",
    "utterance": "translation_result",
    "client_heartbeat": "server_heartbeat",
    "tts_started": "",
    "tts_play_ended": "",
    "session_close": "session_close_ack",
    "room_create": "room_create_ack",
    "room_join": "room_error INVALID_ROOM_CODE",
    "room_join with everything": "room_error ROOM_NOT_FOUND",
    "room_leave": "room_error NOT_IN_ROOM",
    "room_update": "room_error NOT_IN_ROOM",
    "room_text": "room_error NOT_IN_ROOM",
    "room_translate": "room_error NOT_IN_ROOM",
    "room_remove": "room_error NOT_IN_ROOM",
    "room_transfer": "room_error NOT_IN_ROOM",
    "room_lock": "room_error NOT_IN_ROOM",
    "room_pause": "room_error NOT_IN_ROOM",
    "room_settings": "room_error NOT_IN_ROOM",
    "room_close": "room_error NOT_IN_ROOM",
    "room_raw_voice_preference": "room_error NOT_IN_ROOM",
    "webrtc_offer": "room_error NOT_IN_ROOM",
    "webrtc_answer": "room_error NOT_IN_ROOM",
    "webrtc_ice": "room_error NOT_IN_ROOM",
}
ACK_FIELDS = {
    "protocol_version": "1.0",
    "negotiated_codec": "opus",
    "negotiated_audio_format": "opus",
    "negotiated_sample_rate": 16000,
    "negotiated_channel_count": 1,
}


# The first instance with JSON alone, the second with binary frames and a short pause.
SPAN = {"speech__release__span": 50}
harness = module_harness(SPAN, SPAN | {"speech__binary_frames": True, "speech__pause_ms": PAUSE_MS})


def tag_of(kind: Any) -> str:
    return str(kind.__struct_config__.tag)


def sample_of(side: str, tag: str) -> dict[str, Any]:
    return deepcopy(next(sample for sample in SAMPLES[side].values() if sample["type"] == tag))


async def send(talker: Talker, message: dict[str, Any]) -> None:
    await talker.ws.send_str(json.dumps(message))


async def answers(talker: Talker) -> list[str]:
    """What came back, in short, until the server has certainly heard everything; events and partials aside."""
    await talker.pong()
    said = [f"{m['type']} {m['code']}" if "code" in m else m["type"] for m in talker.heard]
    talker.heard.clear()
    return [one for one in said if one not in ("ui_event", "asr_partial", "room_ok", "room_joined", "room_members")]


# -- clients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES["client"])
async def test_every_message_of_a_client_gets_its_answer(scenario: Scenario, name: str) -> None:
    message = deepcopy(SAMPLES["client"][name])
    await scenario.node()
    talker = await scenario.talker()
    if "session_id" in message and message["type"] != "session_resume":
        message["session_id"] = talker.session_id
    if message["type"] == "utterance":
        message |= {"utterance_index": 0, "src_lang": scenario.src, "tgt_lang": scenario.tgt}
    wanted = ANSWERS.get(name) or ANSWERS[message["type"]]
    await send(talker, message)
    if wanted:
        word, _, code = wanted.partition(" ")
        answer = await talker.until(lambda m: m["type"] == word, TIMEOUT_S)
        assert answer.get("code", "") == code
    if message["type"] not in ("session_close", "audio_chunk"):
        assert await answers(talker) == []


async def test_there_is_an_answer_for_every_type(harness: Harness) -> None:
    types = {name for name in ANSWERS if name not in SAMPLES["client"] or name == SAMPLES["client"][name]["type"]}
    assert types == {tag_of(kind) for kind in TYPES["client"]}
    assert types == {sample["type"] for sample in SAMPLES["client"].values()}


@pytest.mark.parametrize("name", [name for name in SAMPLES["client"] if name.startswith("session_init")])
async def test_session_ack_has_every_negotiated_field(scenario: Scenario, name: str) -> None:
    init = SAMPLES["client"][name]
    talker = await scenario.bare_talker()
    await send(talker, init)
    ack = await talker.until(lambda m: True, TIMEOUT_S)
    assert ack["type"] == "session_init_ack"
    assert ack["trace_id"] == init["trace_id"]
    format = init.get("audio_format", "opus")
    asked = {"negotiated_audio_format": format, "negotiated_codec": format}
    wanted = ACK_FIELDS | asked | {"use_binary_frame": False}
    assert {name: ack[name] for name in wanted} == wanted
    assert ack["session_id"].startswith("s-")
    assert len(ack["session_id"]) == 34
    assert ("resume_token" in ack) == bool(init.get("resume"))


async def test_pcm16_session_is_acknowledged_with_its_own_codec_and_sample_rate(scenario: Scenario) -> None:
    talker = await scenario.bare_talker()
    ack = await talker.init(audio_format="pcm16", sample_rate=8000)
    wanted = {
        "negotiated_codec": "pcm16",
        "negotiated_audio_format": "pcm16",
        "negotiated_sample_rate": 8000,
        "negotiated_channel_count": 1,
    }
    assert {name: ack[name] for name in wanted} == wanted


async def test_session_that_asks_for_utterance_end_gets_it_after_every_result(scenario: Scenario) -> None:
    await scenario.node()
    talker = await scenario.talker(utterance_end=True)
    await scenario.say_utterance(talker, 0)
    end = await talker.until(lambda m: m["type"] == "utterance_end", TIMEOUT_S)
    about = {"session_id": talker.session_id, "utterance_index": 0, "state": "sent"}
    assert end == {"type": "utterance_end", "job_id": end["job_id"], **about}
    assert "translation_result" in await answers(talker)


async def test_a_session_without_a_trace_gets_one(scenario: Scenario) -> None:
    talker = await scenario.bare_talker()
    init = {name: value for name, value in SAMPLES["client"]["session_init one way"].items() if name != "trace_id"}
    await send(talker, init)
    assert (await talker.until(lambda m: True, TIMEOUT_S))["trace_id"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "type"),
        ('{"type": 7}', "type"),
        ('{"type": "no_such_type"}', "Unknown message type"),
        ('{"type": "node_register"}', "Unknown message type"),
    ],
)
async def test_invalid_message_is_refused_and_the_connection_stays_open(
    scenario: Scenario, text: str, words: str
) -> None:
    talker = await scenario.talker()
    await talker.ws.send_str(text)
    error = await talker.refused()
    assert error["code"] == "INVALID_MESSAGE"
    assert words in error["message"]
    assert await answers(talker) == []


@pytest.mark.parametrize(
    "type", ["audio_chunk", "utterance", "client_heartbeat", "tts_started", "tts_play_ended", "session_close"]
)
async def test_unknown_session_is_refused_and_the_connection_stays_open(scenario: Scenario, type: str) -> None:
    talker = await scenario.talker()
    await send(talker, sample_of("client", type) | {"session_id": "s-00000000000000000000000000000000"})
    assert (await talker.refused())["code"] == "INVALID_SESSION"
    assert await answers(talker) == []


async def test_second_session_on_a_socket_becomes_the_session_of_that_socket(scenario: Scenario) -> None:
    await scenario.node()
    talker = await scenario.talker(trace_id="first")
    first = talker.session_id
    await scenario.say_utterance(talker, 0)
    assert (await talker.result(0, TIMEOUT_S))["session_id"] == first
    await talker.init(src_lang=scenario.src, tgt_lang=scenario.tgt, trace_id="second")
    assert talker.session_id != first
    await scenario.say_utterance(talker, 0)
    assert (await talker.result(0, TIMEOUT_S))["session_id"] == talker.session_id
    await talker.say("no_such_type")
    assert (await talker.refused())["trace_id"] == "second"


async def test_session_takes_chunks_or_utterances_but_not_both(scenario: Scenario) -> None:
    await scenario.node()
    chunks, numbers = await scenario.talker(), await scenario.talker()
    await chunks.speak(1)
    await scenario.say_utterance(chunks, 0)
    await scenario.say_utterance(numbers, 0)
    await numbers.speak(1)
    for talker in (chunks, numbers):
        assert (await talker.refused())["code"] == "INVALID_MESSAGE"
    await chunks.speak(1, final=True)
    assert await chunks.result(0, TIMEOUT_S)


@pytest.mark.parametrize("index", [0, 1, 53, 2**53, 2**53 + 1, 2**63, -1, 1.5, "1", None])
async def test_an_index_that_was_used_or_is_out_of_reach_is_refused(scenario: Scenario, index: object) -> None:
    await scenario.node()
    talker = await scenario.talker()
    for good in (0, 1):
        await scenario.say_utterance(talker, good)
        assert await talker.result(good, TIMEOUT_S)
    fields = sample_of("client", "utterance") | {"src_lang": scenario.src, "tgt_lang": scenario.tgt}
    await send(talker, fields | {"session_id": talker.session_id, "utterance_index": index})
    error = await talker.refused()
    assert error["code"] == "INVALID_MESSAGE"
    assert "utterance_index" in error["message"]
    await scenario.say_utterance(talker, 2)
    assert await talker.result(2, TIMEOUT_S)


async def test_session_close_cuts_the_remaining_audio_and_waits_for_open_results(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await talker.speak(5, final=True)
    await talker.speak(3)  # left in the buffer
    await talker.say("session_close", session_id=talker.session_id, reason="done")
    await node.job(2)
    assert node.jobs[1]["is_manual_cut"] is True
    for job in node.jobs:
        await node.answer(job)
    ack = await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)
    assert ack["session_id"] == talker.session_id
    results = [m["utterance_index"] for m in talker.heard if m["type"] == "translation_result"]
    assert results == [0, 1]


async def test_a_closed_session_is_unknown(scenario: Scenario) -> None:
    talker = await scenario.talker()
    await talker.say("session_close", session_id=talker.session_id, reason="done")
    await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)
    await talker.say("client_heartbeat", session_id=talker.session_id, timestamp=1)
    answer = await talker.until(lambda m: True, TIMEOUT_S)
    assert (answer["type"], answer.get("code")) == ("error", "INVALID_SESSION")


async def test_session_close_does_not_lose_an_utterance_that_waits_for_an_earlier_index(scenario: Scenario) -> None:
    await scenario.node()
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 1)  # 0 has not come
    await talker.say("session_close", session_id=talker.session_id, reason="done")
    await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)
    assert [m["utterance_index"] for m in talker.heard if m["type"] == "translation_result"] == [1]


async def test_closing_session_refuses_new_audio(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await talker.speak(5, final=True)
    await node.job()
    await talker.say("session_close", session_id=talker.session_id, reason="done")
    await talker.speak(5, final=True)
    assert (await talker.refused())["code"] == "SESSION_CLOSED"
    await node.answer(node.jobs[0])
    await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)


async def test_an_empty_final_that_overtook_the_last_chunk_still_ends_with_it(scenario: Scenario) -> None:
    """Web clients send the final one message too early."""
    node = await scenario.node()
    talker = await scenario.talker()
    await talker.speak(10)
    await talker.speak(0, final=True)
    await talker.speak(7)
    assert await talker.result(0, TIMEOUT_S)
    assert len(node.jobs) == 1
    assert len(node.jobs[0]["audio"]) == len(encode_base64(opus_run([SPOKEN_PACKET] * 17))) - 2


async def withheld(scenario: Scenario, finals: float) -> bool:
    return await scenario.count(QUIET_FINALS) >= finals


async def test_finals_of_a_silent_web_client_make_no_jobs_and_use_no_number(scenario: Scenario) -> None:
    """After 3 s of quiet it sends a chunk and a final every 256 ms."""
    silence = bytes(encode_base64(opus_run([SILENCE_PACKET] * 13))).decode().strip('"')
    node = await scenario.node()
    talker = await scenario.talker()
    before = await scenario.count(QUIET_FINALS)
    for seq in range(0, 20, 2):
        for at, payload in ((seq, silence), (seq + 1, "")):
            chunk = {"session_id": talker.session_id, "seq": at, "is_final": not payload, "payload": payload}
            await talker.say("audio_chunk", **chunk)
        await wait_until(partial(withheld, scenario, before + seq // 2 + 1), TIMEOUT_S)
    await talker.speak(13, final=True)
    assert (await talker.result(0, TIMEOUT_S))["utterance_index"] == 0
    assert [job["utterance_index"] for job in node.jobs] == [0]
    assert len(node.jobs[0]["audio"]) == len(encode_base64(opus_run([SPOKEN_PACKET] * 13))) - 2


async def test_undecodable_chunk_is_refused_whole(scenario: Scenario) -> None:
    node = await scenario.node()
    talker = await scenario.talker()
    await talker.speak(10)
    for payload in ("!!!", "AAA", "BQA="):
        chunk = {"session_id": talker.session_id, "seq": 9, "is_final": False, "payload": payload}
        await talker.say("audio_chunk", **chunk)
        assert (await talker.refused())["code"] == "INVALID_MESSAGE"
    await talker.speak(1, final=True)
    assert await talker.result(0, TIMEOUT_S)
    assert len(node.jobs[0]["audio"]) == len(encode_base64(opus_run([SPOKEN_PACKET] * 11))) - 2


async def test_pcm16_audio_reaches_the_node_unchanged(scenario: Scenario) -> None:
    node = await scenario.node()
    talker = await scenario.talker(audio_format="pcm16", sample_rate=8000)
    audio = bytes(encode_base64(b"\0\x10" * 800)).decode().strip('"')
    chunk = {"session_id": talker.session_id, "seq": 0, "is_final": True, "payload": audio}
    await talker.say("audio_chunk", **chunk)
    assert await talker.result(0, TIMEOUT_S)
    job = node.jobs[0]
    assert (job["audio_format"], job["sample_rate"], job["audio"]) == ("pcm16", 8000, audio)


async def test_playback_suspends_the_pause_timer(scenario: Scenario) -> None:
    node = await scenario.node(BRISK)
    talker = await scenario.talker(BRISK)
    mark = {"session_id": talker.session_id, "trace_id": "t", "group_id": "g"}
    await talker.say("tts_started", **mark, ts_start_ms=1)
    await talker.speak(5)
    await wait_until(after(2.5 * PAUSE_MS / 1000), TIMEOUT_S)
    assert not node.jobs
    await talker.say("tts_play_ended", **mark, ts_end_ms=2)
    assert await talker.result(0, TIMEOUT_S)
    assert node.jobs[0]["is_timeout_triggered"] is True


# -- results ---------------------------------------------------------------------------------------


async def test_result_has_the_fields_that_clients_read(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0, trace_id="trace-of-the-job")
    job = await node.job()
    told = deepcopy(SAMPLES["node"]["job_result with everything"])
    for name in ("job_id", "attempt_id", "session_id", "trace_id"):
        told[name] = job[name]
    await node.ws.send_str(json.dumps(told | {"node_id": node.id}))
    result = await talker.result(0, TIMEOUT_S)
    passed = (
        "text_asr",
        "text_translated",
        "tts_audio",
        "tts_format",
        "asr_quality_level",
        "quality_score",
    )
    assert {name: result[name] for name in passed} == {name: told[name] for name in passed}
    assert result["trace_id"] == "trace-of-the-job"
    assert (result["group_id"], result["part_index"]) == (f"group_{talker.session_id}_0", 0)
    assert "extra" not in result, "it has no documented key with a value"
    assert result["service_timings"] == {"total_ms": 701.0}
    assert result["scheduler_sent_at_ms"] > 1_600_000_000_000
    assert "backfilled" not in result


async def test_client_gets_only_the_documented_keys_of_a_nodes_extra(scenario: Scenario) -> None:
    """The real result of an old node, with 34 keys in it."""
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    job = await node.job()
    told = deepcopy(SAMPLES["node"]["job_result"])
    for name in ("job_id", "attempt_id", "session_id", "trace_id"):
        told[name] = job[name]
    told["extra"] |= {"service_timings": {"asr_ms": 120, "nmt_ms": 80.5}}
    await node.ws.send_str(json.dumps(told | {"node_id": node.id}))
    result = await talker.result(0, TIMEOUT_S)
    assert result["extra"] == {
        "language_probability": 0.98,
        "language_probabilities": {"zh": 0.98, "en": 0.01},
    }
    assert result["service_timings"] == {"asr_ms": 120.0, "nmt_ms": 80.5, "total_ms": 701.0}


async def test_the_detected_language_is_sent_before_the_result_and_again_when_it_changes(scenario: Scenario) -> None:
    spoken = ["de", "de", "fr"]

    async def work(node: RawNode, job: dict[str, Any]) -> None:
        said = {"language": spoken[job["utterance_index"]], "language_probability": 0.9}
        await node.answer(job, extra=said)

    await scenario.node(work=work)
    talker = await scenario.talker()
    for index in range(len(spoken)):
        await scenario.say_utterance(talker, index)
        detected = await talker.until(lambda m: m["type"] in ("language_detected", "translation_result"), TIMEOUT_S)
        if index == 1:
            assert detected["type"] == "translation_result"
            continue
        about = {"session_id": talker.session_id, "lang": spoken[index], "confidence": 0.9}
        assert detected == {"type": "language_detected", **about}
        await talker.result(index, TIMEOUT_S)


@pytest.mark.parametrize("at", [0, BINARY], ids=["text", "binary"])
async def test_result_has_the_times_of_each_hop(scenario: Scenario, at: int) -> None:
    sent_ms = int(time() * 1000) - 2000  # a client whose chunk took two seconds
    audio = opus_run([b"speech" * 10] * 20)

    async def work(node: RawNode, job: dict[str, Any]) -> None:
        await node.ack(job)
        await node.answer(job, node_completed_at_ms=int(time() * 1000) - 1000)

    await scenario.node(features=ACKING, work=work)
    talker = await scenario.talker(at)
    if at == BINARY:
        frame = AudioFrame(FrameKind.CHUNK, talker.session_id, 0, sent_ms % 2**32, True, audio)
        await talker.ws.send_bytes(build_frame(frame))
    else:
        chunk = {"type": "audio_chunk", "session_id": talker.session_id, "seq": 0, "is_final": True}
        chunk |= {"payload": json.loads(bytes(encode_base64(audio))), "client_timestamp_ms": sent_ms}
        await send(talker, chunk)
    timings = (await talker.result(0, TIMEOUT_S))["network_timings"]
    assert set(timings) == {"web_to_scheduler_ms", "scheduler_to_node_ms", "node_to_scheduler_ms"}
    assert timings["web_to_scheduler_ms"] >= 2000
    assert timings["node_to_scheduler_ms"] >= 1000


async def test_all_messages_of_a_chunk_session_have_the_trace_of_the_session(scenario: Scenario) -> None:
    """The web client pops up an alert for every error whose trace is not that of the last result."""

    async def work(node: RawNode, job: dict[str, Any]) -> None:
        await node.partial(job, "said")
        if job["utterance_index"] == 0:
            await node.answer(job)
        else:
            await node.fail(job, "PROCESSING_ERROR", "no")

    node = await scenario.node(work=work)
    talker = await scenario.talker(trace_id="trace-of-the-session")
    await talker.speak(50, final=True)
    result = await talker.result(0, TIMEOUT_S)
    await talker.speak(50, final=True)
    error = await talker.failed(1)
    kinds = {m["type"] for m in talker.heard}
    assert kinds >= {"ui_event", "asr_partial"}
    assert {m["trace_id"] for m in [result, error, *talker.heard]} == {"trace-of-the-session"}
    traces = [job["trace_id"] for job in node.jobs]
    assert len({*traces, "trace-of-the-session"}) == 3, "each job has a trace of its own"
    assert error["details"]["trace_id"] == traces[1]


async def test_a_result_without_words_has_no_group(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    await node.answer(await node.job(), text_asr="", text_translated="only this")
    result = await talker.result(0, TIMEOUT_S)
    assert "group_id" not in result
    assert (result["text_asr"], result["tts_audio"]) == ("", "")


async def test_a_job_reaches_its_node_with_the_fields_it_must_have(scenario: Scenario) -> None:
    node = await scenario.node()
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    assert await talker.result(0, TIMEOUT_S)
    job = node.jobs[0]
    assert set(SAMPLES["to_node"]["job_assign"]) <= set(job)
    assert job["pipeline"] == SAMPLES["to_node"]["job_assign"]["pipeline"]
    assert (job["attempt_id"], job["is_manual_cut"], job["padding_ms"]) == (1, True, 280)
    assert not {"is_timeout_triggered", "is_max_duration_triggered", "dialect", "features"} & set(job)


@pytest.mark.parametrize(("said", "sent"), [({}, True), ({"enable_streaming_asr": False}, False)])
async def test_node_is_asked_for_partials_unless_the_client_wants_none(
    scenario: Scenario, said: dict[str, bool], sent: bool
) -> None:
    node = await scenario.node()
    by_chunks, by_utterances = await scenario.talker(**said), await scenario.talker()
    await by_chunks.speak(50, final=True)
    assert (await node.job(1))["enable_streaming_asr"] is sent
    await scenario.say_utterance(by_utterances, 0, **said)
    assert (await node.job(2))["enable_streaming_asr"] is sent


async def test_utterance_reaches_its_node_unchanged(scenario: Scenario) -> None:
    node = await scenario.node()
    talker = await scenario.talker()
    told = deepcopy(SAMPLES["client"]["utterance with everything"])
    told |= {
        "session_id": talker.session_id,
        "utterance_index": 0,
        "src_lang": scenario.src,
        "tgt_lang": scenario.tgt,
    }
    told |= {"lang_a": scenario.src, "lang_b": scenario.tgt}
    await send(talker, told)
    assert await talker.result(0, TIMEOUT_S)
    same = set(told) - {"type", "manual_cut"}
    assert {name: node.jobs[0][name] for name in same} == {name: told[name] for name in same}


# -- binary frames ---------------------------------------------------------------------------------


def binary(talker: Talker, kind: FrameKind, seq: int, audio: bytes = b"", *, final: bool = False) -> bytes:
    return build_frame(AudioFrame(kind, talker.session_id, seq, 1, final, audio))


async def test_binary_frames_are_negotiated_and_read(scenario: Scenario) -> None:
    node = await scenario.node(BINARY)
    talker = Talker(await scenario.socket(BINARY))
    assert (await talker.init(src_lang=scenario.src, tgt_lang=scenario.tgt))["use_binary_frame"] is True
    packets = opus_run([SPOKEN_PACKET] * 4)
    await talker.ws.send_bytes(binary(talker, FrameKind.CHUNK, 0, packets))
    await talker.ws.send_bytes(binary(talker, FrameKind.CHUNK, 1, packets))
    await talker.ws.send_bytes(binary(talker, FrameKind.FINAL, 2))
    assert await talker.result(0, TIMEOUT_S)
    assert node.jobs[0]["audio"] == bytes(encode_base64(packets * 2)).decode().strip('"')
    await talker.ws.send_bytes(binary(talker, FrameKind.CHUNK, 3, packets, final=True))
    assert await talker.result(1, TIMEOUT_S)
    await talker.speak(4, final=True)  # JSON is understood all the same
    assert await talker.result(2, TIMEOUT_S)


@pytest.mark.parametrize("broken", [b"", b"\x01", b"\x07" + bytes(40), b"\x01\xff" + bytes(30)])
async def test_broken_binary_frame_is_refused_and_the_connection_stays_open(scenario: Scenario, broken: bytes) -> None:
    talker = await scenario.talker(BINARY)
    await talker.ws.send_bytes(broken)
    assert (await talker.refused())["code"] == "INVALID_MESSAGE"
    assert await answers(talker) == []


@pytest.mark.parametrize("name", SAMPLES["binary"])
async def test_a_binary_frame_of_an_unknown_session_is_refused(scenario: Scenario, name: str) -> None:
    sample = SAMPLES["binary"][name]
    talker = await scenario.talker(BINARY)
    await talker.ws.send_bytes(bytes.fromhex(sample["starts_with"]) + bytes(sample["audio_bytes"]))
    assert (await talker.refused())["code"] == "INVALID_SESSION"


# -- nodes -----------------------------------------------------------------------------------------


async def node_lives(scenario: Scenario, node: RawNode) -> None:
    """It still gets jobs, and its answers arrive."""
    talker = await scenario.talker()
    before = len(node.jobs)
    await scenario.say_utterance(talker, 0)
    await node.answer(await node.job(before + 1))
    assert await talker.result(0, TIMEOUT_S)


@pytest.mark.parametrize("name", [name for name in SAMPLES["node"] if not name.startswith("node_register")])
async def test_no_message_of_a_node_needs_an_answer(scenario: Scenario, name: str) -> None:
    node = await scenario.node(work=silent)
    message = deepcopy(SAMPLES["node"][name]) | {"node_id": node.id}
    if "language_capabilities" in message:
        message["language_capabilities"] = {
            f"{kind}_languages": [scenario.src, scenario.tgt] for kind in ("asr", "tts", "semantic")
        }
    if message["type"] == "node_heartbeat":
        message["resource_usage"] = message["resource_usage"] | {"gpu_queue_length": 0}
    await node.ws.send_str(json.dumps(message))
    await node_lives(scenario, node)
    assert not node.of("error")


@pytest.mark.parametrize("name", [name for name in SAMPLES["node"] if name.startswith("node_register")])
async def test_a_node_is_acknowledged_once(scenario: Scenario, name: str) -> None:
    ws = await scenario.socket(0, "/ws/node")
    register = SAMPLES["node"][name] | {"node_id": None}
    await ws.send_str(json.dumps(register))
    ack = json.loads((await ws.receive(timeout=TIMEOUT_S)).data)
    assert (ack["type"], ack["status"]) == ("node_register_ack", "registered")
    assert ack["node_id"].startswith("node-")
    await ws.send_str(json.dumps(register))
    error = json.loads((await ws.receive(timeout=TIMEOUT_S)).data)
    assert (error["type"], error["code"]) == ("error", "INVALID_MESSAGE")


BARE_REGISTER = {
    "installed_models", "installed_services", "capability_by_type", "features_supported", "advanced_features",
}  # fmt: skip
BARE_BEAT = {"installed_models", "installed_services", "capability_by_type", "language_capabilities"}


@pytest.mark.parametrize("blank", ["absent", "null"])
async def test_a_node_registers_and_serves_when_it_sends_only_its_languages(scenario: Scenario, blank: str) -> None:
    def bare(message: dict[str, Any], names: set[str]) -> str:
        kept = {name: value for name, value in message.items() if name not in names}
        return json.dumps(kept | (dict.fromkeys(names) if blank == "null" else {}))

    spoken = {"asr_languages": [scenario.src], "semantic_languages": [scenario.tgt]}
    languages = spoken | ({"tts_languages": None} if blank == "null" else {})
    node = RawNode(await scenario.socket(0, "/ws/node"), at_once)
    register = sample_of("node", "node_register") | {"language_capabilities": languages}
    await node.ws.send_str(bare(register, BARE_REGISTER))
    node.id = (await node.until("node_register_ack"))["node_id"]
    await node.ws.send_str(bare(sample_of("node", "node_heartbeat") | {"node_id": node.id}, BARE_BEAT))
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    assert await talker.result(0, TIMEOUT_S)
    assert node.of("error") == []


async def test_heartbeat_without_lists_keeps_the_registered_lists(scenario: Scenario) -> None:
    node = await scenario.node()
    (before,) = await told_of(scenario, node)
    beat = sample_of("node", "node_heartbeat") | {"node_id": node.id}
    beat["resource_usage"]["running_jobs"] = 3
    await node.ws.send_str(json.dumps({name: beat[name] for name in beat if name not in BARE_BEAT}))
    (after,) = await wait_until(lambda: told_of(scenario, node, running=3), TIMEOUT_S)
    told = ("languages", "ready")
    assert {name: after[name] for name in told} == {name: before[name] for name in told}


async def told_of(scenario: Scenario, node: RawNode, **fields: object) -> list[dict[str, Any]]:
    nodes = (await scenario.get("/api/v1/cluster"))["nodes"]
    return [one for one in nodes if one["node_id"] == node.id and fields.items() <= one.items()]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"type": "no_such_type"}', '{"type": "session_init"}'])
async def test_invalid_message_of_a_node_is_refused_and_the_node_stays_connected(scenario: Scenario, text: str) -> None:
    node = await scenario.node(work=silent)
    await node.ws.send_str(text)
    assert (await node.until("error"))["code"] == "INVALID_MESSAGE"
    await node.ws.send_bytes(b"\x01\x02")
    assert (await node.until("error", 2))["code"] == "INVALID_MESSAGE"
    await node_lives(scenario, node)


async def test_a_heartbeat_may_come_before_the_registration(scenario: Scenario) -> None:
    node = await scenario.node(work=silent, beat_first=True, features=ACKING)
    await node_lives(scenario, node)


# -- paths and names -------------------------------------------------------------------------------


async def test_the_paths_of_the_protocol_are_there(scenario: Scenario) -> None:
    url = f"http://127.0.0.1:{scenario.harness.port}"
    async with scenario.http.get(f"{url}/health") as answer:
        assert (answer.status, await answer.text()) == (200, "OK")
    for path in ("/health/live", "/health/ready", "/api/v1/stats", "/api/v1/metrics", "/api/v1/cluster"):
        async with scenario.http.get(url + path) as answer:
            assert answer.status == 200, path
    async with scenario.http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    assert "scheduler_phase2_redis_op_total" in text
    assert "scheduler_phase2_inbox_pending" in text


@for_each(["timeout_node_id", "max_duration_node_id", "gap_timeout_ms"])
def test_retired_name_occurs_only_where_it_is_refused(name: str) -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*")
        if path.suffix in (".py", ".lua", ".toml") and name in path.read_text()
    }
    assert found == {"dragoman/config/catalog.py"}
