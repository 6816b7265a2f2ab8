"""Bad input gets a clear answer and costs nobody else anything.

In every test a healthy session goes on speaking meanwhile.
"""

import asyncio
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dragoman.protocol.audio import SILENCE_PACKET, encode_base64, opus_run
from dragoman.protocol.codes import Close
from support.cluster import SPOKEN_PACKET
from support.gateway import TEXT, RawClient, frame, websocket
from support.raw_node import SAMPLES as NODE_SAMPLES
from support.raw_node import Message, RawNode, silent
from support.speech import (
    TIMEOUT_S,
    Scenario,
    Talker,
    ending,
    module_harness,
    scenario_on_harness,
    with_healthy_client,
)
from support.waiting import wait_until

ODD = "a\x00\x1b[31m\r\n\t\x7f\u2028\ufeff\U0001f600\U0010ffff\"\\'${7*7}<b>"
FRAMES_PER_S = 200

CLIENT_SAMPLES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "contract" / "samples.json").read_text()
)["client"]


harness = module_harness(
    {
        "limits__frames_per_s": FRAMES_PER_S,
        "limits__out_queue_bytes": 2_097_152,
        "limits__out_queue_age_s": 1.0,
        "server__pre_session_s": 3.0,
    }
)
scenario = scenario_on_harness(with_healthy_client)


def text(type: str, **fields: object) -> bytes:
    return frame(TEXT, json.dumps({"type": type, **fields}).encode())


# -- sessions: messages ----------------------------------------------------------------------------


async def test_invalid_utf8_is_answered(scenario: Scenario) -> None:
    async with websocket(scenario.harness, "/ws/session", receive_bytes=4096) as wire:
        await wire.send(frame(1, b'{"type": "session_close", "session_id": "\xff\xfe", "reason": "x"}'))
        assert json.loads(await wire.message())["code"] == "INVALID_MESSAGE"


@pytest.mark.parametrize(
    "payload",
    ["!!!!", "AAA", "A" * 7, "Kg==", "BQAAAA==", "AAAA", "%41", "ÿÿÿÿ", "\U0001f600" * 4, " " * 8],
    ids=["no base64", "cut", "cut again", "a length alone", "half a packet", "no packet", "%", "latin", "emoji", "air"],
)
async def test_invalid_audio_is_answered_and_the_session_goes_on(scenario: Scenario, payload: str) -> None:
    node = await scenario.node()
    talker = await scenario.talker()
    await talker.speak(3)
    chunk = {"session_id": talker.session_id, "seq": 7, "is_final": True, "payload": payload}
    await talker.say("audio_chunk", **chunk)
    assert (await talker.refused())["code"] == "INVALID_MESSAGE"
    await talker.speak(4, final=True)
    await talker.result(0, TIMEOUT_S)
    assert node.jobs[0]["audio"] == bytes(encode_base64(opus_run([SPOKEN_PACKET] * 7))).decode().strip('"')


# -- sessions: sizes and speeds --------------------------------------------------------------------


async def test_frame_of_a_hundred_megabytes_is_refused_at_its_header(scenario: Scenario) -> None:
    async with websocket(scenario.harness, "/ws/session", receive_bytes=4096) as wire:
        before = (await scenario.get("/api/v1/stats"))["bytes_in"]
        await wire.send(frame(1, b"", announce=100_000_000))
        assert await wire.close_code() == Close.TOO_BIG
        assert (await scenario.get("/api/v1/stats"))["bytes_in"] - before < 10_000_000


async def test_a_message_of_a_hundred_megabytes_in_pieces_is_refused(scenario: Scenario) -> None:
    async with websocket(scenario.harness, "/ws/session", receive_bytes=4096) as wire:
        piece = bytes(60_000)
        sending = asyncio.create_task(pour(wire, [frame(1, piece, fin=False), *[frame(0, piece, fin=False)] * 1700]))
        assert await wire.close_code() == Close.TOO_BIG
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def pour(wire: RawClient, frames: list[bytes]) -> None:
    for one in frames:
        await wire.send(one)


