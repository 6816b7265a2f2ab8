"""One client that takes more than its share: logins, stored bytes, history, sessions and open utterances."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

from dragoman.protocol.chat import MAX_BODY_UNITS
from dragoman.tools.bench.abuse.attack import Answers, Attack, Scene, good
from dragoman.tools.bench.abuse.connections import get, operator, post
from dragoman.tools.bench.abuse.messages import beat, utterance
from dragoman.tools.bench.abuse.raw_client import HONEST, HOSTILE, Ended, Wire, tcp, websocket

PASSWORD = "correct horse battery staple"
LARGEST = "語" * MAX_BODY_UNITS  # 12 KiB
BATCH = 32
REUSES = 200
LAPSE_S = 0.3  # after which a claim has certainly lapsed
TRIES_PER_ADDRESS = 4  # one address may try a name five times a minute
OWNER_LOGINS = 3


async def code_of(scene: Scene, request: bytes, source: str = HOSTILE) -> str:
    """The `code` of one answer to a request of chat."""
    async with tcp(scene.port, source=source) as wire:
        await wire.write(request)
        try:
            return str((await wire.json_answer()).get("code", "no code"))
        except Ended as end:
            return str(end)


def login(name: str, password: str = PASSWORD) -> bytes:
    return post("/auth/login", json.dumps({"username": name, "password": password}).encode())


async def owner_of_an_account(scene: Scene) -> str:
    """The name of a new account whose owner has logged in once from its address."""
    name = f"owner-{uuid4().hex[:12]}"
    body = json.dumps({"username": name, "password": PASSWORD}).encode()
    async with tcp(scene.port, source=HONEST) as wire:
        await wire.write(post("/api/v1/chat/users", body, f"Authorization: Bearer {operator(scene)}"))
        if "userId" not in (told := await wire.json_answer()):
            raise Ended(f"no account: {told}")
    await code_of(scene, login(name), HONEST)
    return name


async def attacked(scene: Scene, name: str, requests: Iterable[tuple[bytes, str]]) -> Answers:
    """All requests at once, each from its address, while the owner of `name` logs in."""
    seen: Answers = Counter()

    async def send(request: bytes, source: str) -> None:
        seen[await code_of(scene, request, source)] += 1

    async def owner() -> None:
        for _ in range(OWNER_LOGINS):
            seen[f"owner {await code_of(scene, login(name), HONEST)}"] += 1

    async with asyncio.TaskGroup() as group:
        for request, source in requests:
            group.create_task(send(request, source))
        group.create_task(owner())
    return seen


async def login_flood(scene: Scene) -> Answers:
    """Invented names: each costs the server one hash."""
    names = [f"nobody-{uuid4().hex[:12]}" for _ in range(scene.scale.crowd)]
    return await attacked(scene, await owner_of_an_account(scene), [(login(name), HOSTILE) for name in names])


async def lockout(scene: Scene) -> Answers:
    """Wrong passwords for one account from many addresses, more than a name allows within an hour."""
    name = await owner_of_an_account(scene)
    wrong = login(name, "wrong password")
    sources = [f"127.0.66.{1 + number // TRIES_PER_ADDRESS}" for number in range(scene.login_tries + 20)]
    return await attacked(scene, name, [(wrong, source) for source in sources])


async def answers(wire: Wire, count: int) -> Answers:
    """What so many messages were answered at first."""
    seen: Answers = Counter()
    while seen.total() < count:
        told = await wire.until("ACK", "ERROR")
        if told["type"] == "closed":
            raise Ended(f"closed {told['code']}")
        if told.get("ackType") != "saved":
            seen[str(told.get("reason", told.get("ackType")))] += 1
    return seen


def message(name: str, body: str) -> dict[str, object]:
    return {"type": "SINGLE_CHAT", "clientMsgId": name, "to": "8000001", "body": body}


async def stores_much(scene: Scene) -> Answers:
    """One user sends the largest messages until its bytes of the day are used up."""
    seen: Answers = Counter()
    async with scene.chatter() as wire:
        for _ in range(scene.chat_bytes // (BATCH * len(LARGEST.encode())) + 2):
            for _ in range(BATCH):
                await wire.say(message(uuid4().hex, LARGEST))
            seen += await answers(wire, BATCH)
        seen[await wire.lives()] += 1
    return seen


async def reads_much(scene: Scene) -> Answers:
    """One user requests its history again and again."""
    request = get("/single-chat/message/cursor?peerUserId=1000002", f"Authorization: Bearer {scene.user()}")
    return Counter([await code_of(scene, request) for _ in range(2 * scene.history_per_minute)])


async def reused_ids(scene: Scene) -> Answers:
    """One clientMsgId with another body each time, also after its claim has lapsed: the first message stands, and no
    dead letter is kept."""
    seen: Answers = Counter()
    name, first = uuid4().hex, LARGEST
    async with scene.chatter() as wire:
        await wire.say(message(name, first))
        await saved(wire, name)
        for number in range(REUSES):
            await wire.say(message(name, f"{number}{LARGEST}"[:MAX_BODY_UNITS]))
            seen["repeated: " + stands(await saved(wire, name), first)] += 1
        await asyncio.sleep(scene.claim_s + LAPSE_S)
        await wire.say(message(name, "after the claim"))
        seen["claim lapsed: " + stands(await saved(wire, name), first)] += 1
        seen[await wire.lives()] += 1
    async with tcp(scene.port, source=HONEST) as wire:
        await wire.write(get("/api/v1/chat", f"Authorization: Bearer {operator(scene)}"))
        kept = (await wire.json_answer())["dead_letters"]["kept"]
    seen["dead letters" if kept else "no dead letter"] += 1
    return seen


async def saved(wire: Wire, name: str) -> dict[str, Any]:
    """The next `saved` of this message, or whatever refuses it."""
    while True:
        told = await wire.until("ACK", "ERROR")
        if told["type"] != "ACK" or (told["ackType"] == "saved" and told["clientMsgId"] == name):
            return told


def stands(told: dict[str, Any], first: str) -> str:
    """Whether a repetition was answered with the first message."""
    if told["type"] != "ACK":
        return str(told.get("reason", told["type"]))
    return "first body" if told.get("body") == first else "another body"


OF_ONE_CONNECTION = 64
CONNECTIONS = 17  # so many that one client wants more sessions than it may have
BATCHES = 6


async def left_sessions(scene: Scene) -> Answers:
    """Sessions that can be resumed, and sessions that say they are a gateway's, on connections that are then cut."""
    seen: Answers = Counter()
    for platform, resume in (("web", True), ("api-gateway", False)):
        token = scene.token(sub=f"eve-{uuid4().hex[:8]}")
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                wire = await stack.enter_async_context(websocket(scene.port, "/ws/session"))
                for _ in range(OF_ONE_CONNECTION):
                    await wire.say(scene.init(platform=platform, resume=resume, token=token))
                seen += await _answers(wire, OF_ONE_CONNECTION)
                seen[await wire.lives()] += 1
    async with scene.session(source=HONEST, token=scene.token(sub="ann")) as (wire, _):
        seen[await wire.lives()] += 1
    return seen


