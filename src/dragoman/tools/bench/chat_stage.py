"""All that a chat bench has running: two instances on one Redis and one database, users, somebody who pings Redis.

    users ──▶ instances ──▶ Redis (append-only file, fsync every second), SQLite or PostgreSQL
                              ▲
                            PING

Each is a process of its own. `async with stage(…)` starts them on a database that is empty; whatever happens inside,
all of them have ended when it is left.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from dragoman.config import Config, load
from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer, free_port
from dragoman.store.link import Address
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.instance_process import PLAIN, InstanceProcess
from dragoman.tools.bench.load_process import LoadProcess
from dragoman.tools.bench.processes import cpu_s
from dragoman.tools.bench.servers import Servers
from dragoman.tools.postgres import PostgresServer

Mode = Literal["off", "save_first", "deliver_first"]
Database = Literal["sqlite", "postgres"]
MODES: tuple[Mode, ...] = ("off", "save_first", "deliver_first")
INSTANCES = 2
PINGS_PER_S = 200.0
LOOK_S = 0.5
SLOWED = "dragoman.tools.bench.slowed_instance"
_OPEN_PATIENCE_S = 120.0
_SLACK_S = 30.0
_SETTLE_S = 3.0  # the instance that came first gives up half of the shards; what is measured is what comes after that
_SECRET = "bench-bench-bench-bench-bench-bench-bench"


@dataclass(frozen=True, slots=True)
class Setup:
    """What one measurement is of."""

    database: Database = "sqlite"
    mode: Mode = "save_first"
    slow: bool = False
    users: int = 200
    max_backlog: int = 100_000


@dataclass(slots=True)
class Ground:
    """What stands below every measurement of a run; PostgreSQL only if somebody asks for it."""

    servers: Servers
    folder: Path
    stack: ExitStack
    _postgres: PostgresServer | None = None
    _count: int = 0

    def database(self, setup: Setup) -> str:
        """The URL of an empty one."""
        self._count += 1
        if setup.database == "sqlite":
            return f"sqlite:///{self.folder / f'chat-{self._count}.db'}"
        if self._postgres is None:
            self._postgres = self.stack.enter_context(PostgresServer())
        return self._postgres.new_database()


@contextmanager
def ground(binary: ServerBinary) -> Iterator[Ground]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-")))
        server = stack.enter_context(RedisServer(binary, folder / "data", port=CHOOSE_PORT))
        yield Ground(Servers("single", [server.tcp_url], [server]), folder, stack)


@dataclass(slots=True)
class Stage:
    setup: Setup
    servers: Servers
    instances: Sequence[InstanceProcess]
    crowd: LoadProcess
    pinger: LoadProcess
    backlog: list[int] = field(default_factory=list)  # every half second of the last run
    _streams: list[str] = field(default_factory=list)

    async def run(self, rate: float, warmup_s: float, seconds: float, patience_s: float = _SLACK_S) -> dict[str, Any]:
        """Messages at that rate; what the users found, and what it took."""
        at = Address.parse(self.servers.urls[0])
        await self.crowd.act("pace", per_s=rate, seconds=warmup_s + seconds, name=f"m{uuid4().hex[:6]}")
        await asyncio.sleep(warmup_s)
        await self.pinger.act("time", host=at.host, port=at.port, per_s=PINGS_PER_S)
        before = self._used()
        await self._watch(seconds)
        cpu, redis_cpu = (new - old for old, new in zip(before, self._used(), strict=True))
        pings = await self.pinger.act("times")
        found = await self.crowd.act(
            "result",
            patience_s + _SLACK_S,
            warmup_s=warmup_s,
            wait_s=patience_s,
            expects_accepted=self.setup.mode != "off",
        )
        found |= {f"ping_{share.removesuffix('_us')}_ms": us / 1e3 for share, us in pings["ping"].items()}
        thousands = rate * seconds / 1e3
        found |= {"cpu_ms_per_1000": cpu / thousands * 1e3, "redis_cpu_ms_per_1000": redis_cpu / thousands * 1e3}
        return found | {"backlog_max": max(self.backlog), "backlog_end": self._backlog()}

    async def _watch(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        self.backlog = [self._backlog()]
        while (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(LOOK_S, left))
            self.backlog.append(self._backlog())

    def _backlog(self) -> int:
        """Accepted and not saved: what is in the two streams of every shard."""
        node = self.servers.nodes[0]
        if not self._streams:
            found = [node.call("KEYS", f"*im:stream:single_chat:{name}:*") for name in ("accepted", "to_save")]
            self._streams = [key for keys in found for key in keys]
        return sum(int(node.call("XLEN", key)) for key in self._streams)

    def _used(self) -> tuple[float, float]:
        return sum(cpu_s(one.pid) for one in self.instances), self.servers.cpu_s()


@asynccontextmanager
async def stage(below: Ground, setup: Setup) -> AsyncIterator[Stage]:
    below.servers.clear()
    url, prefix = below.database(setup), f"bench-{uuid4().hex[:8]}"
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        configs = [configured(below.servers.urls[0], prefix, number, url, setup) for number in range(1, INSTANCES + 1)]
        module = SLOWED if setup.slow else PLAIN
        started = [stack.enter_context(InstanceProcess(config, log, module)) for config in configs]
        # They load while the instances do.
        crowd = stack.enter_context(await LoadProcess.start("dragoman.tools.bench.chat_load", log))
        pinger = stack.enter_context(await LoadProcess.start("dragoman.tools.bench.ping_load", log))
        for one in started:
            await one.ready()
        await crowd.act(
            "open",
            _OPEN_PATIENCE_S,
            urls=[one.url for one in started],
            count=setup.users,
            secret=_SECRET,
            issuer=configs[0].chat.issuer,
        )
        await asyncio.sleep(_SETTLE_S)
        yield Stage(setup, below.servers, started, crowd, pinger)


def configured(redis_url: str, prefix: str, number: int, archive_url: str, setup: Setup) -> Config:
    """As it comes, but for the mode, and for limits that keep a single client from making a load like ours."""
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
            "security.secret": _SECRET,
            "limits.chat_frames_per_s": 100_000,
            "limits.chat_bytes_per_day": 0,
            "chat.two_phase.enabled": setup.mode != "off",
            "chat.two_phase.deliver_before_saved": setup.mode == "deliver_first",
            "chat.two_phase.max_backlog": setup.max_backlog,
            "archive.url": archive_url,
            "log.level": "error",
        },
    )


def refuse(found: dict[str, Any], setup: Setup) -> None:
    """An answer that should not have come is not a slow one: it ends the bench.

    But for a slow database with two-phase off, which is there to show what that leads to.
    """
    if setup.slow and setup.mode == "off":
        return
    if found["failures"]:
        raise BenchError(f"A user met what it should not have: {found['failures'][0]}.")
    if strange := found["errors"].keys() - {"server_busy"}:
        raise BenchError(f"A user was told {sorted(strange)[0]}.")
