"""Everything that `bench abuse` has running: two instances on one Redis, healthy clients and an attacker.

Some times of the instances are shorter than the defaults, so that the bench is shorter: for connections without a
session, slow readers, sessions that can be resumed and claims of message ids. A client may have fewer sessions, a
session and a client fewer open jobs, a name fewer wrong logins, a chat user fewer bytes and fewer requests for history.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import jwt

from dragoman.config import Config
from dragoman.tools import leftover_keys
from dragoman.tools.bench.abuse.attack import Scale
from dragoman.tools.bench.environment import Servers, configured
from dragoman.tools.processes import NO_OUTPUT, CannotRun, InstanceProcess, LoadProcess, last_line, rss_bytes

INSTANCES = 2
SECRET = "abuse-abuse-abuse-abuse-abuse-abuse-abuse"
ATTACK_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 40.0
POLL_S = 0.1
# What must be again as it was before, by its name in /api/v1/stats.
COUNTED = ("connections", "sessions", "local_nodes", "jobs", "chat_users", "tasks", "awaiting_head", "closing")
SPARE_TASKS = 3  # loops of ours that are between two turns, or the request that asks


def settings(archive_url: str) -> dict[str, object]:
    return {
        "server.pre_session_s": 3.0,
        "limits.out_queue_bytes": 2_097_152,
        "limits.out_queue_age_s": 2.0,
        "speech.resume_grace_s": 2.0,
        "limits.sessions_per_principal": 100,
        "limits.open_jobs_per_session": 32,
        "limits.open_jobs_per_principal": 64,
        "rooms.captions_per_minute": 0,  # the healthy writer writes more
        "rooms.empty_grace_s": 1.0,
        "limits.login_attempts_per_name_per_hour": 20,
        "limits.chat_bytes_per_day": 12 * 1024 * 1024,
        "limits.chat_history_per_minute": 120,
        "chat.idempotency_ttl_s": 1,
        "security.secret": SECRET,
        "chat.two_phase.enabled": True,
        "archive.url": archive_url,
    }


@dataclass(frozen=True, slots=True)
class State:
    """What the instances hold, all together."""

    counts: Mapping[str, int]
    reserved: int  # slots taken
    rss_bytes: int

    def more_than(self, before: "State") -> list[str]:
        """What there is more of than there was, in words."""
        spare = {"tasks": SPARE_TASKS * INSTANCES}
        grown = [
            f"{self.counts[name] - old} {name}"
            for name, old in before.counts.items()
            if self.counts[name] > old + spare.get(name, 0)
        ]
        return grown + ([f"{self.reserved} slots"] if self.reserved else [])


@dataclass(slots=True)
class AbuseEnvironment:
    servers: Servers
    prefix: str
    instances: Sequence[InstanceProcess]
    healthy_clients: LoadProcess
    attacker: LoadProcess
    http: aiohttp.ClientSession
    log: Path

    async def attack(self, name: str, seconds: float, scale: Scale) -> dict[str, Any]:
        config = self.instances[0].settings
        return await self.attacker.call(
            "attack",
            ATTACK_TIMEOUT_S,
            name=name,
            seconds=seconds,
            ports=[one.port for one in self.instances],
            secret=SECRET,
            issuer=config.security.issuer,
            chat_issuer=config.chat.issuer,
            login_tries=config.limits.login_attempts_per_name_per_hour,
            chat_bytes=config.limits.chat_bytes_per_day,
            history_per_minute=config.limits.chat_history_per_minute,
            claim_s=config.chat.idempotency_ttl_s,
            scale=asdict(scale),
        )

    async def wait_for_the_node(self) -> None:
        """Return when both do: that of the other instance is announced a moment later."""
        for one in self.instances:
            while True:
                if (await self._get(one.settings, "/api/v1/stats"))["nodes_known"]:
                    break
                await asyncio.sleep(POLL_S)

    async def settle(self, before: State) -> tuple[State, list[str]]:
        """Wait until the instances hold no more than before; what they hold, and what was still too much."""
        until = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            state = await self.state()
            left = state.more_than(before)
            if not left or time.monotonic() > until:
                return state, left
            await asyncio.sleep(POLL_S)

    async def state(self) -> State:
        stats = [await self._get(one.settings, "/api/v1/stats") for one in self.instances]
        counts = {name: sum(int(one[name]) for one in stats) for name in COUNTED}
        memory = sum(rss_bytes(one.pid) for one in self.instances)
        return State(counts, self._reserved(), memory)

    def errors_in_the_log(self) -> str:
        """The last line of the log of the instances, which holds only errors; empty if there is none."""
        line = last_line(self.log)
        return "" if line == NO_OUTPUT else line

    def leaked_keys(self) -> list[str]:
        """Keys in Redis that should not be there, one sentence each."""
        with closing(leftover_keys.client(self.servers.urls[0], cluster=False)) as client:
            return leftover_keys.leaks(leftover_keys.look(client, self.prefix), self.prefix)

    def _reserved(self) -> int:
        node = self.servers.nodes[0]
        return sum(int(node.call("ZCARD", key)) for key in node.call("KEYS", f"{self.prefix}:*reserved*"))

    async def _get(self, config: Config, path: str) -> dict[str, Any]:
        payload = {"iss": config.security.issuer, "exp": int(time.time()) + 600, "typ": "operator", "sub": "bench"}
        headers = {"Authorization": f"Bearer {jwt.encode(payload, SECRET, algorithm='HS256')}"}
        async with self.http.get(f"http://127.0.0.1:{config.server.port}{path}", headers=headers) as answer:
            if answer.status != 200:
                raise CannotRun(f"An instance answered {path} with {answer.status}.")
            return dict(await answer.json())


@asynccontextmanager
async def environment(servers: Servers, folder: Path) -> AsyncIterator[AbuseEnvironment]:
    servers.clear()
    prefix, archive = f"bench-{uuid4().hex[:8]}", f"sqlite:///{folder / f'chat-{uuid4().hex[:8]}.db'}"
    with ExitStack() as stack:
        log = folder / "instances.log"
        configs = [configured(servers.urls[0], prefix, at, settings(archive)) for at in range(1, INSTANCES + 1)]
        started = [stack.enter_context(InstanceProcess(config, log)) for config in configs]
        # They start while the instances do.
        healthy_clients, attacker = [
            stack.enter_context(LoadProcess(f"dragoman.tools.bench.abuse.{name}", folder / f"{name}.log"))
            for name in ("healthy_clients", "attacker")
        ]
        for one in started:
            await one.ready()
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            yield AbuseEnvironment(servers, prefix, started, healthy_clients, attacker, http, log)
