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

from dragoman.tools.bench.abuse.attack import NO_CLOSE_FRAME, Answers, Attack, Target, expected
from dragoman.tools.bench.abuse.raw_client import HONEST, Disconnected, RawClient, http_status, tcp, upgrade, websocket

AT_ONCE = 200
PATHS = ("/ws/session", "/ws/node", "/ws")


async def strangers(target: Target) -> Answers:
    """All of them at one instance."""
    seen: Answers = Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    async def stay(number: int) -> None:
        async with gate:
            client = await RawClient.connect(target.port)
            await client.write(upgrade(PATHS[number % len(PATHS)]))
            try:
                status, _ = await client.head()
            except Disconnected as end:
                seen[str(end)] += 1
                client.reset()
                return
        try:
            seen[await client.closed() if status == 101 else f"HTTP {status}"] += 1
        finally:
            client.reset()

    async with asyncio.TaskGroup() as group:
        for number in range(target.scale.strangers):
            group.create_task(stay(number))
        group.create_task(_come_in(target, seen))
    return seen


async def _come_in(target: Target, seen: Answers) -> None:
    """Again and again while they wait, as somebody honest would."""
    for _ in range(target.scale.many):
        try:
            async with target.session(source=HONEST) as (client, _):
                seen[await client.is_open()] += 1
            async with target.chat_user(source=HONEST) as client:
                seen[await client.is_open()] += 1
        except Disconnected as end:
            seen[f"honest: {end}"] += 1
        await asyncio.sleep(0.05)


TRICKLE_S = 0.5
HOARD = 1100  # more than the instance has places for
BOMB = gzip.compress(bytes(30_000_000))


def bad_tokens(target: Target, typ: str) -> list[str]:
    make = target.token if typ != "access" else partial(_user, target)
    head, body, signature = make(typ).split(".")
    payload = {"iss": target.issuer, "exp": int(time.time()) + 600, "typ": typ, "sub": "eve"}
    unsigned = jwt.encode(payload, None, algorithm="none")
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


def _user(target: Target, typ: str, *, secret: str = "", **claims: Any) -> str:
    payload = {"iss": target.chat_issuer, "exp": int(time.time()) + 600, "typ": typ, "uid": 7, **claims}
    return jwt.encode(payload, secret or target.secret, algorithm="HS256")


async def tokens(target: Target) -> Answers:
    """Expired, signed by somebody else, not signed, for something else: as each kind, at each door."""
    seen: Answers = Counter()
    for token in bad_tokens(target, "client"):
        async with websocket(target.port, "/ws/session") as client:
            await client.send(target.init(token=token))
            seen[await client.closed()] += 1
    for token in bad_tokens(target, "node"):
        async with websocket(target.port, "/ws/node") as client:
            await client.send(target.register("evil", token=token))
            seen[await client.closed()] += 1
    for token in bad_tokens(target, "access"):
        async with websocket(target.port, "/ws") as client:
            await client.send({"type": "AUTH", "token": token})
            seen[(await client.wait_for("AUTH_FAIL"))["reason"]] += 1
            seen[await client.closed()] += 1
        seen[await http_status(target.port, upgrade("/ws", f"Authorization: Bearer {token}"))] += 1
    for token in bad_tokens(target, "operator"):
        seen[await http_status(target.port, get("/api/v1/cluster", f"Authorization: Bearer {token}"))] += 1
    return seen


