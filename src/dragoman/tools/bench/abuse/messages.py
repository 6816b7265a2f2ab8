"""Whole frames with something wrong inside: each is answered, and the connection lives on."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from dragoman.tools.bench.abuse.attack import NODE, Answers, Attack, Scene, good
from dragoman.tools.bench.abuse.raw_client import Wire, tcp, websocket

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
    told = {"manual_cut": True, "src_lang": "xx", "tgt_lang": "yy", "audio": AUDIO, "audio_format": "opus"}
    return {"type": "utterance", "session_id": session, "utterance_index": index, **told, "sample_rate": 16000}


def beat(session: str) -> dict[str, Any]:
    return {"type": "client_heartbeat", "session_id": session, "timestamp": 1}


def with_one_wrong(message: dict[str, Any], optional: str = "payload") -> Iterator[dict[str, Any]]:
    """Every required field missing, and every field of another type."""
    for name, value in message.items():
        if name != optional:
            yield {key: kept for key, kept in message.items() if key != name}
        yield message | {name: [value]}
        yield message | {name: {"x": value}}
        yield message | {name: 2**70 if isinstance(value, str) else "x"}


async def told(wire: Wire, *more: str) -> str:
    """The next error, or whatever else was waited for."""
    message = await wire.until("error", "room_error", *more)
    return str(message.get("code", message["type"]))


async def nonsense(scene: Scene) -> Answers:
    seen: Answers = Counter()
    async with scene.session() as (wire, _), scene.node(1) as (node, _):
        for text in NONSENSE:
            for each in (wire, node):
                await each.say(text)
                seen[await told(each)] += 1
        seen[await wire.lives()] += 1
        seen[await node.lives()] += 1
    return seen


async def chat_nonsense(scene: Scene) -> Answers:
    seen: Answers = Counter()
    async with scene.chatter() as wire:
        for text, _ in CHAT_NONSENSE:
            await wire.say(text)
            seen[(await wire.until("ERROR"))["reason"]] += 1
        seen[await wire.lives()] += 1
        await wire.say("{")  # the fourth within ten seconds
        seen[await wire.closed()] += 1
    return seen


async def wrong_fields(scene: Scene) -> Answers:
    seen: Answers = Counter()
    async with scene.session() as (wire, session):
        for sound in (chunk(session), utterance(session), beat(session)):
            for message in with_one_wrong(sound):
                await wire.say(message)
                seen[await told(wire)] += 1
        seen[await wire.lives()] += 1
    return seen


async def no_audio(scene: Scene) -> Answers:
    seen: Answers = Counter()
    async with scene.session() as (wire, session):
        for payload in NO_AUDIO:
            await wire.say(chunk(session) | {"payload": payload})
            seen[await told(wire)] += 1
        seen[await wire.lives()] += 1
    return seen


async def huge_index(scene: Scene) -> Answers:
    seen: Answers = Counter()
    async with scene.session() as (wire, session):
        for index in (2**63, 2**64, 2**53 + 1, -(2**63), 10**400):
            await wire.say(utterance(session, index))
            seen[await told(wire)] += 1
        seen[await wire.lives()] += 1
    return seen


async def odd_texts(scene: Scene) -> Answers:
    """In every text of every message; a chat user receives them as they were sent."""
    seen: Answers = Counter()
    async with scene.session(client_version=ODD, dialect=ODD, trace_id=ODD, mode=ODD) as (wire, session):
        room = {"type": "room_join", "room_code": ODD, "display_name": ODD}
        sdp = {"type": "webrtc_offer", "room_code": ODD, "to": ODD, "sdp": {ODD: ODD}}
        sounds: list[dict[str, Any]] = [chunk(session), utterance(session), beat(session), room, sdp]
        for sound in sounds:
            for name, value in sound.items():
                if isinstance(value, str):
                    await wire.say(sound | {name: ODD})
                    seen[await told(wire, "server_heartbeat")] += 1
    kept = ODD.replace("\x00", "")
    to = scene.new_uid()
    async with scene.chatter(1, to) as receiver, scene.chatter() as wire:
        name = kept + uuid4().hex[:8]
        said = {"clientMsgId": name, "to": str(to), "body": kept, "msgType": kept}
        await wire.say({"type": "SINGLE_CHAT", **said})
        ack = await wire.until("ACK", "ERROR")
        seen[ack.get("ackType", ack.get("reason", "closed"))] += ack.get("clientMsgId") == name
        got = await receiver.until("SINGLE_CHAT", "ERROR")
        same = all(got.get(field) == said[field] for field in ("clientMsgId", "body", "msgType"))
        seen["received as sent" if same else "received otherwise"] += 1
        await wire.say({"type": "SINGLE_CHAT", "clientMsgId": ODD, "to": ODD, "body": ODD})
        seen[(await wire.until("ERROR"))["reason"]] += 1
    return seen


async def forged_session(scene: Scene) -> Answers:
    """Somebody else's, on this instance and on the other, and one that never was. The owner keeps its session."""
    seen: Answers = Counter()
    async with scene.session(token=scene.token(sub="owner")) as (owner, session_of_owner):
        for at in range(len(scene.ports)):
            async with scene.session(at, token=scene.token(tenant="evil", sub="owner")) as (wire, _):
                for session in (session_of_owner, "s-" + "0" * 32, ODD):
                    closing: dict[str, Any] = {"type": "session_close", "session_id": session}
                    for message in (chunk(session), beat(session), closing):
                        await wire.say(message | {"reason": "x"})
                        seen[await told(wire)] += 1
                    await wire.say(
                        {"type": "session_resume", "session_id": session, "resume_token": "x", "last_seq": 0}
                    )
                    seen[await told(wire)] += 1
                    await wire.say(utterance(session))
                    seen[await told(wire)] += 1
                seen[await wire.lives()] += 1
        await owner.say(beat(session_of_owner))
        seen[f"owner: {await told(owner, 'server_heartbeat')}"] += 1
    return seen


