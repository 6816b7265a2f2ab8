"""Complete frames with invalid content: each is answered, and the connection stays open."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from dragoman.tools.bench.abuse.attack import NODE, Answers, Attack, Target, expected
from dragoman.tools.bench.abuse.raw_client import RawClient, tcp, websocket

ODD = "a\x00\x1b[31m\r\n\t\x7f\u2028\ufeff\U0001f600\U0010ffff\"\\'${7*7}<b>"
AUDIO = "AwD4//4="  # one packet of silence
NO_AUDIO = ("!!!!", "AAA", "Kg==", "BQAAAA==", "AAAA", "%41", "ÿÿÿÿ", "\U0001f600" * 4, " " * 8)
MAX_LIST_BYTES = 64 * 1024
NONSENSE = (
    "",
    "{",
    "\x00",
    "nul",
    "[[[[[[",
    "[" * 100_000,
    '{"a":' * 20_000,
    '{"type": "session_init"',
    '{"type": "no_such_type"}',
    '{"type": ["session_init"]}',
    "[]",
    '{"type": "client_heartbeat", "session_id": "\\ud800", "timestamp": 1}',
)
CHAT_NONSENSE = (
    ("{", "bad_json"),
    ("{}", "missing_type"),
    ('{"type":"NO_SUCH_TYPE"}', "not_implemented"),
)


def chunk(session: str) -> dict[str, Any]:
    return {"type": "audio_chunk", "session_id": session, "seq": 0, "is_final": False, "payload": AUDIO}


def utterance(session: str, index: int = 0) -> dict[str, Any]:
    usual = {"manual_cut": True, "src_lang": "xx", "tgt_lang": "yy", "audio": AUDIO, "audio_format": "opus"}
    return {"type": "utterance", "session_id": session, "utterance_index": index, **usual, "sample_rate": 16000}


def heartbeat(session: str) -> dict[str, Any]:
    return {"type": "client_heartbeat", "session_id": session, "timestamp": 1}


def with_one_wrong(message: dict[str, Any], optional: str = "payload") -> Iterator[dict[str, Any]]:
    """Every required field missing, and every field of another type."""
    for name, value in message.items():
        if name != optional:
            yield {key: kept for key, kept in message.items() if key != name}
        yield message | {name: [value]}
        yield message | {name: {"x": value}}
        yield message | {name: 2**70 if isinstance(value, str) else "x"}


async def error_code(client: RawClient, *more: str) -> str:
    """The code of the next error, or the type of another message that was waited for."""
    message = await client.wait_for("error", "room_error", *more)
    return str(message.get("code", message["type"]))


async def nonsense(target: Target) -> Answers:
    seen: Answers = Counter()
    async with target.session() as (client, _), target.node(1) as (node, _):
        for text in NONSENSE:
            for each in (client, node):
                await each.send(text)
                seen[await error_code(each)] += 1
        seen[await client.is_open()] += 1
        seen[await node.is_open()] += 1
    return seen


async def chat_nonsense(target: Target) -> Answers:
    seen: Answers = Counter()
    async with target.chat_user() as client:
        for text, _ in CHAT_NONSENSE:
            await client.send(text)
            seen[(await client.wait_for("ERROR"))["reason"]] += 1
        seen[await client.is_open()] += 1
        await client.send("{")  # the fourth within ten seconds
        seen[await client.closed()] += 1
    return seen


async def wrong_fields(target: Target) -> Answers:
    seen: Answers = Counter()
    async with target.session() as (client, session):
        for valid in (chunk(session), utterance(session), heartbeat(session)):
            for message in with_one_wrong(valid):
                await client.send(message)
                seen[await error_code(client)] += 1
        seen[await client.is_open()] += 1
    return seen


async def no_audio(target: Target) -> Answers:
    seen: Answers = Counter()
    async with target.session() as (client, session):
        for payload in NO_AUDIO:
            await client.send(chunk(session) | {"payload": payload})
            seen[await error_code(client)] += 1
        seen[await client.is_open()] += 1
    return seen


async def huge_index(target: Target) -> Answers:
    seen: Answers = Counter()
    async with target.session() as (client, session):
        for index in (2**63, 2**64, 2**53 + 1, -(2**63), 10**400):
            await client.send(utterance(session, index))
            seen[await error_code(client)] += 1
        seen[await client.is_open()] += 1
    return seen


async def odd_texts(target: Target) -> Answers:
    """In every text of every message; a chat user receives them as they were sent."""
    seen: Answers = Counter()
    async with target.session(client_version=ODD, dialect=ODD, trace_id=ODD, mode=ODD) as (client, session):
        room = {"type": "room_join", "room_code": ODD, "display_name": ODD}
        sdp = {"type": "webrtc_offer", "room_code": ODD, "to": ODD, "sdp": {ODD: ODD}}
        valids: list[dict[str, Any]] = [chunk(session), utterance(session), heartbeat(session), room, sdp]
        for valid in valids:
            for name, value in valid.items():
                if isinstance(value, str):
                    await client.send(valid | {name: ODD})
                    seen[await error_code(client, "server_heartbeat")] += 1
    kept = ODD.replace("\x00", "")
    to = target.new_uid()
    async with target.chat_user(1, to) as receiver, target.chat_user() as client:
        name = kept + uuid4().hex[:8]
        said = {"clientMsgId": name, "to": str(to), "body": kept, "msgType": kept}
        await client.send({"type": "SINGLE_CHAT", **said})
        ack = await client.wait_for("ACK", "ERROR")
        seen[ack.get("ackType", ack.get("reason", "closed"))] += ack.get("clientMsgId") == name
        got = await receiver.wait_for("SINGLE_CHAT", "ERROR")
        same = all(got.get(field) == said[field] for field in ("clientMsgId", "body", "msgType"))
        seen["received as sent" if same else "received otherwise"] += 1
        await client.send({"type": "SINGLE_CHAT", "clientMsgId": ODD, "to": ODD, "body": ODD})
        seen[(await client.wait_for("ERROR"))["reason"]] += 1
    return seen


async def forged_session(target: Target) -> Answers:
    """Somebody else's, on this instance and on the other, and one that never was. The owner keeps its session."""
    seen: Answers = Counter()
    async with target.session(token=target.token(sub="owner")) as (owner, session_of_owner):
        for at in range(len(target.ports)):
            async with target.session(at, token=target.token(tenant="evil", sub="owner")) as (client, _):
                for session in (session_of_owner, "s-" + "0" * 32, ODD):
                    closing: dict[str, Any] = {"type": "session_close", "session_id": session}
                    for message in (chunk(session), heartbeat(session), closing):
                        await client.send(message | {"reason": "x"})
                        seen[await error_code(client)] += 1
                    await client.send(
                        {"type": "session_resume", "session_id": session, "resume_token": "x", "last_seq": 0}
                    )
                    seen[await error_code(client)] += 1
                    await client.send(utterance(session))
                    seen[await error_code(client)] += 1
                seen[await client.is_open()] += 1
        await owner.send(heartbeat(session_of_owner))
        seen[f"owner: {await error_code(owner, 'server_heartbeat')}"] += 1
    return seen


