"""Bad input gets a clear answer and costs nobody else anything.

In every test a healthy session goes on speaking meanwhile.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dragoman.protocol.audio import SILENCE_PACKET, encode_base64, opus_run
from dragoman.protocol.codes import Close
from support.cluster import SPOKEN_PACKET
from support.gateway import CLOSE, frame, upgrade
from support.raw_node import SAMPLES as NODE_SAMPLES
from support.raw_node import Message, RawNode, silent
from support.redis_servers import KeyInspector, RedisAt
from support.speech import TIMEOUT_S, Harness, Talker, ending, start_harness, with_healthy_client
from support.waiting import wait_until

ODD = "a\x00\x1b[31m\r\n\t\x7f\u2028\ufeff\U0001f600\U0010ffff\"\\'${7*7}<b>"
FRAMES_PER_S = 200

CLIENT_SAMPLES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "contract" / "samples.json").read_text()
)["client"]


@pytest.fixture(scope="module")
def harness(
    redis_server: RedisAt, key_inspector: KeyInspector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    flags: dict[str, object] = {
        "limits__frames_per_s": FRAMES_PER_S,
        "limits__out_queue_bytes": 2_097_152,
        "limits__out_queue_age_s": 1.0,
        "server__pre_session_s": 3.0,
    }
    with start_harness(redis_server, tmp_path_factory.mktemp("bad-input"), key_inspector, flags) as up:
        yield up


class Wire:
    """A client made of bytes: sends what no WebSocket library would, reads when it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Wire":
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=4096)
        await self.write(upgrade("/ws/session"))
        assert b" 101 " in await self.reader.readuntil(b"\r\n\r\n")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def say(self, type: str, **fields: object) -> None:
        await self.write(frame(1, json.dumps({"type": type, **fields}).encode()))

    async def frame(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 0xF, await self.reader.readexactly(size)

    async def message(self) -> dict[str, Any]:
        _, payload = await self.frame()
        return dict(json.loads(payload))

    async def close_code(self) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                opcode, payload = await self.frame()
                if opcode == CLOSE:
                    return int.from_bytes(payload[:2], "big")


# -- sessions: messages ----------------------------------------------------------------------------


NONSENSE = [
    "",
    "{",
    "\x00",
    "nul",
    "[[[[[[",
    "[" * 100_000,
    '{"type": "session_init"',
    '{"type": "no_such_type"}',
    '{"type": ["session_init"]}',
    '{"type": "audio_chunk", "session_id": 7, "seq": 0, "is_final": false}',
    '{"type": "audio_chunk", "session_id": "x", "seq": -1, "is_final": false}',
    '{"type": "audio_chunk", "session_id": "x", "seq": 1e400, "is_final": false}',
    '{"type": "audio_chunk", "session_id": "x", "seq": 0, "is_final": "yes"}',
    '{"type": "audio_chunk", "seq": 0}',
    '{"type": "client_heartbeat", "session_id": "\\ud800", "timestamp": 1}',
    '{"type": "client_heartbeat", "session_id": "' + "x" * 300 + '", "timestamp": 1}',
    '{"type": "session_init", "client_version": "1", "platform": "web", "src_lang": "../..", "tgt_lang": "es"}',
    '{"type": "session_init", "client_version": "1", "platform": "web", "src_lang": "{x}", "tgt_lang": "es"}',
]


async def test_invalid_input_is_answered_and_the_connection_stays_open(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
        talker = await scenario.talker()
        for text in NONSENSE:
            await talker.ws.send_str(text)
            error = await talker.refused()
            assert error["code"] == "INVALID_MESSAGE", text[:80]
            assert len(error["message"]) <= 200
        assert await talker.pong()


async def test_invalid_utf8_is_answered(harness: Harness) -> None:
    async with with_healthy_client(harness), Wire(harness.port) as wire:
        await wire.write(frame(1, b'{"type": "session_close", "session_id": "\xff\xfe", "reason": "x"}'))
        assert (await wire.message())["code"] == "INVALID_MESSAGE"


@pytest.mark.parametrize("index", [2**63, 2**64, 2**53 + 1, -(2**63), 10**400])
async def test_huge_index_is_answered(harness: Harness, index: int) -> None:
    async with with_healthy_client(harness) as scenario:
        talker = await scenario.talker()
        await scenario.say_utterance(talker, index)
        error = await talker.refused()
        assert error["code"] == "INVALID_MESSAGE"
        assert await talker.pong()


@pytest.mark.parametrize(
    "payload",
    ["!!!!", "AAA", "A" * 7, "Kg==", "BQAAAA==", "AAAA", "%41", "ÿÿÿÿ", "\U0001f600" * 4, " " * 8],
    ids=["no base64", "cut", "cut again", "a length alone", "half a packet", "no packet", "%", "latin", "emoji", "air"],
)
async def test_invalid_audio_is_answered_and_the_session_goes_on(harness: Harness, payload: str) -> None:
    async with with_healthy_client(harness) as scenario:
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


async def test_frame_of_a_hundred_megabytes_is_refused_at_its_header(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario, Wire(harness.port) as wire:
        before = (await scenario.get("/api/v1/stats"))["bytes_in"]
        await wire.write(frame(1, b"", announce=100_000_000))
        assert await wire.close_code() == Close.TOO_BIG
        assert (await scenario.get("/api/v1/stats"))["bytes_in"] - before < 10_000_000


async def test_a_message_of_a_hundred_megabytes_in_pieces_is_refused(harness: Harness) -> None:
    async with with_healthy_client(harness), Wire(harness.port) as wire:
        piece = bytes(60_000)
        sending = asyncio.create_task(pour(wire, [frame(1, piece, fin=False), *[frame(0, piece, fin=False)] * 1700]))
        assert await wire.close_code() == Close.TOO_BIG
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def pour(wire: Wire, frames: list[bytes]) -> None:
    for one in frames:
        await wire.write(one)


@pytest.mark.parametrize("opcode", [1, 9], ids=["messages", "pings"])
async def test_flood_of_tiny_frames_closes_the_connection(harness: Harness, opcode: int) -> None:
    async with with_healthy_client(harness), Wire(harness.port) as wire:
        sending = asyncio.create_task(pour(wire, [frame(opcode, b"{}") * 1000] * 1000))  # a million of them
        assert await wire.close_code() == Close.RATE
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_client_that_never_reads_is_closed_with_a_retryable_code(harness: Harness) -> None:
    loud = "A" * 400_000

    async def shout(node: RawNode, job: Message) -> None:
        await node.answer(job, tts_audio=loud)

    async with with_healthy_client(harness) as scenario, Wire(harness.port) as wire:
        await scenario.node(work=shout)
        init = {"client_version": "1", "platform": "web", "src_lang": scenario.src, "tgt_lang": scenario.tgt}
        await wire.say("session_init", **init)
        session = (await wire.message())["session_id"]
        audio = bytes(encode_base64(opus_run([SILENCE_PACKET]))).decode().strip('"')
        told = {"manual_cut": True, "src_lang": scenario.src, "tgt_lang": scenario.tgt, "audio": audio}
        told |= {"audio_format": "opus", "sample_rate": 16000}
        for index in range(30):
            await wire.say("utterance", session_id=session, utterance_index=index, **told)

        async def ended() -> bool:
            metrics = await scenario.get("/api/v1/stats")
            return bool(metrics["sessions"] == 1)  # the healthy one is left

        await wait_until(ended, TIMEOUT_S)
        assert await wire.close_code() == Close.SLOW_CONSUMER


async def test_hundreds_of_silent_connections_are_closed(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
        ends = [await ending(scenario, path) for path in ("/ws/session", "/ws/node") for _ in range(150)]
        latecomer = await scenario.talker()
        assert await latecomer.pong()
        assert set(await asyncio.gather(*ends)) <= {int(Close.IDLE), int(Close.NOT_REGISTERED)}
        assert await latecomer.pong()


async def test_hundreds_of_connections_with_half_a_request_are_closed(harness: Harness) -> None:
    async with with_healthy_client(harness):
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", harness.port)
            writer.write(b"GET /ws/session HTTP/1.1\r\nHost: x\r\n")
            writers.append(writer)
        for writer in writers:
            writer.transport.abort()


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


async def test_odd_characters_in_every_text_of_a_client_do_no_harm(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
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
        told = {m["code"] for m in talker.heard if m["type"] in ("error", "room_error")}
        assert told <= {"INVALID_MESSAGE", "INVALID_SESSION", "UNSUPPORTED_FEATURE", "NO_AVAILABLE_NODE"}
        assert sent > 40
        assert node.ws.closed is False


@pytest.mark.parametrize(
    "field", ["client_version", "platform", "dialect", "pairing_code", "tenant_id", "mode", "trace_id"]
)
async def test_odd_characters_in_session_init_are_accepted_and_echoed(harness: Harness, field: str) -> None:
    async with with_healthy_client(harness) as scenario:
        node = await scenario.node()
        talker = Talker(await scenario.socket())
        ack = await talker.init(
            **{"src_lang": scenario.src, "tgt_lang": scenario.tgt, field: ODD, "features": {ODD: ODD}}
        )
        if field == "trace_id":
            assert ack["trace_id"] == ODD
        await talker.speak(5, final=True)
        assert await talker.result(0, TIMEOUT_S)
        assert node.jobs[0]["features"] == {ODD: ODD}
        await talker.say("session_close", session_id=talker.session_id, reason=ODD)
        await talker.until(lambda m: m["type"] == "session_close_ack", TIMEOUT_S)


@pytest.mark.parametrize("field", ["src_lang", "tgt_lang", "lang_a"])
async def test_odd_characters_in_a_language_are_refused(harness: Harness, field: str) -> None:
    async with with_healthy_client(harness) as scenario:
        talker = Talker(await scenario.socket())
        init = {"client_version": "1", "platform": "web", "src_lang": "en", "tgt_lang": "es", field: ODD}
        await talker.say("session_init", **init)
        error = await talker.refused()
        assert error["code"] == "INVALID_MESSAGE"
        assert field in error["message"]


async def test_odd_characters_of_a_nodes_text_reach_the_client_unchanged(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
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


async def test_odd_characters_in_every_text_of_a_node_do_no_harm(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
        node = await scenario.node(work=silent)
        for sample in NODE_SAMPLES.values():
            if sample["type"] == "node_register":
                continue
            message = sample | ({"language_capabilities": None} if sample["type"] == "node_heartbeat" else {})
            for path in strings_in(message):
                await node.ws.send_str(json.dumps(with_text(message, path, ODD), ensure_ascii=False))
        await node.beat((scenario.src, scenario.tgt))
        talker = await scenario.talker()
        await scenario.say_utterance(talker, 0)
        await node.answer(await node.job())
        assert await talker.result(0, TIMEOUT_S)


async def test_node_with_an_invalid_id_is_refused(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
        for claimed in (ODD, "", "a b", "{node}", "x" * 65, "../../etc"):
            ws = await scenario.socket(path="/ws/node")
            await ws.send_str(json.dumps(NODE_SAMPLES["node_register"] | {"node_id": claimed}))
            error = json.loads((await ws.receive(timeout=TIMEOUT_S)).data)
            assert (error["type"], error["code"]) == ("error", "INVALID_MESSAGE"), claimed


async def test_messages_of_a_node_before_its_registration_have_a_size_limit(harness: Harness) -> None:
    result = NODE_SAMPLES["job_result"] | {"tts_audio": "A" * 900_000}
    async with with_healthy_client(harness) as scenario:
        ws = await scenario.socket(path="/ws/node")
        for _ in range(3):
            await ws.send_str(json.dumps(result))
        end = await ws.receive(timeout=TIMEOUT_S)
        assert (end.data, end.extra) == (Close.NOT_REGISTERED, "too many messages before node_register")


# -- what is somebody else's -----------------------------------------------------------------------


async def test_result_of_a_job_that_was_not_assigned_to_the_node_is_dropped(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
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


async def test_result_goes_to_the_session_of_its_job_whatever_session_it_names(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
        node = await scenario.node(work=silent)
        mine, other = await scenario.talker(), await scenario.talker()
        await scenario.say_utterance(mine, 0)
        await node.answer(await node.job(), session_id=other.session_id, utterance_index=7)
        assert (await mine.result(0, TIMEOUT_S))["session_id"] == mine.session_id
        await other.pong()
        assert other.heard == []


async def test_oversized_answer_closes_only_its_own_connection(harness: Harness) -> None:
    async with with_healthy_client(harness) as scenario:
        node = await scenario.node(work=silent)
        talker = await scenario.talker()
        await scenario.say_utterance(talker, 0)
        await node.answer(await node.job(), tts_audio="A" * 3_000_000)
        assert await node.closed() == Close.TOO_BIG
        good = await scenario.node()
        assert (await talker.result(0, TIMEOUT_S))["text_asr"] == "said 0"
        assert len(good.jobs) == 1