@pytest.mark.parametrize("opcode", [1, 9], ids=["messages", "pings"])
async def test_flood_of_tiny_frames_closes_the_connection(scenario: Scenario, opcode: int) -> None:
    async with websocket(scenario.harness, "/ws/session", receive_bytes=4096) as wire:
        sending = asyncio.create_task(pour(wire, [frame(opcode, b"{}") * 1000] * 1000))  # a million of them
        assert await wire.close_code() == Close.RATE
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_client_that_never_reads_is_closed_with_a_retryable_code(scenario: Scenario) -> None:
    loud = "A" * 400_000

    async def shout(node: RawNode, job: Message) -> None:
        await node.answer(job, tts_audio=loud)

    async with websocket(scenario.harness, "/ws/session", receive_bytes=4096) as wire:
        await scenario.node(work=shout)
        init = {"client_version": "1", "platform": "web", "src_lang": scenario.src, "tgt_lang": scenario.tgt}
        await wire.send(text("session_init", **init))
        session = json.loads(await wire.message())["session_id"]
        audio = bytes(encode_base64(opus_run([SILENCE_PACKET]))).decode().strip('"')
        told = {"manual_cut": True, "src_lang": scenario.src, "tgt_lang": scenario.tgt, "audio": audio}
        told |= {"audio_format": "opus", "sample_rate": 16000}
        for index in range(30):
            await wire.send(text("utterance", session_id=session, utterance_index=index, **told))

        async def ended() -> bool:
            metrics = await scenario.get("/api/v1/stats")
            return bool(metrics["sessions"] == 1)  # the healthy one is left

        await wait_until(ended, TIMEOUT_S)
        assert await wire.close_code() == Close.SLOW_CONSUMER


async def test_hundreds_of_silent_connections_are_closed(scenario: Scenario) -> None:
    ends = [await ending(scenario, path) for path in ("/ws/session", "/ws/node") for _ in range(150)]
    latecomer = await scenario.talker()
    assert await latecomer.pong()
    assert set(await asyncio.gather(*ends)) <= {int(Close.IDLE), int(Close.NOT_REGISTERED)}
    assert await latecomer.pong()


# -- strings ---------------------------------------------------------------------------------------


