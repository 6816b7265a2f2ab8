"""One client that takes more than its share: logins, stored bytes, history, sessions and open utterances."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

from dragoman.protocol.chat import MAX_BODY_UNITS
from dragoman.tools.bench.abuse.attack import Answers, Attack, Target, expected
from dragoman.tools.bench.abuse.connections import get, operator, post
from dragoman.tools.bench.abuse.messages import heartbeat, utterance
from dragoman.tools.bench.abuse.raw_client import HONEST, HOSTILE, Disconnected, RawClient, tcp, websocket

PASSWORD = "correct horse battery staple"
LARGEST = "語" * MAX_BODY_UNITS  # 12 KiB
BATCH = 32
FRAMES_PER_S = 300  # below limits.chat_frames_per_s
REUSES = 200
BUSY_S = 0.2
LAPSE_S = 0.3  # after which a claim has certainly lapsed
TRIES_PER_ADDRESS = 4  # one address may try a name five times a minute
OWNER_LOGINS = 3


async def code_of(target: Target, request: bytes, source: str = HOSTILE) -> str:
    """The `code` of one answer to a request of chat."""
    async with tcp(target.port, source=source) as client:
        await client.write(request)
        try:
            return str((await client.json_answer()).get("code", "no code"))
        except Disconnected as end:
            return str(end)


def login(name: str, password: str = PASSWORD) -> bytes:
    return post("/auth/login", json.dumps({"username": name, "password": password}).encode())


async def owner_of_an_account(target: Target) -> str:
    """The name of a new account whose owner has logged in once from its address."""
    name = f"owner-{uuid4().hex[:12]}"
    body = json.dumps({"username": name, "password": PASSWORD}).encode()
    async with tcp(target.port, source=HONEST) as client:
        await client.write(post("/api/v1/chat/users", body, f"Authorization: Bearer {operator(target)}"))
        if "userId" not in (answer := await client.json_answer()):
            raise Disconnected(f"no account: {answer}")
    await code_of(target, login(name), HONEST)
    return name


async def attacked(target: Target, name: str, requests: Iterable[tuple[bytes, str]]) -> Answers:
    """All requests at once, each from its address, while the owner of `name` logs in."""
    seen: Answers = Counter()

    async def send(request: bytes, source: str) -> None:
        seen[await code_of(target, request, source)] += 1

    async def owner() -> None:
        for _ in range(OWNER_LOGINS):
            seen[f"owner {await code_of(target, login(name), HONEST)}"] += 1

    async with asyncio.TaskGroup() as group:
        for request, source in requests:
            group.create_task(send(request, source))
        group.create_task(owner())
    return seen


async def login_flood(target: Target) -> Answers:
    """Invented names: each costs the server one hash."""
    names = [f"nobody-{uuid4().hex[:12]}" for _ in range(target.scale.many)]
    return await attacked(target, await owner_of_an_account(target), [(login(name), HOSTILE) for name in names])


async def lockout(target: Target) -> Answers:
    """Wrong passwords for one account from many addresses, more than a name allows within an hour."""
    name = await owner_of_an_account(target)
    wrong = login(name, "wrong password")
    sources = [f"127.0.66.{1 + number // TRIES_PER_ADDRESS}" for number in range(target.login_tries + 20)]
    return await attacked(target, name, [(wrong, source) for source in sources])


async def answers(client: RawClient, count: int) -> Answers:
    """What so many messages were answered at first."""
    seen: Answers = Counter()
    while seen.total() < count:
        answer = await client.wait_for("ACK", "ERROR")
        if answer["type"] == "closed":
            raise Disconnected(f"closed {answer['code']}")
        if answer.get("ackType") != "saved":
            seen[str(answer.get("reason", answer.get("ackType")))] += 1
    return seen


def chat_message(name: str, body: str) -> dict[str, object]:
    return {"type": "SINGLE_CHAT", "clientMsgId": name, "to": "8000001", "body": body}


async def stores_much(target: Target) -> Answers:
    """One user sends the largest messages until its bytes of the day are used up."""
    seen: Answers = Counter()
    async with target.chat_user() as client:
        for _ in range(target.chat_bytes // (BATCH * len(LARGEST.encode())) + 2):
            for _ in range(BATCH):
                await client.send(chat_message(uuid4().hex, LARGEST))
            seen += await answers(client, BATCH)
            await asyncio.sleep(BATCH / FRAMES_PER_S)
        seen[await client.is_open()] += 1
    return seen


async def reads_much(target: Target) -> Answers:
    """One user requests its history again and again."""
    request = get("/single-chat/message/cursor?peerUserId=1000002", f"Authorization: Bearer {target.user()}")
    return Counter([await code_of(target, request) for _ in range(2 * target.history_per_minute)])


async def reused_ids(target: Target) -> Answers:
    """One clientMsgId with another body each time, also after its claim has lapsed: the first message stands, and no
    dead letter is kept."""
    seen: Answers = Counter()
    name, first = uuid4().hex, LARGEST
    async with target.chat_user() as client:
        await saved(client, name, first)
        for number in range(REUSES):
            answer = await saved(client, name, f"{number}{LARGEST}"[:MAX_BODY_UNITS])
            seen["repeated: " + stands(answer, first)] += 1
        await asyncio.sleep(target.claim_s + LAPSE_S)
        seen["claim lapsed: " + stands(await saved(client, name, "after the claim"), first)] += 1
        seen[await client.is_open()] += 1
    async with tcp(target.port, source=HONEST) as client:
        await client.write(get("/api/v1/chat", f"Authorization: Bearer {operator(target)}"))
        kept = (await client.json_answer())["dead_letters"]["kept"]
    seen["dead letters" if kept else "no dead letter"] += 1
    return seen


async def saved(client: RawClient, name: str, body: str) -> dict[str, Any]:
    """Send a message; returns its `saved`, or the error that refuses it. Like the SDK, it retries after server_busy."""
    while True:
        await client.send(chat_message(name, body))
        answer = await client.wait_for("ACK", "ERROR")
        while answer["type"] == "ACK" and (answer["ackType"], answer.get("clientMsgId")) != ("saved", name):
            answer = await client.wait_for("ACK", "ERROR")
        if answer.get("reason") != "server_busy":
            return answer
        await asyncio.sleep(BUSY_S)


def stands(answer: dict[str, Any], first: str) -> str:
    """Whether a repetition was answered with the first message."""
    if answer["type"] != "ACK":
        return str(answer.get("reason", answer["type"]))
    return "first body" if answer.get("body") == first else "another body"


OF_ONE_CONNECTION = 64
CONNECTIONS = 2  # so many that one client wants more sessions than it may have
BATCHES = 6


async def left_sessions(target: Target) -> Answers:
    """Sessions that can be resumed, and sessions that say they are a gateway's, on connections that are then cut."""
    seen: Answers = Counter()
    for platform, resume in (("web", True), ("api-gateway", False)):
        token = target.token(sub=f"eve-{uuid4().hex[:8]}")
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                client = await stack.enter_async_context(websocket(target.port, "/ws/session"))
                for _ in range(OF_ONE_CONNECTION):
                    await client.send(target.init(platform=platform, resume=resume, token=token))
                seen += await _answers(client, OF_ONE_CONNECTION)
                seen[await client.is_open()] += 1
    async with target.session(source=HONEST, token=target.token(sub="ann")) as (client, _):
        seen[await client.is_open()] += 1
    return seen


