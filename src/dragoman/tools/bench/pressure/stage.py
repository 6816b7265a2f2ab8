"""All that runs while an instance is under load: instances, and around them everybody who asks something of them.

    idle sockets, speakers, chat users ──▶ instances ──▶ nodes        each group a process of its own
                                              │
                              Redis (append-only file), SQLite

`async with stage(…)` starts them; whatever happens inside, all of them have ended when it is left. Nobody is let in by
a secret here, so the chat tokens are those of the development secret.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any
from uuid import uuid4

from dragoman.config import Config, load
from dragoman.config.secrets import chat_secrets
from dragoman.embedded.engine import free_port
from dragoman.tools.bench.chat_stage import Ground, Setup
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.instance_process import STAMPED, InstanceProcess
from dragoman.tools.bench.load_process import LoadProcess
from dragoman.tools.bench.processes import cpu_s, rss_bytes
from dragoman.tools.bench.servers import Servers

OPEN_PATIENCE_S = 120.0
OPENING = 64  # connections being made at a time
QUIET_S = 10.0  # without anybody let in: no more will be
SLOTS = 256
NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Stage:
    config: Config
    servers: Servers
    instances: Sequence[InstanceProcess]
    idlers: LoadProcess
    speakers: LoadProcess
    fleet: LoadProcess
    crowd: LoadProcess

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self.instances]

    @property
    def chat_key(self) -> dict[str, str]:
        return {"secret": chat_secrets(self.config)[0], "issuer": self.config.chat.issuer}

    async def add_idle(self, speech: int, chat: int) -> dict[str, Any]:
        """So many more sockets that say nothing; how many there are now."""
        return await self.idlers.act(
            "open",
            OPEN_PATIENCE_S,
            urls=self.urls,
            speech=speech,
            chat=chat,
            opening=OPENING,
            quiet_s=QUIET_S,
            **self.chat_key,
        )

    async def add_speakers(self, sessions: int, nodes: int, slots: int = SLOTS, work_s: float = 0.0) -> None:
        opened = await self.fleet.act(
            "open", OPEN_PATIENCE_S, urls=self.urls, count=nodes, slots=slots, languages=["es"], work_s=work_s
        )
        for one in self.instances:
            await one.sees(opened["nodes"])
        await self.speakers.act("open", OPEN_PATIENCE_S, urls=self.urls, count=sessions, languages=["es"])

    async def add_users(self, users: int) -> None:
        await self.crowd.act("open", OPEN_PATIENCE_S, urls=self.urls, count=users, **self.chat_key)

    async def must_hold(self, speech: int, chat: int) -> None:
        """Idle sockets that a part begins with; a BenchError when they do not all come in."""
        found = await self.add_idle(speech, chat)
        if found["open"] < found["sockets"]:
            raise BenchError(f"Of {found['sockets']:,} sockets {found['open']:,} came in: {found['refused']}.")

    def rss_bytes(self) -> int:
        return sum(rss_bytes(one.pid) for one in self.instances)

    def cpu_s(self) -> float:
        return sum(cpu_s(one.pid) for one in self.instances)


@asynccontextmanager
async def stage(below: Ground, instances: int, max_backlog: int = Setup().max_backlog) -> AsyncIterator[Stage]:
    below.servers.clear()
    url, prefix = below.database(Setup()), f"bench-{uuid4().hex[:8]}"
    with ExitStack() as stack:
        log = stack.enter_context(TemporaryFile())
        configs = [
            configured(below.servers.urls[0], prefix, number, url, max_backlog) for number in range(1, instances + 1)
        ]
        started = [stack.enter_context(InstanceProcess(config, log, STAMPED)) for config in configs]
        # They load while the instances do.
        load_processes = [
            stack.enter_context(await LoadProcess.start(f"dragoman.tools.bench.{name}", log))
            for name in ("idle_load", "speaker_load", "fleet_load", "chat_load")
        ]
        for one in started:
            await one.ready()
        yield Stage(configs[0], below.servers, started, *load_processes)


def configured(redis_url: str, prefix: str, number: int, archive_url: str, max_backlog: int) -> Config:
    """As it comes, but for limits on what one client may send, and on how many there may be: the machine is that."""
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
            "limits.connections": NO_LIMIT,
            "limits.frames_per_s": 100_000,
            "limits.node_frames_per_s": 100_000,
            "limits.chat_frames_per_s": 100_000,
            "limits.chat_bytes_per_day": 0,
            "chat.two_phase.enabled": True,
            "chat.two_phase.max_backlog": max_backlog,
            "archive.url": archive_url,
            "log.level": "error",
        },
    )