def strings_in(message: dict[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a message has texts, its type aside."""
    for name, value in message.items():
        if isinstance(value, dict):
            yield from strings_in(value, (*path, name))
        elif isinstance(value, str) and name != "type":
            yield (*path, name)


def with_text(message: dict[str, Any], path: tuple[Any, ...], text: str) -> dict[str, Any]:
    changed = deepcopy(message)
    at = changed
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = text
    return changed


async def test_odd_characters_in_every_text_of_a_client_do_no_harm(scenario: Scenario) -> None:
    node = await scenario.node()
    talker = await scenario.talker()
    sent = 0
    for sample in CLIENT_SAMPLES.values():
        message = sample | ({"session_id": talker.session_id} if "session_id" in sample else {})
        if message["type"] in ("session_close", "session_init", "session_resume"):
            continue  # on sockets of their own, below
        if message["type"] == "utterance":
            message |= {"src_lang": scenario.src, "tgt_lang": scenario.tgt}
        for path in strings_in(message):
            await talker.ws.send_str(json.dumps(with_text(message, path, ODD), ensure_ascii=False))
            sent += 1
            if sent % 50 == 0:
                await talker.pong()
    assert await talker.pong()
    errors = {m["code"] for m in talker.heard if m["type"] == "error"}
    assert errors <= {"INVALID_MESSAGE", "INVALID_SESSION", "NO_AVAILABLE_NODE"}
    of_rooms = {m["code"] for m in talker.heard if m["type"] == "room_error"}
    assert of_rooms <= {"INVALID_ROOM_CODE", "ROOM_NOT_FOUND", "ALREADY_IN_ROOM", "NOT_IN_ROOM", "LIMIT_EXCEEDED"}
    assert sent > 40
    assert node.ws.closed is False


@pytest.mark.parametrize(
    "field", ["client_version", "platform", "dialect", "pairing_code", "tenant_id", "mode", "trace_id"]
)
async def test_odd_characters_in_session_init_are_accepted_and_echoed(scenario: Scenario, field: str) -> None:
    node = await scenario.node()
    talker = Talker(await scenario.socket())
    ack = await talker.init(**{"src_lang": scenario.src, "tgt_lang": scenario.tgt, field: ODD, "features": {ODD: ODD}})
    if field == "trace_id":
        assert ack["trace_id"] == ODD
    await talker.speak(5, final=True)
    assert await talker.result(0, TIMEOUT_S)
    assert node.jobs[0]["features"] == {ODD: ODD}
    await talker.say("session_close", session_id=talker.session_id, reason=ODD)
    await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)


async def test_odd_characters_of_a_nodes_text_reach_the_client_unchanged(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    job = await node.job()
    await node.partial(job, ODD)
    await node.answer(job, text_asr=ODD, text_translated=ODD, tts_format=ODD, extra={"emotion": ODD, ODD: ODD})
    result = await talker.result(0, TIMEOUT_S)
    assert (result["text_asr"], result["text_translated"], result["extra"]) == (ODD, ODD, {"emotion": ODD})
    partial = await talker.until(lambda m: m["type"] == "asr_partial", TIMEOUT_S)
    assert partial["text"] == ODD
    await scenario.say_utterance(talker, 1)
    await node.fail(await node.job(2), ODD, ODD)
    error = await talker.failed(1)
    assert (error["code"], error["message"]) == ("PROCESSING_ERROR", ODD)


async def test_messages_of_a_node_before_its_registration_have_a_size_limit(scenario: Scenario) -> None:
    result = NODE_SAMPLES["job_result"] | {"tts_audio": "A" * 900_000}
    ws = await scenario.socket(path="/ws/node")
    for _ in range(3):
        await ws.send_str(json.dumps(result))
    end = await ws.receive(timeout=TIMEOUT_S)
    assert (end.data, end.extra) == (Close.NOT_REGISTERED, "too many messages before node_register")


# -- what is somebody else's -----------------------------------------------------------------------


async def test_result_of_a_job_that_was_not_assigned_to_the_node_is_dropped(scenario: Scenario) -> None:
    honest = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    job = await honest.job()
    liar = await scenario.node(languages=("xx",))
    for claim in ({}, {"node_id": honest.id}, {"attempt_id": 2}, {"node_id": honest.id, "attempt_id": 2}):
        await liar.answer(job, **{"text_asr": "lie", "text_translated": "lie"} | claim)
    for about in ("job_ack", "job_started"):
        await liar.say(about, **liar._about(job) | {"node_id": honest.id})
    await liar.partial(job, "lie")
    await liar.answer(job | {"job_id": "job-that-never-was"})

    async def dropped() -> bool:
        return await scenario.count("dragoman_results_dropped_total{reason=no_driver}") >= 8

    await wait_until(dropped, TIMEOUT_S)
    await honest.answer(job, text_asr="truth")
    assert (await talker.result(0, TIMEOUT_S))["text_asr"] == "truth"
    assert not [m for m in talker.heard if m["type"] == "asr_partial"]


async def test_result_goes_to_the_session_of_its_job_whatever_session_it_names(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    mine, other = await scenario.talker(), await scenario.talker()
    await scenario.say_utterance(mine, 0)
    await node.answer(await node.job(), session_id=other.session_id, utterance_index=7)
    assert (await mine.result(0, TIMEOUT_S))["session_id"] == mine.session_id
    await other.pong()
    assert other.heard == []


async def test_oversized_answer_closes_only_its_own_connection(scenario: Scenario) -> None:
    node = await scenario.node(work=silent)
    talker = await scenario.talker()
    await scenario.say_utterance(talker, 0)
    await node.answer(await node.job(), tts_audio="A" * 3_000_000)
    assert await node.closed() == Close.TOO_BIG
    good = await scenario.node()
    assert (await talker.result(0, TIMEOUT_S))["text_asr"] == "said 0"
    assert len(good.jobs) == 1
