"""The cluster that is broken: Redis, a database, instances, nodes, and the process between the instances and Redis.

    async with Environment.open(setup, "always", binary, folder) as environment:
        environment.instances[0].kill()
        await environment.restart_instance(0)
        await environment.wait_until_healthy(30)

Everything is a process of its own, in a folder of its own, and has ended when the environment is left, however that
happens. `faults` breaks and repairs it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self, get_args
from uuid import uuid4

import aiohttp

from dragoman.config import Config, load
from dragoman.domain.chat.shards import tag
from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer, free_port
from dragoman.store.chat.users import Users
from dragoman.store.errors import StoreError
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis, connect
from dragoman.store.rooms.rooms import RoomBounds, Rooms
from dragoman.tools.postgres import CARELESS, PostgresServer
from dragoman.tools.processes import CannotRun, InstanceProcess, LoadProcess, NodeProcess, Process, until
from dragoman.tools.redis_cluster import MASTERS, RedisCluster
from dragoman.tools.verify import recording_node, room_load, tcp_proxy
from dragoman.tools.verify.clients import FIRST_UID
from dragoman.tools.verify.facts import Rules, Stores
from dragoman.tools.verify.speech_load import SETTINGS as SPEECH_SETTINGS

# -- settings --------------------------------------------------------------------------------------
#
# The setup of a verification, and the configuration of its instances.
#
# Short lengths are for everyday use: presences, graces and faults of a few seconds. Real lengths go with the default
# settings: a database stopped for a minute, an instance paused for 20 seconds, a link cut for 10.


RedisMode = Literal["single", "cluster"]
Database = Literal["sqlite", "postgres"]
Fsync = Literal["always", "everysec"]
Load = Literal["speech", "chat", "rooms"]
MessagePath = Literal["save_first", "deliver_first", "off"]

PATHS: tuple[MessagePath, ...] = get_args(MessagePath)
LOADS: tuple[Load, ...] = get_args(Load)
SHARDS = 4
PRESENCE = "scheduler.phase2.instance_presence_ttl_seconds"
# Long enough for a process that waits for CPU on a busy machine, short enough to wait for.
_SHORT: dict[str, object] = {
    PRESENCE: 3,
    "scheduler.phase2.owner_ttl_seconds": 20,
    "scheduler.phase2.stream_block_ms": 200,
    "scheduler.phase2.dlq_min_idle_ms": 300,
    "scheduler.phase2.dlq_scan_interval_ms": 200,
    "scheduler.phase2.node_snapshot.refresh_interval_ms": 500,
    "speech.node_grace_ms": 300,
    "speech.reservation_ttl_ms": 6000,
    "chat.resend_after_s": 3.0,
    "archive.busy_ms": 200,
    "server.drain_s": 2,
    **room_load.SHORT_SETTINGS,
}
_LOAD: dict[str, object] = {
    "scheduler.phase2.enabled": True,
    "server.admin_port": 0,
    # A few clients make the load of many.
    "limits.frames_per_s": 100_000,
    "limits.chat_frames_per_s": 100_000,
    "limits.chat_bytes_per_day": 0,
    "chat.two_phase.shards": SHARDS,
    "log.format": "json",
    **room_load.SETTINGS,
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long each fault lasts, and how long to wait for the end, in seconds."""

    database_s: float
    pause_s: float
    link_s: float
    reader_s: float
    presence_s: float
    timeout_s: float


