"""One way to misbehave: its name, one round of it and its expected answers; and the instances that it targets."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

import jwt

from dragoman.tools.bench.abuse.raw_client import HOSTILE, Disconnected, RawClient, websocket

Answers = Counter[str]


NODE = "healthy"  # the id of the honest node
_users = count(9_000_001)


@dataclass(frozen=True, slots=True)
class Scale:
    """How many connections, frames and clients an attack uses."""

    strangers: int = 10_000
    frames: int = 1_000_000
    slow: int = 500
    many: int = 100  # of everything else


QUICK = Scale(strangers=600, frames=30_000, slow=100, many=20)


@dataclass(frozen=True, slots=True)
class Target:
    ports: list[int]
    secret: str
    issuer: str
    chat_issuer: str
    scale: Scale
    login_tries: int  # limits.login_attempts_per_name_per_hour
    chat_bytes: int  # limits.chat_bytes_per_day
    history_per_minute: int  # limits.chat_history_per_minute
    claim_s: float  # chat.idempotency_ttl_s

    @property
    def port(self) -> int:
        return self.ports[0]

    def token(self, typ: str = "client", sub: str = "eve", *, secret: str = "", **claims: Any) -> str:
        payload = {"iss": self.issuer, "exp": int(time.time()) + 600, "typ": typ, "sub": sub, **claims}
        present = {name: value for name, value in payload.items() if value is not None}
        return jwt.encode(present, secret or self.secret, algorithm="HS256")

    def new_uid(self) -> int:
        """Of a chat user that no other attack has."""
        return next(_users)

    def user(self, uid: int | None = None, **claims: Any) -> str:
        """The token of a chat user, a new one unless it is named."""
        payload = {"uid": self.new_uid() if uid is None else uid, "typ": "access", "sv": 0, "iat": int(time.time())}
        payload |= {"iss": self.chat_issuer, "exp": int(time.time()) + 600, **claims}
        return jwt.encode(payload, self.secret, algorithm="HS256")

    def init(self, **fields: object) -> dict[str, object]:
        usual = {"client_version": "1", "platform": "web", "src_lang": "xx", "tgt_lang": "yy", "token": self.token()}
        return {"type": "session_init", **usual, **fields}

    @asynccontextmanager
    async def session(
        self, at: int = 0, *, source: str = HOSTILE, **fields: object
    ) -> AsyncIterator[tuple[RawClient, str]]:
        async with websocket(self.ports[at], "/ws/session", source=source) as client:
            await client.send(self.init(**fields))
            answer = await client.wait_for("session_init_ack")
            if answer["type"] == "closed":
                raise Disconnected(f"closed {answer['code']}")
            yield client, answer["session_id"]

    @asynccontextmanager
    async def chat_user(self, at: int = 0, uid: int | None = None, source: str = HOSTILE) -> AsyncIterator[RawClient]:
        async with websocket(self.ports[at], "/ws", source=source) as client:
            await client.send({"type": "AUTH", "token": self.user(uid)})
            answer = await client.wait_for("AUTH_OK", "AUTH_FAIL")
            if answer["type"] != "AUTH_OK":
                raise Disconnected(f"{answer['type']} {answer.get('reason', answer.get('code'))}")
            yield client

    def register(self, name: str, **fields: object) -> dict[str, object]:
        """The message of a node with the languages xx and yy, which no other node has."""
        languages = {f"{kind}_languages": ["xx", "yy"] for kind in ("asr", "tts", "semantic")}
        message: dict[str, object] = {
            "type": "node_register",
            "node_id": name,
            "version": "1",
            "capability_schema_version": "2.0",
            "platform": "linux",
            "hardware": {"cpu_cores": 1, "memory_gb": 1},
            "installed_models": [],
            "installed_services": [],
            "capability_by_type": [{"type": kind, "ready": True} for kind in ("asr", "nmt", "tts", "semantic")],
            "features_supported": {},
            "accept_public_jobs": True,
            "language_capabilities": languages,
            "advanced_features": ["job_ack", "slots:64"],
            "token": self.token("node", name),
        }
        return message | fields

    def heartbeat(self, name: str) -> dict[str, object]:
        ready = [{"type": kind, "ready": True} for kind in ("asr", "nmt", "tts", "semantic")]
        usage = {"cpu_percent": 0, "mem_percent": 0, "running_jobs": 0}
        usual = {"node_id": name, "timestamp": 1, "resource_usage": usage, "installed_services": []}
        languages = {f"{kind}_languages": ["xx", "yy"] for kind in ("asr", "tts", "semantic")}
        return {"type": "node_heartbeat", **usual, "capability_by_type": ready, "language_capabilities": languages}

    @asynccontextmanager
    async def node(self, at: int = 0, **fields: object) -> AsyncIterator[tuple[RawClient, str]]:
        name = f"evil-{uuid4().hex[:8]}"
        async with websocket(self.ports[at], "/ws/node") as client:
            await client.send(self.register(name, **fields))
            await client.wait_for("node_register_ack")
            await client.send(self.heartbeat(name))
            yield client, name


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    title: str
    run: Callable[[Target], Awaitable[Answers]]
    answers: frozenset[str]  # each must be seen, and no other
    may: frozenset[str] = frozenset()  # others that timing may cause

    def wrong(self, seen: Answers) -> list[str]:
        """One sentence for each answer that is unexpected or missing."""
        if not seen:
            return ["no answer at all"]
        strange = [
            f"{answer} ({times} times)" for answer, times in seen.items() if answer not in self.answers | self.may
        ]
        return strange + [f"never {answer}" for answer in sorted(self.answers - seen.keys())]


# A client that writes as fast as it can, on a machine that does not let it read in time, may lose the socket before it
# has read the close frame.
NO_CLOSE_FRAME = frozenset({"no close frame"})


def expected(*answers: str) -> frozenset[str]:
    return frozenset(answers)
