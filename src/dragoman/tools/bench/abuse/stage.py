"""All that the bench has running, and what is left in it: two instances on one Redis, healthy clients, an attacker.

Some times of the instances are shorter than the defaults, so that the bench is shorter: for connections without a
session, slow readers, sessions that can be resumed and claims of message ids. A session may have fewer open utterances,
a name fewer wrong logins, a chat user fewer bytes and fewer requests for history.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import jwt

from dragoman.config import Config, load
from dragoman.embedded.engine import free_port
from dragoman.store.keys import TABLE
from dragoman.tools.bench.abuse.scene import Scale
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.instance_process import InstanceProcess
from dragoman.tools.bench.load_process import LoadProcess
from dragoman.tools.bench.processes import last_words, rss_bytes
from dragoman.tools.bench.servers import Servers

INSTANCES = 2
SECRET = "abuse-abuse-abuse-abuse-abuse-abuse-abuse"
ATTACK_PATIENCE_S = 300.0
QUIET_PATIENCE_S = 40.0
LOOK_S = 0.1
FOREVER = -1
# What must be again as it was before, by its name in /api/v1/stats.
COUNTED = ("connections", "sessions", "nodes_here", "jobs", "chat_users", "tasks", "heads", "leaving")
SPARE_TASKS = 3  # loops of ours that are between two turns, or the request that asks


def configured(redis_url: str, prefix: str, number: int, archive_url: str) -> Config:
    return load(
        None,
        {},
        {
            "scheduler.phase2.enabled": True,
            "scheduler.phase2.instance_id": f"bench-{number}",
            "scheduler.phase2.redis.url": redis_url,
            "scheduler.phase2.redis.key_prefix": prefix,
            "server.port": free_port(),
            "server.admin_port": 0,
            "server.pre_session_s": 3.0,
            "limits.out_queue_bytes": 2_097_152,
            "limits.out_queue_age_s": 2.0,
            "speech.resume_grace_s": 2.0,
            "limits.open_jobs_per_session": 64,
            "limits.login_attempts_per_name_per_hour": 20,
            "limits.chat_bytes_per_day": 12 * 1024 * 1024,
            "limits.chat_history_per_minute": 120,
            "chat.idempotency_ttl_s": 1,
            "security.secret": SECRET,
            "chat.two_phase.enabled": True,
            "archive.url": archive_url,
            "log.level": "error",
        },
    )


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
class Stage:
    servers: Servers
    prefix: str
    instances: Sequence[InstanceProcess]
    configs: Sequence[Config]
    healthy_clients: LoadProcess
    attacker: LoadProcess
    http: aiohttp.ClientSession
    log: Any

    async def attack(self, name: str, seconds: float, scale: Scale) -> dict[str, Any]:
        config = self.configs[0]
        return await self.attacker.act(
            "attack",
            ATTACK_PATIENCE_S,
            name=name,
            seconds=seconds,
            ports=[config.server.port for config in self.configs],
            secret=SECRET,
            issuer=config.security.issuer,
            chat_issuer=config.chat.issuer,
            login_tries=config.limits.login_attempts_per_name_per_hour,
            chat_bytes=config.limits.chat_bytes_per_day,
            history_per_minute=config.limits.chat_history_per_minute,
            claim_s=config.chat.idempotency_ttl_s,
            scale=asdict(scale),
        )

    async def knows_the_node(self) -> None:
        """Return when both do: that of the other instance is announced a moment later."""
        for config in self.configs:
            while True:
                if (await self._get(config, "/api/v1/stats"))["nodes_known"]:
                    break
                await asyncio.sleep(LOOK_S)

    async def quiet(self, before: State) -> tuple[State, list[str]]:
        """Wait until the instances hold no more than before; what they hold, and what was still too much."""
        until = time.monotonic() + QUIET_PATIENCE_S
        while True:
            state = await self.state()
            left = state.more_than(before)
            if not left or time.monotonic() > until:
                return state, left
            await asyncio.sleep(LOOK_S)

    async def state(self) -> State:
        told = [await self._get(config, "/api/v1/stats") for config in self.configs]
        counts = {name: sum(int(one[name]) for one in told) for name in COUNTED}
        memory = sum(rss_bytes(one.pid) for one in self.instances)
        return State(counts, self._reserved(), memory)

    def failures_in_the_log(self) -> str:
        """The last line of the instances' own log, which holds errors alone; empty: nothing went wrong inside."""
        words = last_words(self.log)
        return "" if words == "nothing was said" else words

    def keys_left(self) -> list[str]:
        """Keys in Redis that should not be there, in words: of a turn, of no kind that is known, or never ending."""
        node, found = self.servers.nodes[0], []
        for name in [*node.call("KEYS", f"{self.prefix}:*"), *node.call("KEYS", "scheduler:*")]:
            rows = [row for row in TABLE if row.pattern(self.prefix).match(name)]
            if name.startswith("scheduler:"):
                found.append(f"{name}, of a turn that is over,")
            elif not rows:
                found.append(f"{name}, which is in no table,")
            elif rows[0].expires and int(node.call("PTTL", name)) == FOREVER:
                found.append(f"{name}, without an end,")
        return found

    def _reserved(self) -> int:
        node = self.servers.nodes[0]
        return sum(int(node.call("ZCARD", key)) for key in node.call("KEYS", f"{self.prefix}:*reserved*"))

    async def _get(self, config: Config, path: str) -> dict[str, Any]:
        told = {"iss": config.security.issuer, "exp": int(time.time()) + 600, "typ": "operator", "sub": "bench"}
        headers = {"Authorization": f"Bearer {jwt.encode(told, SECRET, algorithm='HS256')}"}
        async with self.http.get(f"http://127.0.0.1:{config.server.port}{path}", headers=headers) as answer:
            if answer.status != 200:
                raise BenchError(f"An instance answered {path} with {answer.status}.")
            return dict(await answer.json())


@asynccontextmanager
async def staged(servers: Servers, folder: Path) -> AsyncIterator[Stage]:
    servers.clear()
    prefix, archive = f"bench-{uuid4().hex[:8]}", f"sqlite:///{folder / f'chat-{uuid4().hex[:8]}.db'}"
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        noise = stack.enter_context(tempfile.TemporaryFile())
        configs = [configured(servers.urls[0], prefix, number, archive) for number in range(1, INSTANCES + 1)]
        started = [stack.enter_context(InstanceProcess(config, log)) for config in configs]
        # They load while the instances do.
        healthy_clients, attacker = [
            stack.enter_context(await LoadProcess.start(f"dragoman.tools.bench.abuse.{name}", noise))
            for name in ("healthy_clients", "attacker")
        ]
        for one in started:
            await one.ready()
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            yield Stage(servers, prefix, started, configs, healthy_clients, attacker, http, log)