SHORT = Lengths(database_s=1.5, pause_s=4.0, link_s=1.5, reader_s=2.0, presence_s=3.0, timeout_s=60.0)
REAL = Lengths(database_s=60.0, pause_s=20.0, link_s=10.0, reader_s=20.0, presence_s=6.0, timeout_s=120.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """One cluster and its clients."""

    redis: RedisMode = "single"
    database: Database = "sqlite"
    real_lengths: bool = False
    instances: int = 2
    nodes: int = 3
    speakers: int = 6
    chat_users: int = 8
    room_members: int = 8
    messages_per_s: float = 60.0
    utterances_per_s: float = 10.0
    captions_per_s: float = 5.0
    path: MessagePath | None = None  # two-phase, before receivers or after; or confirmed once; None: by the seed

    @property
    def lengths(self) -> Lengths:
        return REAL if self.real_lengths else SHORT

    def only(self, load: Load | None) -> "Setup":
        """The same with one kind of load alone."""
        if load is None:
            return self
        absent: dict[Load, dict[str, float]] = {
            "speech": {"speakers": 0, "utterances_per_s": 0.0},
            "chat": {"chat_users": 0, "messages_per_s": 0.0},
            "rooms": {"room_members": 0, "captions_per_s": 0.0},
        }
        changes = {name: value for other, values in absent.items() if other != load for name, value in values.items()}
        return replace(self, **changes)  # type: ignore[arg-type]

    def of_seed(self, seed: int) -> "Setup":
        """Each way that messages can take gets its turn, the first seed saves first; unless one was chosen."""
        return self if self.path is not None else replace(self, path=PATHS[(seed - 1) % len(PATHS)])


def configured(setup: Setup, name: str, port: int, redis_urls: Sequence[str], prefix: str, database: str) -> Config:
    """One instance of that setup."""
    redis = "scheduler.phase2.redis"
    where: dict[str, object] = {
        "scheduler.phase2.instance_id": name,
        "server.port": port,
        f"{redis}.mode": setup.redis,
        f"{redis}.key_prefix": prefix,
        "archive.url": database,
        "chat.two_phase.enabled": setup.path != "off",
        "chat.two_phase.deliver_before_saved": setup.path == "deliver_first",
    }
    if setup.redis == "cluster":
        # What a master accepts and its replica has not seen dies with it: here it is confirmed by both.
        where |= {f"{redis}.cluster_urls": list(redis_urls), "chat.two_phase.wait_replicas": 1}
    else:
        where[f"{redis}.url"] = redis_urls[0]
    return load(None, {}, {**({} if setup.real_lengths else _SHORT), **_LOAD, **SPEECH_SETTINGS, **where})


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'chat.sqlite3'}"


START_TIMEOUT_S = 90.0
TAKE_OVER_S = 30.0  # until others have sent again what an instance or a Redis lost
SLOTS = 4  # of each node
# Nodes that translate text, and into which languages. The first is the only one for its language.
TEXT_NODES = {"t1": (room_load.LONELY,), "t2": tuple(one for one in room_load.LANGUAGES if one != room_load.LONELY)}
TEXT_SLOTS = 16
ROOM_NODES = ("r1", "r2")  # they recognise what is said aloud in rooms
NOT_THERE = (StoreError, aiohttp.ClientError, OSError, KeyError, ValueError)