async def results_never_asked_for(scene: Scene) -> Answers:
    seen: Answers = Counter()
    async with scene.node() as (wire, name):
        for number in range(scene.scale.crowd):
            about = {"job_id": f"job-{uuid4()}", "attempt_id": number, "node_id": NODE, "session_id": "s-1"}
            about |= {"trace_id": ODD, "utterance_index": number}
            await wire.say(
                {"type": "job_result", **about, "success": True, "text_asr": "lie", "text_translated": "lie"}
            )
            await wire.say({"type": "job_ack", **about, "node_id": name})
            await wire.say({"type": "asr_partial", **about, "text": "lie", "is_final": False})
        seen[await wire.lives()] += 1
    return seen


async def anothers_node(scene: Scene) -> Answers:
    """The id of the honest node, with a token for another one."""
    seen: Answers = Counter()
    for port in scene.ports:
        async with websocket(port, "/ws/node") as wire:
            await wire.say(scene.register(NODE) | {"token": scene.token("node", "villain")})
            seen[await wire.closed()] += 1
    return seen


async def one_byte_packets(scene: Scene) -> Answers:
    """A chunk of 1 MB in which every Opus packet has one byte: counting them all would take 60 ms."""
    seen: Answers = Counter()
    payload = base64.b64encode(b"\x01\x00x" * 250_000).decode()
    async with scene.session() as (wire, session):
        for _ in range(scene.scale.crowd // 10):
            await wire.say(chunk(session) | {"payload": payload})
            seen[await told(wire)] += 1
        seen[await wire.lives()] += 1
    return seen


async def talkative_node(scene: Scene) -> Answers:
    """A node with 512 languages, another with long names, and errors with codes that fill a log."""
    seen: Answers = Counter()
    many = [f"{number:03}" for number in range(512)]
    for languages in (many, ["x" * 100_000]):
        fields = {f"{kind}_languages": languages for kind in ("asr", "tts", "semantic")}
        async with websocket(scene.port, "/ws/node") as wire:
            await wire.say(scene.register(f"evil-{uuid4().hex[:8]}", language_capabilities=fields))
            seen[await told(wire, "node_register_ack")] += 1
    async with scene.node() as (wire, name):
        for code in ("x" * 700_000, ODD):
            await wire.say({"type": "node_error", "node_id": name, "code": code, "message": "x" * 100_000})
            seen[await told(wire)] += 1
        for number in range(scene.scale.crowd):
            await wire.say({"type": "node_error", "node_id": name, "code": f"E{number}", "message": ODD})
        seen[await wire.lives()] += 1
        async with tcp(scene.port) as asking:
            await asking.write(b"GET /api/v1/public/languages HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            size = len(json.dumps(await asking.json_answer()))
            seen["small list" if size < MAX_LIST_BYTES else f"list of {size} bytes"] += 1
    return seen


ATTACKS = (
    Attack("nonsense", "what is no message, to sessions and nodes", nonsense, good("INVALID_MESSAGE", "lives on")),
    Attack(
        "chat_nonsense",
        "what is no frame of chat, four times",
        chat_nonsense,
        good("bad_json", "missing_type", "not_implemented", "lives on", "closed 4500"),
    ),
    Attack("wrong_fields", "fields missing and of another type", wrong_fields, good("INVALID_MESSAGE", "lives on")),
    Attack("no_audio", "no base64, half an Opus packet", no_audio, good("INVALID_MESSAGE", "lives on")),
    Attack("huge_index", "utterance_index 2⁶³", huge_index, good("INVALID_MESSAGE", "lives on")),
    Attack(
        "odd_texts",
        "control characters and 4-byte UTF-8 in every text",
        odd_texts,
        good("INVALID_MESSAGE", "INVALID_SESSION", "UNSUPPORTED_FEATURE", "accepted", "received as sent", "bad_json"),
        good("NO_AVAILABLE_NODE", "server_heartbeat"),
    ),
    Attack(
        "forged_session",
        "a session of somebody else",
        forged_session,
        good("INVALID_SESSION", "lives on", "owner: server_heartbeat"),
    ),
    Attack("unasked_results", "results of jobs never given", results_never_asked_for, good("lives on")),
    Attack("one_byte_packets", "Opus packets of one byte", one_byte_packets, good("INVALID_MESSAGE", "lives on")),
    Attack(
        "talkative_node",
        "a node with 512 languages and long errors",
        talkative_node,
        good("INVALID_MESSAGE", "lives on", "small list"),
    ),
    Attack("anothers_node", "the id of another node", anothers_node, good("closed 4504")),
)
