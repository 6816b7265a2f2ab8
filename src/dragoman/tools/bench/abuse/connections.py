"""Connections and requests: thousands that never authenticate, bad tokens, requests that never end or are too large."""

import asyncio
import gzip
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import jwt

from dragoman.tools.bench.abuse.attack import CUT_OFF, Answers, Attack, Scene, good
from dragoman.tools.bench.abuse.raw_client import HONEST, Ended, Wire, asked, tcp, upgrade, websocket

AT_ONCE = 200
PATHS = ("/ws/session", "/ws/node", "/ws")


async def strangers(scene: Scene) -> Answers:
    """All of them at one instance."""
    seen: Answers = Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    async def stay(number: int) -> None:
        async with gate:
            wire = await Wire.dial(scene.port)
            await wire.write(upgrade(PATHS[number % len(PATHS)]))
            try:
                status, _ = await wire.head()
            except Ended as end:
                seen[str(end)] += 1
                wire.drop()
                return
        try:
            seen[await wire.closed() if status == 101 else f"HTTP {status}"] += 1
        finally:
            wire.drop()

    async with asyncio.TaskGroup() as group:
        for number in range(scene.scale.strangers):
            group.create_task(stay(number))
        group.create_task(_come_in(scene, seen))
    return seen


async def _come_in(scene: Scene, seen: Answers) -> None:
    """Again and again while they wait, as somebody honest would."""
    for _ in range(scene.scale.crowd):
        try:
            async with scene.session(source=HONEST) as (wire, _):
                seen[await wire.lives()] += 1
            async with scene.chatter(source=HONEST) as wire:
                seen[await wire.lives()] += 1
        except Ended as end:
            seen[f"honest: {end}"] += 1
        await asyncio.sleep(0.05)


TRICKLE_S = 0.5
HOARD = 1100  # more than the instance has places for
BOMB = gzip.compress(bytes(30_000_000))


def bad_tokens(scene: Scene, typ: str) -> list[str]:
    make = scene.token if typ != "access" else partial(_user, scene)
    head, body, signature = make(typ).split(".")
    told = {"iss": scene.issuer, "exp": int(time.time()) + 600, "typ": typ, "sub": "eve"}
    unsigned = jwt.encode(told, None, algorithm="none")
    return [
        make(typ, exp=int(time.time()) - 3600),
        make(typ, secret="another secret that is long enough for HS256 as well"),
        unsigned,
        f"{unsigned.split('.')[0]}.{body}.{signature}",
        f"{head}.{body}.",
        make("operator" if typ == "node" else "node"),
        make(typ, iss="somebody"),
        "abc",
        "x" * 4096,  # the longest that a message may hold
    ]


def _user(scene: Scene, typ: str, *, secret: str = "", **claims: Any) -> str:
    told = {"iss": scene.chat_issuer, "exp": int(time.time()) + 600, "typ": typ, "uid": 7, **claims}
    return jwt.encode(told, secret or scene.secret, algorithm="HS256")


async def tokens(scene: Scene) -> Answers:
    """Expired, signed by somebody else, not signed, for something else: as each kind, at each door."""
    seen: Answers = Counter()
    for token in bad_tokens(scene, "client"):
        async with websocket(scene.port, "/ws/session") as wire:
            await wire.say(scene.init(token=token))
            seen[await wire.closed()] += 1
    for token in bad_tokens(scene, "node"):
        async with websocket(scene.port, "/ws/node") as wire:
            await wire.say(scene.register("evil", token=token))
            seen[await wire.closed()] += 1
    for token in bad_tokens(scene, "access"):
        async with websocket(scene.port, "/ws") as wire:
            await wire.say({"type": "AUTH", "token": token})
            seen[(await wire.until("AUTH_FAIL"))["reason"]] += 1
            seen[await wire.closed()] += 1
        seen[await asked(scene.port, upgrade("/ws", f"Authorization: Bearer {token}"))] += 1
    for token in bad_tokens(scene, "operator"):
        seen[await asked(scene.port, get("/api/v1/cluster", f"Authorization: Bearer {token}"))] += 1
    return seen


