"""A greedy member of rooms, somebody who guesses their codes, and a guest who speaks elsewhere."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from dragoman.tools.bench.abuse.attack import Answers, Attack, Target, expected
from dragoman.tools.bench.abuse.connections import post
from dragoman.tools.bench.abuse.messages import error_code, utterance
from dragoman.tools.bench.abuse.raw_client import Disconnected, RawClient, http_status

LANGUAGES = [f"r{number:02}" for number in range(16)]
ASKED = [f"t{number:02}" for number in range(16)]
CAPTIONS = 12
JOIN_S, JOINING = 1.0, 4  # how long the connections join
JOINS_AT_ONCE = 100
WORK_AT_ONCE, WORK_PER_S = 16, 50  # of one client: domain/limits/sessions.py, limits.utterances_per_s
WRONG_CODE = "000000"


async def open_room(client: RawClient, **fields: object) -> str:
    await client.send({"type": "room_create", "display_name": "Eve", **fields})
    answer = await client.wait_for("room_create_ack", "room_error")
    if answer["type"] != "room_create_ack":
        raise Disconnected(f"{answer['type']} {answer.get('code')}")
    return str(answer["room_id"])


async def joins(target: Target) -> Answers:
    """As fast as the connections of one client can send."""
    seen: Answers = Counter()
    async with AsyncExitStack() as stack:
        who = target.token(sub=f"joiner {time.monotonic_ns()}")
        clients = [(await stack.enter_async_context(target.session(token=who)))[0] for _ in range(JOINING)]
        room = await open_room(clients[0], speaks="xx", hears="xx")
        message = json.dumps({"type": "room_join", "room_id": room, "display_name": "Eve", "speaks": "xx"})
        began = time.monotonic()
        await asyncio.gather(*(_join(client, message, seen) for client in clients))
        most = JOINING + WORK_AT_ONCE + WORK_PER_S * (time.monotonic() - began)
        served = seen.pop("room_joined", 0)
        seen["as many as it may" if 0 < served <= most else f"{served} joins"] += 1
    return seen


async def _join(client: RawClient, message: str, seen: Answers) -> None:
    async def send() -> None:
        while True:
            for _ in range(JOINS_AT_ONCE):
                await client.send(message)
            await asyncio.sleep(0)

    async def read() -> None:
        while True:
            answer = await client.wait_for("room_joined", "room_error")
            if answer["type"] == "closed":
                seen[f"closed {answer['code']}"] += 1
                return
            seen[answer.get("code", answer["type"])] += 1

    sending = asyncio.create_task(send())
    try:
        with suppress(TimeoutError, Disconnected):
            async with asyncio.timeout(JOIN_S):
                await read()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def wrong_codes(target: Target) -> Answers:
    """Over HTTP at all instances in turn, and on a connection."""
    seen: Answers = Counter()
    body = json.dumps({"code": WRONG_CODE}).encode()
    for number in range(target.scale.many):
        seen[await http_status(target.ports[number % len(target.ports)], post("/api/v1/rooms/join", body))] += 1
    async with target.session() as (client, _):
        for _ in range(12):
            await client.send({"type": "room_join", "room_code": WRONG_CODE, "display_name": "Eve"})
            seen[await error_code(client, "room_joined")] += 1
        seen[await client.is_open()] += 1
    return seen


@asynccontextmanager
async def _member(target: Target, languages: int) -> AsyncIterator[tuple[RawClient, str]]:
    """A connection whose sessions hear so many languages in one room, the session that writes, and a node that begins
    each translation and ends none."""
    pairs = [[LANGUAGES[0], lang] for lang in (*LANGUAGES[1:], *ASKED)]
    features = ["job_ack", "text_jobs", "slots:64"]
    async with target.node(text_pairs=pairs, advanced_features=features) as (node, name), AsyncExitStack() as stack:
        acknowledging = asyncio.create_task(_acknowledge(node, name))
        stack.callback(acknowledging.cancel)
        who = target.token(sub=f"writer {time.monotonic_ns()}")
        client, session = await stack.enter_async_context(target.session(token=who))
        room = await open_room(client, speaks=LANGUAGES[0], hears=LANGUAGES[0])
        for lang in LANGUAGES[1:languages]:
            await client.send(target.init(token=who))
            reader = (await client.wait_for("session_init_ack"))["session_id"]
            about = {"session_id": reader, "display_name": "Eve", "speaks": lang, "hears": lang}
            await client.send({"type": "room_join", "room_id": room, **about})
            await client.wait_for("room_joined")
        yield client, session


async def _acknowledge(node: RawClient, name: str) -> None:
    with suppress(Disconnected):
        while True:
            job = await node.wait_for("job_assign")
            if job["type"] == "closed":
                return
            about = {key: job[key] for key in ("job_id", "attempt_id", "session_id", "trace_id")}
            await node.send({"type": "job_ack", **about, "node_id": name})


async def _answered(client: RawClient, count: int, seen: Answers) -> None:
    for _ in range(count):
        answer = await client.wait_for("room_ok", "room_error")
        seen[answer.get("code", answer["type"])] += 1
        if answer["type"] == "closed":
            return


async def text_flood(target: Target) -> Answers:
    seen: Answers = Counter()
    async with _member(target, len(LANGUAGES)) as (client, session):
        for number in range(target.scale.many):
            ids = {"session_id": session, "client_msg_id": f"m{number}", "request_id": f"q{number}"}
            await client.send({"type": "room_text", "text": f"sentence {number}", **ids})
        await _answered(client, target.scale.many, seen)
        seen[await client.is_open()] += 1
    return seen


async def translate_flood(target: Target) -> Answers:
    """Of its captions, in languages that nobody hears."""
    seen: Answers = Counter()
    async with _member(target, 2) as (client, session):
        for number in range(CAPTIONS):
            ids = {"session_id": session, "client_msg_id": f"m{number}", "request_id": f"q{number}"}
            await client.send({"type": "room_text", "text": f"sentence {number}", **ids})
            await _answered(client, 1, seen)
            for lang in ASKED:
                ids = {"session_id": session, "caption_id": f"{session}:tm{number}", "request_id": f"{lang}-{number}"}
                await client.send({"type": "room_translate", "lang": lang, **ids})
            await _answered(client, len(ASKED), seen)
        seen[await client.is_open()] += 1
    return seen


async def guest_elsewhere(target: Target) -> Answers:
    """A token for one room, used to have anything translated."""
    seen: Answers = Counter()
    async with target.session(token=target.token(sub="guest", room="a-room", role="speaker")) as (client, session):
        for number in range(target.scale.many // 10):
            await client.send(utterance(session, number))
            seen[await error_code(client)] += 1
        await client.send({"type": "room_create", "display_name": "Eve"})
        seen[await error_code(client)] += 1
        seen[await client.is_open()] += 1
    return seen


ATTACKS = (
    Attack(
        "room_joins",
        "joins of one room, as fast as one client can send",
        joins,
        expected("as many as it may"),
        expected("LIMIT_EXCEEDED", "closed 4006"),
    ),
    Attack(
        "room_codes",
        "wrong codes of rooms",
        wrong_codes,
        expected("HTTP 429", "INVALID_ROOM_CODE", "LIMIT_EXCEEDED", "stays open"),
        expected("HTTP 404"),
    ),
    Attack(
        "room_texts",
        "a member that writes in a room of 16 languages",
        text_flood,
        expected("room_ok", "LIMIT_EXCEEDED", "stays open"),
    ),
    Attack(
        "room_translations",
        "a member that asks for captions in 16 more languages",
        translate_flood,
        expected("room_ok", "TOO_MANY_LANGUAGES", "stays open"),
        expected("LIMIT_EXCEEDED"),
    ),
    Attack(
        "guest_elsewhere",
        "the token for one room outside that room",
        guest_elsewhere,
        expected("NOT_IN_ROOM", "NOT_ALLOWED", "stays open"),
    ),
)
