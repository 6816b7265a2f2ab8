"""Bad input gets a clear answer and costs nobody else anything.

In every test a healthy session goes on speaking meanwhile: its results keep coming, in order, and it is told of no
error. One server without a secret, one with.
"""

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from dragoman.protocol.audio import SILENCE_PACKET, encode_base64, opus_run
from dragoman.protocol.codes import Close
from e2e.raw_node import SAMPLES as NODE_SAMPLES
from e2e.raw_node import Message, RawNode, silent
from e2e.speech_stage import ACKING, PATIENCE_S, Stage, Talker, Visit, after, standing, visiting
from gateway_peers import CLOSE, frame, upgrade
from key_leaks import Onlooker
from redis_servers import RedisAt
from waiting import wait_until

pytestmark = pytest.mark.xdist_group("bad-input")

SECRET = "a secret that is long enough for HS256, and only for these tests"
ODD = "a\x00\x1b[31m\r\n\t\x7f\u2028\ufeff\U0001f600\U0010ffff\"\\'${7*7}<b>"
FRAMES_PER_S = 200
PACE_S = 0.02  # between utterances of the healthy session: well within what a client may send

CLIENT_SAMPLES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "contract" / "samples.json").read_text()
)["client"]


def token(typ: str = "client", sub: str = "ann", *, secret: str = SECRET, **claims: object) -> str:
    told = {"iss": "dragoman", "exp": int(time.time()) + 600, "typ": typ, "sub": sub, **claims}
    return jwt.encode({k: v for k, v in told.items() if v is not None}, secret, algorithm="HS256")