async def results_never_asked_for(target: Target) -> Answers:
    seen: Answers = Counter()
    async with target.node() as (client, name):
        for number in range(target.scale.many):
            about = {"job_id": f"job-{uuid4()}", "attempt_id": number, "node_id": NODE, "session_id": "s-1"}
            about |= {"trace_id": ODD, "utterance_index": number}
            await client.send(
                {"type": "job_result", **about, "success": True, "text_asr": "lie", "text_translated": "lie"}
            )
            await client.send({"type": "job_ack", **about, "node_id": name})
            await client.send({"type": "asr_partial", **about, "text": "lie", "is_final": False})
        seen[await client.is_open()] += 1
    return seen


async def anothers_node(target: Target) -> Answers:
    """The id of the honest node, with a token for another one."""
    seen: Answers = Counter()
    for port in target.ports:
        async with websocket(port, "/ws/node") as client:
            await client.send(target.register(NODE) | {"token": target.token("node", "villain")})
            seen[await client.closed()] += 1
    return seen


async def one_byte_packets(target: Target) -> Answers:
    """A chunk of 1 MB in which every Opus packet has one byte: counting them all would take 60 ms."""
    seen: Answers = Counter()
    payload = base64.b64encode(b"\x01\x00x" * 250_000).decode()
    async with target.session() as (client, session):
        for _ in range(target.scale.many // 10):
            await client.send(chunk(session) | {"payload": payload})
            seen[await error_code(client)] += 1
        seen[await client.is_open()] += 1
    return seen


async def talkative_node(target: Target) -> Answers:
    """A node with 512 languages, another with long names, and errors with codes that fill a log."""
    seen: Answers = Counter()
    many = [f"{number:03}" for number in range(512)]
    for languages in (many, ["x" * 100_000]):
        fields = {f"{kind}_languages": languages for kind in ("asr", "tts", "semantic")}
        async with websocket(target.port, "/ws/node") as client:
            await client.send(target.register(f"evil-{uuid4().hex[:8]}", language_capabilities=fields))
            seen[await error_code(client, "node_register_ack")] += 1
    async with target.node() as (client, name):
        for code in ("x" * 700_000, ODD):
            await client.send({"type": "node_error", "node_id": name, "code": code, "message": "x" * 100_000})
            seen[await error_code(client)] += 1
        for number in range(target.scale.many):
            await client.send({"type": "node_error", "node_id": name, "code": f"E{number}", "message": ODD})
        seen[await client.is_open()] += 1
        async with tcp(target.port) as asking:
            await asking.write(b"GET /api/v1/public/languages HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            size = len(json.dumps(await asking.json_answer()))
            seen["small list" if size < MAX_LIST_BYTES else f"list of {size} bytes"] += 1
    return seen


ATTACKS = (
    Attack("nonsense", "invalid messages to sessions and nodes", nonsense, expected("INVALID_MESSAGE", "stays open")),
    Attack(
        "chat_nonsense",
        "invalid chat frames, four times",
        chat_nonsense,
        expected("bad_json", "missing_type", "not_implemented", "stays open", "closed 4500"),
    ),
    Attack("wrong_fields", "missing fields and wrong types", wrong_fields, expected("INVALID_MESSAGE", "stays open")),
    Attack("no_audio", "invalid Base64 and half Opus packets", no_audio, expected("INVALID_MESSAGE", "stays open")),
    Attack("huge_index", "utterance_index 2⁶³", huge_index, expected("INVALID_MESSAGE", "stays open")),
    Attack(
        "odd_texts",
        "control characters and 4-byte UTF-8 in every text",
        odd_texts,
        expected(
            "INVALID_MESSAGE",
            "INVALID_SESSION",
            "INVALID_ROOM_CODE",
            "NOT_IN_ROOM",
            "accepted",
            "received as sent",
            "bad_json",
        ),
        expected("NO_AVAILABLE_NODE", "server_heartbeat"),
    ),
    Attack(
        "forged_session",
        "the session of another client",
        forged_session,
        expected("INVALID_SESSION", "stays open", "owner: server_heartbeat"),
    ),
    Attack(
        "unasked_results", "results of jobs that were never assigned", results_never_asked_for, expected("stays open")
    ),
    Attack("one_byte_packets", "Opus packets of one byte", one_byte_packets, expected("INVALID_MESSAGE", "stays open")),
    Attack(
        "talkative_node",
        "a node with 512 languages and long errors",
        talkative_node,
        expected("INVALID_MESSAGE", "stays open", "small list"),
    ),
    Attack("anothers_node", "the id of another node", anothers_node, expected("closed 4504")),
)