def get(path: str, *lines: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", "")).encode()


def post(path: str, body: bytes, *lines: str, length: int | None = None) -> bytes:
    size = f"Content-Length: {len(body) if length is None else length}"
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", size, *lines))
    return head.encode() + b"\r\n\r\n" + body


async def slow_requests(scene: Scene) -> Answers:
    """A byte now and then: of the head of a request or an upgrade, and of the body of a login."""
    begun = [upgrade("/ws/session")[:60], get("/health")[:30], post("/auth/login", b"{", length=1000)]
    told = await asyncio.gather(*(_trickle(scene.port, begun[n % 3]) for n in range(scene.scale.slow)))
    return Counter(told)


async def _trickle(port: int, begun: bytes) -> str:
    async with tcp(port) as wire:
        await wire.write(begun)
        dripping = asyncio.create_task(_drip(wire))
        try:
            return f"HTTP {(await wire.head())[0]}"
        except Ended as end:
            return str(end)
        finally:
            dripping.cancel()


async def _drip(wire: Wire) -> None:
    while True:
        await asyncio.sleep(TRICKLE_S)
        await wire.write(b"a")


async def large_requests(scene: Scene) -> Answers:
    """Heads and bodies that are too large, also when they are inflated."""
    seen: Answers = Counter()
    for head in (upgrade("/ws", f"X: {'x' * 100_000}"), get("/health", *[f"X-{n}: x" * 20 for n in range(500)])):
        seen[await asked(scene.port, head)] += 1
    seen[await asked(scene.port, upgrade("/ws", *[f"X-{n}: x" for n in range(200)]))] += 1
    seen[await asked(scene.port, post("/auth/login", b'{"username":"' + b"x" * 100_000 + b'"}'))] += 1
    seen[await asked(scene.port, post("/auth/login", BOMB, "Content-Encoding: gzip"))] += 1
    seen[await asked(scene.port, post("/auth/login", b"no gzip at all", "Content-Encoding: gzip"))] += 1
    chunked = b"POST /auth/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n"
    seen[await asked(scene.port, chunked)] += 1
    seen[
        await asked(scene.port, get(f"/api/v1/dlq?count={'9' * 5000}", f"Authorization: Bearer {operator(scene)}"))
    ] += 1
    return seen


async def header_names(scene: Scene) -> Answers:
    """Requests whose header names no other request has."""
    seen: Answers = Counter()
    for _ in range(scene.scale.crowd):
        names = [f"X-{uuid4().hex}: 1" for _ in range(50)]
        seen[await asked(scene.port, get("/health", *names))] += 1
        seen[await asked(scene.port, upgrade("/ws", *names))] += 1
    return seen


def operator(scene: Scene) -> str:
    return scene.token("operator", "op")


async def hoarders(scene: Scene) -> Answers:
    """Connections of HTTP that ask once and stay; somebody new asks whether we are well."""
    seen: Answers = Counter()
    async with AsyncExitStack() as stack:
        for _ in range(HOARD):
            wire = await stack.enter_async_context(tcp(scene.port))
            await wire.write(get("/health"))
            seen[f"HTTP {(await wire.head())[0]}"] += 1
        for _ in range(scene.scale.crowd):
            seen[await asked(scene.port, get("/health"), HONEST)] += 1
    return seen


async def kicks(scene: Scene) -> Answers:
    """One user, again and again, now here, now there: each time the connection before is the one that goes."""
    seen: Answers = Counter()
    uid = 8_000_000 + time.monotonic_ns() % 1_000_000
    async with AsyncExitStack() as stack:
        before: Wire | None = None
        for number in range(scene.scale.crowd):
            wire = await stack.enter_async_context(scene.chatter(number % len(scene.ports), uid))
            seen["AUTH_OK"] += 1
            if before is not None:
                seen[str((await before.until("ERROR")).get("reason"))] += 1
            before = wire
    return seen


ATTACKS = (
    Attack(
        "strangers",
        "connections that never say who they are",
        strangers,
        good("lives on", "closed 4002", "closed 4005", "closed 4501"),
        good("closed 4003") | CUT_OFF,
    ),
    Attack(
        "tokens",
        "tokens expired, wrongly signed, alg none",
        tokens,
        good("closed 4501", "invalid_token", "HTTP 401"),
    ),
    Attack("slow_requests", "a byte now and then", slow_requests, good("HTTP 408", "HTTP 400")),
    Attack("large_requests", "heads and bodies that are too large", large_requests, good("HTTP 431", "HTTP 400")),
    Attack("header_names", "header names that nobody else sends", header_names, good("HTTP 200", "HTTP 101")),
    Attack("hoarders", f"{HOARD:,} idle HTTP connections", hoarders, good("HTTP 200")),
    Attack("kicks", "one user that keeps coming", kicks, good("AUTH_OK", "kicked")),
)