async def _answers(wire: Wire, count: int) -> Answers:
    told = [await wire.until("session_init_ack", "error") for _ in range(count)]
    return Counter(str(one.get("code", one["type"])) for one in told)


async def open_utterances(scene: Scene) -> Answers:
    """One session that can be resumed says more than any node can answer."""
    seen: Answers = Counter()
    async with scene.session(resume=True) as (wire, session):
        for batch in range(BATCHES):
            for index in range(batch * BATCH, (batch + 1) * BATCH):
                await wire.say(utterance(session, index))
            await wire.say(beat(session))
            while (told := await wire.until("error", "backpressure", "server_heartbeat"))["type"] != "server_heartbeat":
                seen[str(told.get("action", told.get("code")))] += 1
                if told["type"] == "closed":
                    return seen
        seen[await wire.lives()] += 1
    return seen


ATTACKS = (
    Attack("login_flood", "logins with invented names", login_flood, good("40100", "owner 0"), good("50000")),
    Attack("lockout", "wrong passwords for one account", lockout, good("40100", "42900", "owner 0"), good("50000")),
    Attack(
        "stores_much",
        "one user that stores without end",
        stores_much,
        good("accepted", "quota_exceeded", "lives on"),
        good("server_busy"),
    ),
    Attack("reads_much", "one user that requests history without end", reads_much, good("0", "42900")),
    Attack(
        "reused_ids",
        "one clientMsgId with many bodies",
        reused_ids,
        good("repeated: first body", "claim lapsed: first body", "no dead letter", "lives on"),
    ),
    Attack(
        "left_sessions",
        "sessions of one client on connections that are cut",
        left_sessions,
        good("session_init_ack", "LIMIT_EXCEEDED", "lives on"),
    ),
    Attack(
        "open_utterances",
        "utterances that nobody can answer",
        open_utterances,
        good("PAUSE", "LIMIT_EXCEEDED", "lives on"),
        good("NO_AVAILABLE_NODE"),
    ),
)
