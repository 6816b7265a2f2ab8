"""Everything that a bench has running: Redis, instances, and around them the load processes that use them.

    idle sockets, speakers, chat users ──▶ instances ──▶ nodes        each group a process of its own
                                              │
                                Redis, and SQLite or PostgreSQL

`async with environment(…)` starts them; whatever happens inside, all of them have ended when it is left. No secret is
configured, so the chat tokens are those of the development secret.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from uuid import uuid4

from dragoman.config import Config, load
from dragoman.config.secrets import chat_secrets
from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer, free_port
from dragoman.tools.postgres import PostgresServer
from dragoman.tools.processes import CannotRun, InstanceProcess, LoadProcess, cpu_s, rss_bytes
from dragoman.tools.redis_cluster import MASTERS, RedisCluster

S = TypeVar("S")
Mode = Literal["single", "cluster"]
Database = Literal["sqlite", "postgres"]
LoadName = Literal["nodes", "speakers", "previewers", "listeners", "chat", "idle", "ping"]
_MODULES: dict[LoadName, str] = {
    "nodes": "speech_load",
    "speakers": "speech_load",
    "previewers": "live_load",
    "listeners": "live_load",
    "chat": "chat_load",
    "idle": "idle_load",
    "ping": "measure",
}
SPEECH: tuple[LoadName, ...] = ("nodes", "speakers")
SLOTS = 256  # more than the speakers can fill: a full node is not measured here
OPEN_TIMEOUT_S = 300.0
OPENING = 64  # connections being made at a time
IDLE_QUIET_S = 10.0  # no more idle sockets are expected if none was accepted for so long
LANGUAGE = ("es",)
# A server that is only starved of CPU by the load must not lose its mastership. Set when the Cluster is up: servers
# with this timeout from the beginning take as long to find each other.
_NODE_TIMEOUT_MS = 15_000
# Limits that keep a single client from making a load like ours.
UNLIMITED: dict[str, object] = {
    "limits.connections": 1_000_000,
    "limits.frames_per_s": 100_000,
    "limits.node_frames_per_s": 100_000,
    "limits.chat_frames_per_s": 100_000,
    "limits.chat_bytes_per_day": 0,
}


# -- servers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Servers:
    """The Redis under test: one server, or the six of a Cluster, masters first."""

    mode: Mode
    urls: Sequence[str]
    nodes: Sequence[RedisServer]

    @property
    def clustered(self) -> bool:
        return self.mode == "cluster"

    def clear(self) -> None:
        """Delete every key; scripts stay loaded."""
        for node in self.nodes[:MASTERS]:
            node.call("FLUSHALL", "SYNC")

    def cpu_s(self) -> float:
        """CPU time of all of them so far, replicas included."""
        return sum(cpu_seconds(node.call("INFO", "cpu")) for node in self.nodes)


def cpu_seconds(info: str) -> float:
    wanted = ("used_cpu_sys:", "used_cpu_user:")
    return sum(float(line.partition(":")[2]) for line in info.splitlines() if line.startswith(wanted))


@dataclass(frozen=True, slots=True)
class Bench(Generic[S]):
    """The context of the cases of a bench that needs nothing but a Redis: its settings."""

    servers: Servers
    settings: S


@contextmanager
def running(mode: Mode, binary: ServerBinary) -> Iterator[Servers]:
    """Without an append-only file: the way to Redis and back is measured, not the disk of the machine."""
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        if mode == "cluster":
            with RedisCluster(binary, Path(folder)) as cluster:
                for node in cluster.nodes:
                    node.call("CONFIG", "SET", "cluster-node-timeout", _NODE_TIMEOUT_MS)
                yield Servers(mode, cluster.urls, cluster.nodes)
        else:
            with RedisServer(binary, Path(folder) / "data", port=CHOOSE_PORT, appendonly=False) as server:
                yield Servers(mode, [server.tcp_url], [server])


@dataclass(slots=True)
class Backend:
    """The servers of every measurement of a run: Redis with an append-only file, PostgreSQL only if it is asked for."""

    servers: Servers
    folder: Path
    stack: ExitStack
    _postgres: PostgresServer | None = None
    _count: int = 0

    def new_database(self, kind: Database = "sqlite") -> str:
        """The URL of an empty one."""
        self._count += 1
        if kind == "sqlite":
            return f"sqlite:///{self.folder / f'chat-{self._count}.db'}"
        if self._postgres is None:
            self._postgres = self.stack.enter_context(PostgresServer())
        return self._postgres.new_database()


@contextmanager
def backend(binary: ServerBinary) -> Iterator[Backend]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-")))
        server = stack.enter_context(RedisServer(binary, folder / "data", port=CHOOSE_PORT))
        yield Backend(Servers("single", [server.tcp_url], [server]), folder, stack)


# -- the environment -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Used:
    """The results between two moments, and the CPU time that they took."""

    seconds: float
    results: int
    instance_cpu_s: float
    redis_cpu_s: float

    @property
    def per_s(self) -> float:
        return self.results / self.seconds

    @property
    def cpu_ms_per_job(self) -> float:
        return self.instance_cpu_s / self.results * 1e3

    @property
    def redis_cpu_ms_per_job(self) -> float:
        return self.redis_cpu_s / self.results * 1e3


@dataclass(frozen=True, slots=True)
class Environment:
    servers: Servers
    instances: Sequence[InstanceProcess]
    loads: Mapping[LoadName, LoadProcess]

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self.instances]

    @property
    def chat_key(self) -> dict[str, str]:
        config = self.instances[0].settings
        return {"secret": chat_secrets(config)[0], "issuer": config.chat.issuer}

    def cpu_s(self) -> float:
        return sum(cpu_s(one.pid) for one in self.instances)

    def rss_bytes(self) -> int:
        return sum(rss_bytes(one.pid) for one in self.instances)

    # -- clients and nodes -----------------------------------------------------------------------

    async def add_nodes(
        self,
        count: int,
        languages: Sequence[str] = LANGUAGE,
        at: Sequence[InstanceProcess] = (),
        *,
        slots: int = SLOTS,
        work_s: float = 0.0,
        text_s: float | None = None,
    ) -> None:
        """Spread over the instances, or over those `at`; each writes one of the languages in turn.

        With `text_s` they also translate texts, which take so long.
        """
        spread = {"urls": [one.url for one in at or self.instances], "count": count, "languages": list(languages)}
        opened = await self.loads["nodes"].call(
            "open_nodes", OPEN_TIMEOUT_S, slots=slots, work_s=work_s, text_s=text_s, **spread
        )
        for one in self.instances:
            await one.wait_for_nodes(opened["nodes"])

    async def add_sessions(
        self, count: int, languages: Sequence[str] = LANGUAGE, at: Sequence[InstanceProcess] = ()
    ) -> None:
        """Spread over the instances, or over those `at`, and at each of them over the languages."""
        spread = {"urls": [one.url for one in at or self.instances], "count": count, "languages": list(languages)}
        await self.loads["speakers"].call("open_sessions", OPEN_TIMEOUT_S, **spread)

    async def add_users(self, count: int, *, pings: bool = False, skew: int = 50) -> None:
        """`skew`: so many of a hundred are on the first of two instances."""
        first, *others = self.urls
        urls = self.urls if skew == 50 else [first] * skew + others * (100 - skew)
        asked = {"urls": urls, "count": count, "pings": pings}
        await self.loads["chat"].call("open", OPEN_TIMEOUT_S, **asked, **self.chat_key)

    async def add_idle(self, speech: int, chat: int) -> dict[str, Any]:
        """So many more sockets that send nothing; returns how many there are now."""
        asked = {"urls": self.urls, "speech": speech, "chat": chat, "opening": OPENING, "quiet_s": IDLE_QUIET_S}
        return await self.loads["idle"].call("open", OPEN_TIMEOUT_S, **asked, **self.chat_key)

    async def add_all_idle(self, count: int) -> None:
        """Half of them of speech, half of chat; CannotRun if not all are accepted."""
        found = await self.add_idle(count // 2, count - count // 2)
        if found["open"] < found["sockets"]:
            raise CannotRun(f"Of {found['sockets']:,} sockets {found['open']:,} were accepted: {found['refused']}.")

    # -- speech ----------------------------------------------------------------------------------

    async def measure(self, seconds: float) -> Used:
        """The load of the speakers that is running."""
        began, before = asyncio.get_running_loop().time(), await self._counts()
        await asyncio.sleep(seconds)
        took_s, after = asyncio.get_running_loop().time() - began, await self._counts()
        results, cpu, redis_cpu = (new - old for old, new in zip(before, after, strict=True))
        if not results:
            raise CannotRun("No result came back during the measurement.")
        return Used(took_s, int(results), cpu, redis_cpu)

    async def finish_speech(self) -> None:
        """Stop the speakers; every utterance must have been answered."""
        count = await self.loads["speakers"].call("rest")
        _refuse(count["failures"])
        if count["results"] < count["sent"]:
            raise CannotRun(f"{count['sent'] - count['results']} of {count['sent']} utterances were never answered.")

    async def _counts(self) -> tuple[float, float, float]:
        count = await self.loads["speakers"].call("count")
        _refuse(count["failures"])
        return count["results"], self.cpu_s(), self.servers.cpu_s()


def _refuse(failures: Sequence[str]) -> None:
    """An error is not counted as a slow answer: it ends the bench."""
    if failures:
        raise CannotRun(f"A session received what it should not have: {failures[0]}")


@asynccontextmanager
async def environment(
    servers: Servers,
    instances: int = 1,
    loads: Sequence[LoadName] = SPEECH,
    *,
    settings: Mapping[str, object] = UNLIMITED,
    module: Sequence[str] = (),
) -> AsyncIterator[Environment]:
    """`module`: what to run instead of the plain instance, with its arguments."""
    servers.clear()
    prefix = f"bench-{uuid4().hex[:8]}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-")))
        configs = [configured(servers.urls[0], prefix, number, settings) for number in range(1, instances + 1)]
        log = folder / "instances.log"
        started = [stack.enter_context(InstanceProcess(config, log, *module)) for config in configs]
        # They start while the instances do.
        processes = {
            name: stack.enter_context(LoadProcess(f"dragoman.tools.bench.{_MODULES[name]}", folder / f"{name}.log"))
            for name in loads
        }
        for one in started:
            await one.ready()
        yield Environment(servers, started, processes)


def configured(redis_url: str, prefix: str, number: int, settings: Mapping[str, object] = UNLIMITED) -> Config:
    """The defaults, and `settings`."""
    own: dict[str, object] = {
        "scheduler.phase2.enabled": True,
        "scheduler.phase2.instance_id": f"bench-{number}",
        "scheduler.phase2.redis.url": redis_url,
        "scheduler.phase2.redis.key_prefix": prefix,
        "server.port": free_port(),
        "server.admin_port": 0,
        "log.level": "error",
    }
    return load(None, {}, {**own, **settings})
