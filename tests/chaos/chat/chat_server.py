"""A chat server to be broken: real instances, a database, and the verdict over what a load was told.

    async with chat_server(redis_at, tmp_path, prefix) as server:
        a, b = await server.two(SAVE_FIRST)
        async with chat_load(server.ports, ledger) as load:
            …                              # break something
            await load.stop_and_settle()
        await server.passes(ledger)        # rows, dead letters, order, and shards at rest

`passes` is the same for every fault: nothing lost, nothing twice, nothing out of order, and nothing left over.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from dragoman.archive import Stored
from dragoman.archive.rows import COLUMNS, stored
from dragoman.domain.chat.shards import shard_of, tag
from dragoman.store.chat.cluster import WORKERS
from dragoman.store.chat.entries import ShardStatus
from dragoman.store.chat.shards import Shards, StreamNames
from dragoman.store.errors import StoreError
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.processes import InstanceProcess
from dragoman.tools.verify.chat_ledger import ChatLedger, Name, Tolerated, nothing
from dragoman.tools.verify.clients import ChatLoad
from support.chat import ChatSpeaker
from support.cluster import Cluster, running
from support.redis_servers import RedisAt, connected
from support.waiting import wait_until

TIMEOUT_S = 60.0
SHARDS = 4
OFF: dict[str, object] = {"chat__two_phase__enabled": False}
SAVE_FIRST: dict[str, object] = {"chat__two_phase__enabled": True}
DELIVER_FIRST: dict[str, object] = {**SAVE_FIRST, "chat__two_phase__deliver_before_saved": True}
MODES = {"off": OFF, "save_first": SAVE_FIRST, "deliver_first": DELIVER_FIRST}
# For what takes long: one of them each time, all of them in the long matrix.
IN_TURN = ("save_first", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("deliver_first", "off")))


class ChatServer:
    def __init__(self, cluster: Cluster, redis: Redis, database: str) -> None:
        self.cluster, self.redis, self.database = cluster, redis, database
        self.keys = Keys(cluster.prefix)
        root = "" if cluster.prefix == "scheduler" else f"{cluster.prefix}:"
        names = StreamNames(
            f"{root}im:stream:single_chat:accepted",
            f"{root}im:stream:single_chat:to_save",
            "im:cg:single_chat:deliver",
            "im:cg:single_chat:save",
        )
        self.shards = Shards(redis, self.keys, names, SHARDS, 60_000)
        self.instances: list[InstanceProcess] = []

    # -- instances -------------------------------------------------------------------------------

    @property
    def ports(self) -> list[int]:
        return [one.port for one in self.instances]

    async def instance(self, mode: Mapping[str, object] = SAVE_FIRST, **flags: object) -> InstanceProcess:
        chosen: dict[str, object] = {
            "archive__url": self.database,
            "archive__busy_ms": 200,
            "chat__two_phase__shards": SHARDS,
            "chat__resend_after_s": 5.0,
            "limits__chat_frames_per_s": 100_000,
            "server__drain_s": 1,
            **mode,
            **flags,
        }
        started = await self.cluster.instance(**chosen)
        self.instances.append(started)
        return started

    async def two(
        self, mode: Mapping[str, object] = SAVE_FIRST, **flags: object
    ) -> tuple[InstanceProcess, InstanceProcess]:
        """Two instances that have shared the shards out."""
        a, b = await self.instance(mode, **flags), await self.instance(mode, **flags)
        await wait_until(self.is_shared, TIMEOUT_S, "every shard to have a holder, evenly")
        return a, b

    async def is_shared(self) -> bool:
        holders = await self.holders()
        shares = [holders.count(name) for name in set(holders)]
        return "" not in holders and len(shares) == len(self.instances) and max(shares) - min(shares) <= 1

    async def holders(self) -> list[str]:
        """The instance that holds each shard, '' where none does."""
        return [tally.holder.partition("|")[0] for tally in await self.tallies()]

    async def tallies(self) -> list[ShardStatus]:
        return [await self.shards.status(shard) for shard in range(SHARDS)]

    async def switch(self, **switches: object) -> None:
        """For the whole cluster, while it runs."""
        texts = [part for name, value in switches.items() for part in (name, str(value).lower())]
        await self.redis.call("HSET", self.keys.chat_switches, *texts)

    async def speaker(self, instance: InstanceProcess, uid: int) -> ChatSpeaker:
        """One raw client, let in."""
        ws = await self.cluster._http.ws_connect(f"ws://127.0.0.1:{instance.port}/ws", max_msg_size=0)
        speaker = ChatSpeaker(uid, ws)
        await speaker.auth()
        return speaker

    async def left_over(self) -> list[str]:
        """Leases and worker numbers that somebody has."""
        found = list[str]()
        for shard in range(SHARDS):
            if await self.redis.call("EXISTS", self.keys.lease(tag(shard))):
                found.append(f"lease of shard {shard}")
        for number in range(WORKERS):
            if await self.redis.call("EXISTS", self.keys.worker(number)):
                found.append(f"worker {number}")
        return found

    # -- what is there ---------------------------------------------------------------------------

    async def rows(self) -> list[Stored]:
        if self.database.startswith("postgresql"):
            db = await asyncpg.connect(self.database)
            try:
                return [stored(row) for row in await db.fetch(f"SELECT {COLUMNS} FROM message ORDER BY id")]
            finally:
                await db.close()
        with closing(self.sqlite()) as file:
            return [stored(row) for row in file.execute(f"SELECT {COLUMNS} FROM message ORDER BY id")]

    def sqlite(self) -> sqlite3.Connection:
        return sqlite3.connect(self.database.removeprefix("sqlite:///"), timeout=30, isolation_level=None)

    @contextmanager
    def database_locked(self) -> Iterator[None]:
        """SQLite: nobody else can write meanwhile."""
        with closing(self.sqlite()) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")

    async def backlog(self) -> int:
        return sum([tally.backlog for tally in await self.tallies()])

    async def dead(self) -> list[Name]:
        found = list[Name]()
        for shard in range(SHARDS):
            for _, fields in await self.redis.call("XRANGE", self.shards.dead(shard), "-", "+"):
                texts = dict(zip(fields[::2], fields[1::2], strict=True))
                found.append(Name(int(texts[b"fromUserId"]), texts[b"clientMsgId"].decode()))
        return found

    async def is_at_rest(self) -> bool:
        try:
            found = await self.tallies()
        except StoreError:  # a master that was killed, which we have not noticed yet
            return False
        return all((one.backlog, one.accepted_len, one.to_save_len) == (0, 0, 0) for one in found)

    # -- the verdict -----------------------------------------------------------------------------

    async def passes(
        self, ledger: ChatLedger, *, tolerated: Tolerated = nothing, balanced: bool = True, **how: Any
    ) -> list[Stored]:
        """`balanced`: no Redis lost what it had counted."""
        await wait_until(self.is_at_rest, TIMEOUT_S, "the shards to be empty")
        rows = await self.rows()
        broken = ledger.check(rows, await self.dead(), tolerated=tolerated, **how)
        assert not broken, f"{len(broken)} promises broken ({ledger.summary()}): {broken[:10]}\n{self.cluster.logs()}"
        for tally in await self.tallies():
            assert not balanced or tally.accepted == tally.saved + tally.dead
        for shard in range(SHARDS):
            unsaved = await self.redis.call("HGETALL", self.keys.unsaved(tag(shard)))
            assert unsaved == [], f"shard {shard} counts messages as unsaved that are not there: {unsaved}"
        return rows


@asynccontextmanager
async def chat_server(
    redis: RedisAt, folder: Path, prefix: str | None = None, database: str | None = None
) -> AsyncIterator[ChatServer]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running(redis, folder, prefix))
        client = await stack.enter_async_context(connected(redis))
        yield ChatServer(cluster, client, database or f"sqlite:///{folder / 'chat.sqlite3'}")


def of_shard(shard: int, count: int, first: int = 5001) -> list[int]:
    """So many users whose messages go through this shard."""
    found = list[int]()
    uid = first
    while len(found) < count:
        if shard_of(uid, SHARDS) == shard:
            found.append(uid)
        uid += 1
    return found


def told(ledger: ChatLedger, what: str) -> int:
    """How many messages are known by their senders as `accepted` or `saved`."""
    return ledger.count(lambda entry: getattr(entry, f"{what}_at") is not None)


async def until_told(ledger: ChatLedger, what: str, count: int, timeout_s: float = TIMEOUT_S) -> None:
    await wait_until(lambda: told(ledger, what) >= count, timeout_s, f"{count} to be {what}")


def flap(load: ChatLoad, users: Sequence[int]) -> None:
    """These lose their connections and come back on the next instance."""
    for one in load.users:
        if one.uid in users:
            one.reconnect()