class Environment:
    def __init__(self, setup: Setup, fsync: Fsync, folder: Path, stack: AsyncExitStack) -> None:
        self.setup, self.fsync, self.folder = setup, fsync, folder
        self._stack = stack
        self.prefix = f"verify-{uuid4().hex[:8]}"
        self.keys = Keys(self.prefix)
        self.server: RedisServer | None = None
        self.cluster: RedisCluster | None = None
        self.postgres: PostgresServer | None = None
        self.database = ""
        self.redis_urls: Sequence[str] = ()
        self.instances: list[InstanceProcess] = []
        self.nodes: list[Process] = []
        self.text_nodes: list[Process] = []
        self.room_nodes: list[Process] = []
        self.names = [f"v{number}" for number in range(1, setup.instances + 1)]
        self.ports = [free_port() for _ in self.names]
        self._links: dict[str, Sequence[str]] = {}
        self._proxy: LoadProcess | None = None
        self._redis: Redis | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, setup: Setup, fsync: Fsync, binary: ServerBinary, folder: Path) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            environment = cls(setup, fsync, folder, stack)
            environment._start_servers(binary)
            await environment._start_proxy()
            environment._redis = await connect(environment.redis_urls, cluster=setup.redis == "cluster", name="verify")
            stack.push_async_callback(environment.redis.close)
            stack.callback(environment._close_processes)
            for at in range(setup.instances):
                environment.instances.append(environment._instance(at))
            for at in range(setup.nodes if setup.speakers else 0):
                environment.nodes.append(environment._node(at))
            for at in range(len(TEXT_NODES) if setup.room_members else 0):
                environment.text_nodes.append(environment._text_node(at))
            for at in range(len(ROOM_NODES) if setup.room_members else 0):
                environment.room_nodes.append(environment._room_node(at))
            for one in environment.instances:
                await one.ready()
            await environment.wait_until_healthy(START_TIMEOUT_S)
            yield environment

    # -- its parts ---------------------------------------------------------------------------------

    @property
    def redis(self) -> Redis:
        """A connection that bypasses the proxy."""
        assert self._redis is not None
        return self._redis

    @property
    def node_names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.setup.nodes + 1)]

    @property
    def _all_nodes(self) -> list[Process]:
        return [*self.nodes, *self.text_nodes, *self.room_nodes]

    @property
    def recording_files(self) -> list[Path]:
        return [self.folder / f"{name}.events" for name in self.node_names]

    @property
    def stores(self) -> Stores:
        """Where the facts are, without the proxy."""
        clustered = self.setup.redis == "cluster"
        nodes = [*self.node_names[: len(self.nodes)], *list(TEXT_NODES)[: len(self.text_nodes)]]
        nodes += ROOM_NODES[: len(self.room_nodes)]
        return Stores(self.redis, self.redis_urls, clustered, self.prefix, self.database, SHARDS, nodes)

    def rules(self, *, disturbed: bool) -> Rules:
        """By the settings of the instances. After a fault, messages acknowledged meanwhile may arrive once more."""
        speech, usual = self.instances[0].settings.speech, Rules()
        return Rules(
            release_s=speech.release.ack_timeout_ms / 1000,
            job_s=speech.job_timeout_ms / 1000,
            overcommit=speech.turn_overcommit,
            translate_s=self.instances[0].settings.rooms.translate_timeout_ms / 1000,
            ack_grace_s=usual.ack_grace_s + (TAKE_OVER_S if disturbed else 0.0),
        )

    def living(self) -> list[InstanceProcess]:
        return [one for one in self.instances if one.runs]

    async def holders(self) -> list[str]:
        """The instance that has each shard, '' if none has."""
        found = await asyncio.gather(*(self.redis.call("GET", self.keys.lease(tag(at))) for at in range(SHARDS)))
        return [(lease or b"").decode().partition("|")[0] for lease in found]

    async def user_instances(self) -> dict[int, str]:
        """The instance that each chat user is connected to."""
        users = range(FIRST_UID, FIRST_UID + self.setup.chat_users)
        owners = await Users(self.redis, self.keys, 0).owners(users)
        return {user: owner.partition("|")[0] for user, owner in zip(users, owners, strict=True)}

    async def member_instances(self, room: str) -> dict[str, str]:
        """The instance of each session in a room."""
        members = await Rooms(self.redis, self.keys, RoomBounds()).members(room)
        return {member.session: member.instance for member in members}

    # -- its health --------------------------------------------------------------------------------

    async def wait_until_healthy(self, timeout_s: float) -> None:
        """Return when every process is up and knows of the others."""
        began, missing = time.monotonic(), "everything"

        async def well() -> bool:
            nonlocal missing
            try:
                missing = await self._missing()
            except NOT_THERE as error:
                missing = f"an answer: {error!r}"
            return not missing

        if not await until(well, timeout_s):
            logs = "\n".join(f"{one.log.name}: {one.log_tail()[-600:]}" for one in (*self.instances, *self._all_nodes))
            raise CannotRun(f"After {time.monotonic() - began:.0f} s there is still missing: {missing}.\n{logs}")

    async def _missing(self) -> str:
        for one in self.instances:
            if not await one.is_ready():
                return f"instance {one.name} to be ready"
            if not await one.sees_only(*self.names):
                return f"instance {one.name} to know the others"
            if await one.node_count() < len(self._all_nodes):
                return f"instance {one.name} to know {len(self._all_nodes)} nodes"
        if self.cluster is not None and not await asyncio.to_thread(_replicated, self.cluster):
            return "every master to have a replica that is in step"
        holders = await self.holders()
        shares = [holders.count(name) for name in self.names]
        return "" if sum(shares) == SHARDS and max(shares) - min(shares) <= 1 else "the shards to be shared out"

    async def is_taken_over(self, at: int) -> bool:
        """Whether the others have taken over an instance that was killed."""
        others = [one for one in self.living() if one.name != self.names[at]]
        try:
            return all([self.names[at] not in await one.instances() for one in others])
        except NOT_THERE:
            return False

    # -- instances, nodes, links -------------------------------------------------------------------

    async def restart_instance(self, at: int) -> None:
        """As a supervisor does: the same name, the same port."""
        self.instances[at].close()
        self.instances[at] = self._instance(at)
        await self.instances[at].ready()

    def restart_node(self, at: int) -> None:
        self.nodes[at].close()
        self.nodes[at] = self._node(at)

    def restart_text_node(self, at: int) -> None:
        self.text_nodes[at].close()
        self.text_nodes[at] = self._text_node(at)

    def restart_room_node(self, at: int) -> None:
        self.room_nodes[at].close()
        self.room_nodes[at] = self._room_node(at)

    async def link(self, command: str, at: int) -> None:
        """`cut`, `stall` or `restore` what goes between an instance and Redis."""
        assert self._proxy is not None
        await self._proxy.call(command, link=self.names[at])

    # -- start -------------------------------------------------------------------------------------

    def _start_servers(self, binary: ServerBinary) -> None:
        """From the main thread, so that the kernel binds them to this process."""
        if self.setup.redis == "cluster":
            self.cluster = self._stack.enter_context(RedisCluster(binary, self.folder / "redis"))
            self.redis_urls = self.cluster.urls
        else:
            stores = self.folder / "redis"
            self.server = self._stack.enter_context(RedisServer(binary, stores, port=CHOOSE_PORT, fsync=self.fsync))
            self.redis_urls = [self.server.tcp_url]
        if self.setup.database == "postgres":
            self.postgres = self._stack.enter_context(PostgresServer(CARELESS))
            self.database = self.postgres.new_database()
        else:
            self.database = sqlite_url(self.folder)

    async def _start_proxy(self) -> None:
        self._proxy = self._stack.enter_context(LoadProcess(tcp_proxy.MODULE, self.folder / "proxy.log"))
        self._links = await self._proxy.call("open", links={name: list(self.redis_urls) for name in self.names})

    def _instance(self, at: int) -> InstanceProcess:
        name, port = self.names[at], self.ports[at]
        config = configured(self.setup, name, port, self._links[name], self.prefix, self.database)
        return InstanceProcess(config, self.folder / f"{name}.log")

    def _node(self, at: int) -> Process:
        name = self.node_names[at]
        urls = [part for port in self._ports_from(at) for part in ("--url", f"ws://127.0.0.1:{port}/ws/node")]
        options = ["--id", name, "--file", str(self.folder / f"{name}.events"), "--slots", str(SLOTS)]
        return Process(["-m", recording_node.MODULE, *urls, *options], self.folder / f"{name}.log")

    def _text_node(self, at: int) -> Process:
        """A simulated one. It takes long enough for an instance to be killed meanwhile; some jobs fail."""
        name, languages = list(TEXT_NODES.items())[at]
        return NodeProcess(
            self._ports_from(at),
            self.folder / f"{name}.log",
            node_id=name,
            recognise="none",
            engine="sim",
            languages=",".join(languages),
            slots=TEXT_SLOTS,
            delay_ms=200,
            jitter_ms=150,
            failure=0.03,
            seed=at,
        )

    def _room_node(self, at: int) -> Process:
        """A simulated one: its text names the utterance and the session."""
        name = ROOM_NODES[at]
        return NodeProcess(
            self._ports_from(at),
            self.folder / f"{name}.log",
            node_id=name,
            engine="sim",
            languages=room_load.SPOKEN,
            slots=SLOTS,
            delay_ms=200,
            jitter_ms=150,
            failure=0.03,
            empty=0.03,
            seed=at,
        )

    def _ports_from(self, at: int) -> list[int]:
        """A node begins with one instance, and connects to the next when that one is gone."""
        at %= len(self.ports)
        return self.ports[at:] + self.ports[:at]

    def _close_processes(self) -> None:
        for one in (*self._all_nodes, *self.instances):
            one.close()


def _replicated(cluster: RedisCluster) -> bool:
    """Whether each master has a replica that is in step: the next one to be killed needs it."""
    infos = [node.call("INFO", "replication") for node in cluster.nodes if node.running]
    masters = [text for text in infos if "role:master" in text]
    return len(masters) == MASTERS and all("state=online" in text for text in masters)