async def _answers(client: RawClient, count: int) -> Answers:
    found = [await client.wait_for("session_init_ack", "error") for _ in range(count)]
    return Counter(str(one.get("code", one["type"])) for one in found)


async def open_utterances(target: Target) -> Answers:
    """One session that can be resumed says more than any node can answer."""
    seen: Answers = Counter()
    async with target.session(resume=True) as (client, session):
        for batch in range(BATCHES):
            for index in range(batch * BATCH, (batch + 1) * BATCH):
                await client.send(utterance(session, index))
            await client.send(heartbeat(session))
            while (answer := await client.wait_for("error", "backpressure", "server_heartbeat"))[
                "type"
            ] != "server_heartbeat":
                seen[str(answer.get("action", answer.get("code")))] += 1
                if answer["type"] == "closed":
                    return seen
        seen[await client.is_open()] += 1
    return seen


ATTACKS = (
    Attack("login_flood", "logins with invented names", login_flood, expected("40100", "owner 0"), expected("50000")),
    Attack(
        "lockout", "wrong passwords for one account", lockout, expected("40100", "42900", "owner 0"), expected("50000")
    ),
    Attack(
        "stores_much",
        "one user that stores more than its quota",
        stores_much,
        expected("accepted", "quota_exceeded", "stays open"),
        expected("server_busy"),
    ),
    Attack("reads_much", "one user that requests too much history", reads_much, expected("0", "42900")),
    Attack(
        "reused_ids",
        "one clientMsgId with many bodies",
        reused_ids,
        expected("repeated: first body", "claim lapsed: first body", "no dead letter", "stays open"),
    ),
    Attack(
        "left_sessions",
        "sessions of one client on connections that are reset",
        left_sessions,
        expected("session_init_ack", "LIMIT_EXCEEDED", "stays open"),
    ),
    Attack(
        "open_utterances",
        "utterances that no node can answer",
        open_utterances,
        expected("PAUSE", "LIMIT_EXCEEDED", "stays open"),
        expected("NO_AVAILABLE_NODE"),
    ),
)