@pytest.fixture(scope="module")
def stage(redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    flags: dict[str, object] = {
        "server__max_frames_per_s": FRAMES_PER_S,
        "server__out_queue_bytes": 2_097_152,
        "server__out_queue_age_s": 1.0,
        "server__pre_session_s": 3.0,
    }
    with standing(redis_server, tmp_path_factory.mktemp("bad-input"), onlooker, flags) as up:
        yield up


@pytest.fixture(scope="module")
def guarded(redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server that lets nobody in without a token."""
    headers = {"Authorization": f"Bearer {token('operator', 'op')}"}
    flags: dict[str, object] = {"security__secret": SECRET, "server__pre_session_s": 2.0}
    with standing(redis_server, tmp_path_factory.mktemp("guarded"), onlooker, flags, headers=headers) as up:
        yield up


class Healthy:
    """A session that goes on speaking, and hears nothing but results."""

    def __init__(self, visit: Visit, talker: Talker) -> None:
        self._visit, self._talker = visit, talker
        self.spoken = 0

    async def speak_on(self) -> None:
        while True:
            await self._visit.say_utterance(self._talker, self.spoken)
            result = await self._talker.result(self.spoken, PATIENCE_S)
            assert "backfilled" not in result
            assert not [m for m in self._talker.heard if m["type"] in ("error", "backpressure")]
            self._talker.heard.clear()
            self.spoken += 1
            await wait_until(after(PACE_S), PATIENCE_S)


@asynccontextmanager
async def unharmed(stage: Stage, **init: object) -> AsyncIterator[Visit]:
    """A visit during which somebody else goes on undisturbed, and speaks again after it."""
    async with visiting(stage) as visit, visiting(stage) as other:
        told: dict[str, Any] = {"token": token()} if stage.headers else {}
        node_token: dict[str, Any] = {"token": token("node", "healthy"), "node_id": "healthy"} if stage.headers else {}
        await other.node(features=ACKING, **node_token)
        healthy = Healthy(other, await other.talker(**told))
        speaking = asyncio.create_task(healthy.speak_on())
        try:
            await wait_until(lambda: healthy.spoken > 0 or speaking.done(), PATIENCE_S)
            yield visit
            more = healthy.spoken + 2
            await wait_until(lambda: healthy.spoken > more or speaking.done(), PATIENCE_S)
        finally:
            speaking.cancel()
            done = await asyncio.gather(speaking, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError), done[0]


async def closed_with(ws: aiohttp.ClientWebSocketResponse) -> int | None:
    """Read until the server closes, and say with which code."""
    async with asyncio.timeout(PATIENCE_S):
        async for _ in ws:
            pass
    return ws.close_code


async def ending(visit: Visit, path: str, said: str = "") -> "asyncio.Task[int | None]":
    """A connection that says no more than that, and the code it will be closed with."""
    ws = await visit.socket(path=path)
    if said:
        await ws.send_str(said)
    return asyncio.create_task(closed_with(ws))


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
        async with asyncio.timeout(PATIENCE_S):
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


async def test_nonsense_is_answered_and_the_connection_lives_on(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        talker = await visit.talker()
        for text in NONSENSE:
            await talker.ws.send_str(text)
            error = await talker.refused()
            assert error["code"] == "INVALID_MESSAGE", text[:80]
            assert len(error["message"]) <= 200
        assert await talker.pong()


async def test_bytes_that_are_no_text_are_answered(stage: Stage) -> None:
    async with unharmed(stage), Wire(stage.port) as wire:
        await wire.write(frame(1, b'{"type": "session_close", "session_id": "\xff\xfe", "reason": "x"}'))
        assert (await wire.message())["code"] == "INVALID_MESSAGE"


@pytest.mark.parametrize("index", [2**63, 2**64, 2**53 + 1, -(2**63), 10**400])
async def test_an_index_beyond_all_reason_is_answered(stage: Stage, index: int) -> None:
    async with unharmed(stage) as visit:
        talker = await visit.talker()
        await visit.say_utterance(talker, index)
        error = await talker.refused()
        assert error["code"] == "INVALID_MESSAGE"
        assert await talker.pong()


@pytest.mark.parametrize(
    "payload",
    ["!!!!", "AAA", "A" * 7, "Kg==", "BQAAAA==", "AAAA", "%41", "ÿÿÿÿ", "\U0001f600" * 4, " " * 8],
    ids=["no base64", "cut", "cut again", "a length alone", "half a packet", "no packet", "%", "latin", "emoji", "air"],
)
async def test_audio_that_is_none_is_answered_and_the_session_goes_on(stage: Stage, payload: str) -> None:
    async with unharmed(stage) as visit:
        node = await visit.node()
        talker = await visit.talker()
        await talker.speak(3)
        chunk = {"session_id": talker.session_id, "seq": 7, "is_final": True, "payload": payload}
        await talker.say("audio_chunk", **chunk)
        assert (await talker.refused())["code"] == "INVALID_MESSAGE"
        await talker.speak(4, final=True)
        await talker.result(0, PATIENCE_S)
        assert node.jobs[0]["audio"] == bytes(encode_base64(opus_run([SILENCE_PACKET] * 7))).decode().strip('"')


# -- sessions: sizes and speeds --------------------------------------------------------------------


async def test_a_frame_of_a_hundred_megabytes_is_refused_at_its_first_bytes(stage: Stage) -> None:
    async with unharmed(stage) as visit, Wire(stage.port) as wire:
        before = (await visit.get("/api/v1/stats"))["bytes_in"]
        await wire.write(frame(1, b"", announce=100_000_000))
        assert await wire.close_code() == Close.TOO_BIG
        assert (await visit.get("/api/v1/stats"))["bytes_in"] - before < 10_000_000


async def test_a_message_of_a_hundred_megabytes_in_pieces_is_refused(stage: Stage) -> None:
    async with unharmed(stage), Wire(stage.port) as wire:
        piece = bytes(60_000)
        sending = asyncio.create_task(pour(wire, [frame(1, piece, fin=False), *[frame(0, piece, fin=False)] * 1700]))
        assert await wire.close_code() == Close.TOO_BIG
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def pour(wire: Wire, frames: list[bytes]) -> None:
    for one in frames:
        await wire.write(one)


@pytest.mark.parametrize("opcode", [1, 9], ids=["messages", "pings"])
async def test_a_flood_of_tiny_frames_is_cut_off(stage: Stage, opcode: int) -> None:
    async with unharmed(stage), Wire(stage.port) as wire:
        sending = asyncio.create_task(pour(wire, [frame(opcode, b"{}") * 1000] * 1000))  # a million of them
        assert await wire.close_code() == Close.RATE
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_client_that_never_reads_is_cut_off_with_a_code_that_says_come_back(stage: Stage) -> None:
    loud = "A" * 400_000

    async def shout(node: RawNode, job: Message) -> None:
        await node.answer(job, tts_audio=loud)

    async with unharmed(stage) as visit, Wire(stage.port) as wire:
        await visit.node(work=shout)
        init = {"client_version": "1", "platform": "web", "src_lang": visit.src, "tgt_lang": visit.tgt}
        await wire.say("session_init", **init)
        session = (await wire.message())["session_id"]
        audio = bytes(encode_base64(opus_run([SILENCE_PACKET]))).decode().strip('"')
        told = {"manual_cut": True, "src_lang": visit.src, "tgt_lang": visit.tgt, "audio": audio}
        told |= {"audio_format": "opus", "sample_rate": 16000}
        for index in range(30):
            await wire.say("utterance", session_id=session, utterance_index=index, **told)

        async def ended() -> bool:
            metrics = await visit.get("/api/v1/stats")
            return bool(metrics["sessions"] == 1)  # the healthy one is left

        await wait_until(ended, PATIENCE_S)
        assert await wire.close_code() == Close.SLOW_CONSUMER


async def test_hundreds_of_connections_that_never_say_who_they_are_go_by_themselves(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        ends = [await ending(visit, path) for path in ("/ws/session", "/ws/node") for _ in range(150)]
        latecomer = await visit.talker()
        assert await latecomer.pong()
        assert set(await asyncio.gather(*ends)) <= {int(Close.IDLE), int(Close.NOT_REGISTERED)}
        assert await latecomer.pong()


async def test_hundreds_of_connections_that_say_half_a_request_go_by_themselves(stage: Stage) -> None:
    async with unharmed(stage):
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
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


async def test_odd_characters_in_every_text_of_a_client_harm_nobody(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        node = await visit.node()
        talker = await visit.talker()
        sent = 0
        for sample in CLIENT_SAMPLES.values():
            message = sample | ({"session_id": talker.session_id} if "session_id" in sample else {})
            if message["type"] in ("session_close", "session_init", "session_resume"):
                continue  # on sockets of their own, below
            if message["type"] == "utterance":
                message |= {"src_lang": visit.src, "tgt_lang": visit.tgt}
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
async def test_odd_characters_in_the_opening_of_a_session_are_taken_and_given_back(stage: Stage, field: str) -> None:
    async with unharmed(stage) as visit:
        node = await visit.node()
        talker = Talker(await visit.socket())
        ack = await talker.init(**{"src_lang": visit.src, "tgt_lang": visit.tgt, field: ODD, "features": {ODD: ODD}})
        if field == "trace_id":
            assert ack["trace_id"] == ODD
        await talker.speak(5, final=True)
        assert await talker.result(0, PATIENCE_S)
        assert node.jobs[0]["features"] == {ODD: ODD}
        await talker.say("session_close", session_id=talker.session_id, reason=ODD)
        await talker.until(lambda m: m["type"] == "session_close_ack", PATIENCE_S)


@pytest.mark.parametrize("field", ["src_lang", "tgt_lang", "lang_a"])
async def test_odd_characters_in_a_language_are_refused(stage: Stage, field: str) -> None:
    async with unharmed(stage) as visit:
        talker = Talker(await visit.socket())
        init = {"client_version": "1", "platform": "web", "src_lang": "en", "tgt_lang": "es", field: ODD}
        await talker.say("session_init", **init)
        error = await talker.refused()
        assert error["code"] == "INVALID_MESSAGE"
        assert field in error["message"]


async def test_odd_characters_in_the_words_of_a_node_reach_the_client_as_they_are(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        node = await visit.node(work=silent)
        talker = await visit.talker()
        await visit.say_utterance(talker, 0)
        job = await node.job()
        await node.partial(job, ODD)
        await node.answer(job, text_asr=ODD, text_translated=ODD, tts_format=ODD, extra={ODD: ODD})
        result = await talker.result(0, PATIENCE_S)
        assert (result["text_asr"], result["text_translated"], result["extra"]) == (ODD, ODD, {ODD: ODD})
        partial = await talker.until(lambda m: m["type"] == "asr_partial", PATIENCE_S)
        assert partial["text"] == ODD
        await visit.say_utterance(talker, 1)
        await node.fail(await node.job(2), ODD, ODD)
        error = await talker.failed(1)
        assert (error["code"], error["message"]) == ("PROCESSING_ERROR", ODD)


async def test_odd_characters_in_every_text_of_a_node_harm_nobody(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        node = await visit.node(work=silent)
        for sample in NODE_SAMPLES.values():
            if sample["type"] == "node_register":
                continue
            message = sample | ({"language_capabilities": None} if sample["type"] == "node_heartbeat" else {})
            for path in strings_in(message):
                await node.ws.send_str(json.dumps(with_text(message, path, ODD), ensure_ascii=False))
        await node.beat((visit.src, visit.tgt))
        talker = await visit.talker()
        await visit.say_utterance(talker, 0)
        await node.answer(await node.job())
        assert await talker.result(0, PATIENCE_S)


async def test_a_node_that_calls_itself_something_odd_is_refused(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        for claimed in (ODD, "", "a b", "{node}", "x" * 65, "../../etc"):
            ws = await visit.socket(path="/ws/node")
            await ws.send_str(json.dumps(NODE_SAMPLES["node_register"] | {"node_id": claimed}))
            error = json.loads((await ws.receive(timeout=PATIENCE_S)).data)
            assert (error["type"], error["code"]) == ("error", "INVALID_MESSAGE"), claimed


# -- what is somebody else's -----------------------------------------------------------------------


async def test_results_for_jobs_a_node_was_never_given_reach_nobody(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        honest = await visit.node(work=silent)
        talker = await visit.talker()
        await visit.say_utterance(talker, 0)
        job = await honest.job()
        liar = await visit.node(languages=("xx",))
        for claim in ({}, {"node_id": honest.id}, {"attempt_id": 2}, {"node_id": honest.id, "attempt_id": 2}):
            await liar.answer(job, **{"text_asr": "lie", "text_translated": "lie"} | claim)
        for about in ("job_ack", "job_started"):
            await liar.say(about, **liar._about(job) | {"node_id": honest.id})
        await liar.partial(job, "lie")
        await liar.answer(job | {"job_id": "job-that-never-was"})

        async def dropped() -> bool:
            return await visit.count("dragoman_results_dropped_total{reason=no_driver}") >= 8

        await wait_until(dropped, PATIENCE_S)
        await honest.answer(job, text_asr="truth")
        assert (await talker.result(0, PATIENCE_S))["text_asr"] == "truth"
        assert not [m for m in talker.heard if m["type"] == "asr_partial"]


async def test_a_result_that_names_another_session_goes_to_the_one_it_is_of(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        node = await visit.node(work=silent)
        mine, other = await visit.talker(), await visit.talker()
        await visit.say_utterance(mine, 0)
        await node.answer(await node.job(), session_id=other.session_id, utterance_index=7)
        assert (await mine.result(0, PATIENCE_S))["session_id"] == mine.session_id
        await other.pong()
        assert other.heard == []


async def test_an_answer_too_large_for_anybody_ends_its_connection_alone(stage: Stage) -> None:
    async with unharmed(stage) as visit:
        node = await visit.node(work=silent)
        talker = await visit.talker()
        await visit.say_utterance(talker, 0)
        await node.answer(await node.job(), tts_audio="A" * 3_000_000)
        assert await node.closed() == Close.TOO_BIG
        good = await visit.node()
        assert (await talker.result(0, PATIENCE_S))["text_asr"] == "said 0"
        assert len(good.jobs) == 1


# -- who may come in -------------------------------------------------------------------------------


def unsigned(typ: str) -> str:
    told = {"iss": "dragoman", "exp": int(time.time()) + 600, "typ": typ, "sub": "ann"}
    return jwt.encode(told, None, algorithm="none")


def bad_tokens(typ: str) -> dict[str, str | None]:
    other = "operator" if typ == "node" else "node"
    head, body, signature = token(typ).split(".")
    return {
        "none": None,
        "empty": "",
        "no token": "abc",
        "expired": token(typ, exp=int(time.time()) - 60),
        "never expires": token(typ, exp=None),
        "wrongly signed": token(typ, secret="another secret that is long enough for HS256 as well"),
        "alg none": unsigned(typ),
        "alg none, signed": ".".join((unsigned(typ).split(".")[0], body, signature)),
        "cut": f"{head}.{body}.",
        "of another kind": token(other),
        "of another issuer": token(typ, iss="somebody"),
        "odd": ODD,
        "long": "x" * 100_000,
        "subject is no text": token(typ, tenant=7),
    }


@pytest.mark.parametrize("name", bad_tokens("client"))
async def test_a_client_without_a_valid_token_stays_outside(guarded: Stage, name: str) -> None:
    async with unharmed(guarded) as visit:
        ws = await visit.socket()
        init = {"type": "session_init", "client_version": "1", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
        await ws.send_str(json.dumps(init | {"token": bad_tokens("client")[name]}))
        assert await closed_with(ws) == Close.UNAUTHORIZED


@pytest.mark.parametrize("name", bad_tokens("node"))
async def test_a_node_without_a_valid_token_stays_outside(guarded: Stage, name: str) -> None:
    async with unharmed(guarded) as visit:
        ws = await visit.socket(path="/ws/node")
        await ws.send_str(json.dumps(NODE_SAMPLES["node_register"] | {"token": bad_tokens("node")[name]}))
        assert await closed_with(ws) == Close.UNAUTHORIZED


async def test_a_token_is_taken_from_the_first_message_the_header_or_the_query(guarded: Stage) -> None:
    async with unharmed(guarded) as visit:
        told = {"client_version": "1", "platform": "web", "src_lang": "en", "tgt_lang": "es"}
        for ws, fields in (
            (await visit.socket(), {"token": token()}),
            (await visit.socket(headers={"Authorization": f"Bearer {token()}"}), {}),
            (await visit.socket(path=f"/ws/session?token={token()}"), {}),
        ):
            await ws.send_str(json.dumps({"type": "session_init", **told, **fields}))
            assert json.loads((await ws.receive(timeout=PATIENCE_S)).data)["type"] == "session_init_ack"


async def test_a_node_that_claims_anothers_id_is_refused_and_the_other_stays(guarded: Stage) -> None:
    async with unharmed(guarded) as visit:
        victim = await visit.node(token=token("node", "victim"), node_id="victim")
        ws = await visit.socket(path="/ws/node")
        claim = NODE_SAMPLES["node_register"] | {"node_id": "victim", "token": token("node", "villain")}
        await ws.send_str(json.dumps(claim))
        assert await closed_with(ws) == Close.NODE_ID_CONFLICT
        talker = await visit.talker(token=token())
        await visit.say_utterance(talker, 0)
        assert await talker.result(0, PATIENCE_S)
        assert len(victim.jobs) == 1


async def test_a_node_gets_the_id_its_token_is_for(guarded: Stage) -> None:
    async with unharmed(guarded) as visit:
        node = await visit.node(token=token("node", "by-token"))
        assert node.id == "by-token"


@pytest.mark.parametrize("type", ["audio_chunk", "utterance", "client_heartbeat", "tts_started", "session_close"])
@pytest.mark.parametrize("who", ["another subject", "another tenant", "nobody"])
async def test_a_session_of_somebody_else_is_out_of_reach(guarded: Stage, type: str, who: str) -> None:
    others = {"another subject": token(sub="eve"), "another tenant": token(tenant="evil"), "nobody": None}
    async with unharmed(guarded) as visit:
        await visit.node(token=token("node", "n"), node_id="n")
        victim = await visit.talker(token=token())
        if others[who] is None:
            villain = Talker(await visit.socket())
        else:
            villain = await visit.talker(token=others[who])
        forged = next(s for s in CLIENT_SAMPLES.values() if s["type"] == type) | {"session_id": victim.session_id}
        await villain.ws.send_str(json.dumps(forged))
        if others[who] is None:
            assert await closed_with(villain.ws) == Close.UNAUTHORIZED
        else:
            assert (await villain.refused())["code"] == "INVALID_SESSION"
            assert await villain.pong()
        await visit.say_utterance(victim, 0)
        assert await victim.result(0, PATIENCE_S)


async def test_the_same_person_on_another_socket_may_use_the_session(guarded: Stage) -> None:
    async with unharmed(guarded) as visit:
        await visit.node(token=token("node", "n"), node_id="n")
        owner = await visit.talker(token=token())
        sender = Talker(await visit.socket(headers={"Authorization": f"Bearer {token()}"}))
        sender.session_id = owner.session_id
        await visit.say_utterance(sender, 0)
        assert await sender.result(0, PATIENCE_S)


async def test_hundreds_of_connections_without_a_token_are_gone_in_time(guarded: Stage) -> None:
    async with unharmed(guarded) as visit:
        idle = [await ending(visit, path) for path in ("/ws/session", "/ws/node") for _ in range(100)]
        said = '{"type": "client_heartbeat", "session_id": "s-1", "timestamp": 1}'
        pushy = [await ending(visit, "/ws/session", said) for _ in range(100)]
        assert set(await asyncio.gather(*pushy)) == {int(Close.UNAUTHORIZED)}
        assert set(await asyncio.gather(*idle)) <= {int(Close.IDLE), int(Close.NOT_REGISTERED)}


@pytest.mark.parametrize("path", ["/api/v1/cluster", "/api/v1/stats", "/metrics", "/api/v1/dlq"])
async def test_what_is_for_operators_is_for_nobody_else(guarded: Stage, path: str) -> None:
    async with unharmed(guarded) as visit:
        for given in (None, token("client"), token("node"), unsigned("operator"), token("operator", exp=1)):
            headers = {"Authorization": f"Bearer {given}"} if given else {}
            async with visit.http.get(f"http://127.0.0.1:{guarded.port}{path}", headers=headers) as answer:
                assert answer.status == 401
