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

from dragoman.tools.bench.abuse.raw_client import HOSTILE, Ended, Wire, websocket

Answers = Counter[str]


NODE = "healthy"  # the id of the honest node
_users = count(9_000_001)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of what can be had in any amount."""

    strangers: int = 10_000
    frames: int = 1_000_000
    slow: int = 500
    crowd: int = 100  # of whatever else there are many


QUICK = Scale(strangers=600, frames=30_000, slow=100, crowd=20)


@dataclass(frozen=True, slots=True)
class Scene:
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
        told = {"iss": self.issuer, "exp": int(time.time()) + 600, "typ": typ, "sub": sub, **claims}
        kept = {name: value for name, value in told.items() if value is not None}
        return jwt.encode(kept, secret or self.secret, algorithm="HS256")

    def new_uid(self) -> int:
        """Of a chat user that no other attack has."""
        return next(_users)

    def user(self, uid: int | None = None, **claims: Any) -> str:
        """The token of a chat user, a new one unless it is named."""
        told = {"uid": self.new_uid() if uid is None else uid, "typ": "access", "sv": 0, "iat": int(time.time())}
        told |= {"iss": self.chat_issuer, "exp": int(time.time()) + 600, **claims}
        return jwt.encode(told, self.secret, algorithm="HS256")

    def init(self, **fields: object) -> dict[str, object]:
        told = {"client_version": "1", "platform": "web", "src_lang": "xx", "tgt_lang": "yy", "token": self.token()}
        return {"type": "session_init", **told, **fields}

    @asynccontextmanager
    async def session(self, at: int = 0, *, source: str = HOSTILE, **fields: object) -> AsyncIterator[tuple[Wire, str]]:
        async with websocket(self.ports[at], "/ws/session", source=source) as wire:
            await wire.say(self.init(**fields))
            told = await wire.until("session_init_ack")
            if told["type"] == "closed":
                raise Ended(f"closed {told['code']}")
            yield wire, told["session_id"]

    @asynccontextmanager
    async def chatter(self, at: int = 0, uid: int | None = None, source: str = HOSTILE) -> AsyncIterator[Wire]:
        async with websocket(self.ports[at], "/ws", source=source) as wire:
            await wire.say({"type": "AUTH", "token": self.user(uid)})
            told = await wire.until("AUTH_OK", "AUTH_FAIL")
            if told["type"] != "AUTH_OK":
                raise Ended(f"{told['type']} {told.get('reason', told.get('code'))}")
            yield wire

    def register(self, name: str, **fields: object) -> dict[str, object]:
        """A node that hears xx and writes yy, which nobody else does."""
        languages = {f"{kind}_languages": ["xx", "yy"] for kind in ("asr", "tts", "semantic")}
        told: dict[str, object] = {
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
        return told | fields

    def beat(self, name: str) -> dict[str, object]:
        ready = [{"type": kind, "ready": True} for kind in ("asr", "nmt", "tts", "semantic")]
        usage = {"cpu_percent": 0, "mem_percent": 0, "running_jobs": 0}
        told = {"node_id": name, "timestamp": 1, "resource_usage": usage, "installed_services": []}
        languages = {f"{kind}_languages": ["xx", "yy"] for kind in ("asr", "tts", "semantic")}
        return {"type": "node_heartbeat", **told, "capability_by_type": ready, "language_capabilities": languages}

    @asynccontextmanager
    async def node(self, at: int = 0) -> AsyncIterator[tuple[Wire, str]]:
        name = f"evil-{uuid4().hex[:8]}"
        async with websocket(self.ports[at], "/ws/node") as wire:
            await wire.say(self.register(name))
            await wire.until("node_register_ack")
            await wire.say(self.beat(name))
            yield wire, name


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    title: str
    run: Callable[[Scene], Awaitable[Answers]]
    answers: frozenset[str]  # every one of them is seen, and no other
    may: frozenset[str] = frozenset()  # further ones that depend on who is faster

    def wrong(self, seen: Answers) -> list[str]:
        """What is not as it should be, in words."""
        if not seen:
            return ["no answer at all"]
        strange = [
            f"{answer} ({times} times)" for answer, times in seen.items() if answer not in self.answers | self.may
        ]
        return strange + [f"never {answer}" for answer in sorted(self.answers - seen.keys())]


# Who is being written to as fast as it can write, on a machine that does not let it read in time, may find the socket
# gone before it has read why.
CUT_OFF = frozenset({"cut off"})


def good(*answers: str) -> frozenset[str]:
    return frozenset(answers)