def get(path: str, *lines: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", "")).encode()


def post(path: str, body: bytes, *lines: str, length: int | None = None) -> bytes:
    size = f"Content-Length: {len(body) if length is None else length}"
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", size, *lines))
    return head.encode() + b"\r\n\r\n" + body


async def slow_requests(target: Target) -> Answers:
    """A byte now and then: of the head of a request or an upgrade, and of the body of a login."""
    begun = [upgrade("/ws/session")[:60], get("/health")[:30], post("/auth/login", b"{", length=1000)]
    answers = await asyncio.gather(*(_trickle(target.port, begun[n % 3]) for n in range(target.scale.slow)))
    return Counter(answers)


async def _trickle(port: int, begun: bytes) -> str:
    async with tcp(port) as client:
        await client.write(begun)
        dripping = asyncio.create_task(_drip(client))
        try:
            return f"HTTP {(await client.head())[0]}"
        except Disconnected as end:
            return str(end)
        finally:
            dripping.cancel()


async def _drip(client: RawClient) -> None:
    while True:
        await asyncio.sleep(TRICKLE_S)
        await client.write(b"a")


async def large_requests(target: Target) -> Answers:
    """Heads and bodies that are too large, also when they are inflated."""
    seen: Answers = Counter()
    for head in (upgrade("/ws", f"X: {'x' * 100_000}"), get("/health", *[f"X-{n}: x" * 20 for n in range(500)])):
        seen[await http_status(target.port, head)] += 1
    seen[await http_status(target.port, upgrade("/ws", *[f"X-{n}: x" for n in range(200)]))] += 1
    seen[await http_status(target.port, post("/auth/login", b'{"username":"' + b"x" * 100_000 + b'"}'))] += 1
    seen[await http_status(target.port, post("/auth/login", BOMB, "Content-Encoding: gzip"))] += 1
    seen[await http_status(target.port, post("/auth/login", b"no gzip at all", "Content-Encoding: gzip"))] += 1
    chunked = b"POST /auth/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n"
    seen[await http_status(target.port, chunked)] += 1
    seen[
        await http_status(
            target.port, get(f"/api/v1/dlq?count={'9' * 5000}", f"Authorization: Bearer {operator(target)}")
        )
    ] += 1
    return seen


async def header_names(target: Target) -> Answers:
    """Requests whose header names no other request has."""
    seen: Answers = Counter()
    for _ in range(target.scale.many):
        names = [f"X-{uuid4().hex}: 1" for _ in range(50)]
        seen[await http_status(target.port, get("/health", *names))] += 1
        seen[await http_status(target.port, upgrade("/ws", *names))] += 1
    return seen


def operator(target: Target) -> str:
    return target.token("operator", "op")


async def hoarders(target: Target) -> Answers:
    """Connections of HTTP that ask once and stay; somebody new asks whether we are well."""
    seen: Answers = Counter()
    async with AsyncExitStack() as stack:
        for _ in range(HOARD):
            client = await stack.enter_async_context(tcp(target.port))
            await client.write(get("/health"))
            seen[f"HTTP {(await client.head())[0]}"] += 1
        for _ in range(target.scale.many):
            seen[await http_status(target.port, get("/health"), HONEST)] += 1
    return seen


async def kicks(target: Target) -> Answers:
    """One user, again and again, now here, now there: each time the connection before is the one that goes."""
    seen: Answers = Counter()
    uid = 8_000_000 + time.monotonic_ns() % 1_000_000
    async with AsyncExitStack() as stack:
        before: RawClient | None = None
        for number in range(target.scale.many):
            client = await stack.enter_async_context(target.chat_user(number % len(target.ports), uid))
            seen["AUTH_OK"] += 1
            if before is not None:
                seen[str((await before.wait_for("ERROR")).get("reason"))] += 1
            before = client
    return seen


ATTACKS = (
    Attack(
        "strangers",
        "connections that never authenticate",
        strangers,
        expected("stays open", "closed 4002", "closed 4005", "closed 4501"),
        expected("closed 4003") | NO_CLOSE_FRAME,
    ),
    Attack(
        "tokens",
        "tokens expired, wrongly signed, alg none",
        tokens,
        expected("closed 4501", "invalid_token", "HTTP 401"),
    ),
    Attack("slow_requests", "requests sent byte by byte", slow_requests, expected("HTTP 408", "HTTP 400")),
    Attack("large_requests", "headers and bodies that are too large", large_requests, expected("HTTP 431", "HTTP 400")),
    Attack("header_names", "unique header names", header_names, expected("HTTP 200", "HTTP 101")),
    Attack("hoarders", f"{HOARD:,} idle HTTP connections", hoarders, expected("HTTP 200")),
    Attack("kicks", "one user that reconnects all the time", kicks, expected("AUTH_OK", "kicked")),
)
