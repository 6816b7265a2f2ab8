"""Ids of a sender rise, also when it goes on at an instance whose clock is behind, and also with two-phase off."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from dragoman.archive.sqlite import SqliteArchive
from dragoman.domain.chat.gate import Gate
from dragoman.domain.chat.switches import Switches
from dragoman.domain.chat.words import WordFilter
from dragoman.protocol.chat import decode_frame
from dragoman.services.chat.admission import Admission
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.courier import Courier
from dragoman.services.chat.desk import Desk, IdMaker
from dragoman.services.chat.inbound import ChatSocket
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.replicas import Replicas
from dragoman.services.chat.switchboard import Switchboard
from dragoman.services.chat.tokens import Tokens
from dragoman.services.chat.user import ChatUser
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Names, Shards
from dragoman.store.chat.users import Users
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from waiting import wait_until

SENDER, RECEIVER = 7, 9
AHEAD_MS = 60_000


class Socket:
    """What a client hears."""

    closed = False
    buffered = 0

    def __init__(self, id: int) -> None:
        self.id = id
        self.heard: list[dict[str, object]] = []

    def send(self, frame: bytes) -> None:
        self.heard.append(json.loads(frame))

    def close(self, code: int, reason: str = "") -> None:
        self.closed = True


class Fixed:
    """Switches that nobody changes."""

    def __init__(self, switches: Switches) -> None:
        self.current = switches


class House:
    """One instance, as far as a sender goes."""

    def __init__(
        self, name: str, worker: int, clock: Callable[[], int], redis: Redis, keys: Keys, database: Path, enabled: bool
    ) -> None:
        metrics, self.tasks = Metrics(), Tasks()
        self.archive, self.users = SqliteArchive(database), Users(redis, keys, 45_000)
        stream = f"{keys.im}:stream:single_chat"
        shards = Shards(redis, keys, Names(f"{stream}:accepted", f"{stream}:to_save", "deliver", "save"), 1, 600_000)
        here, self.tokens = LocalUsers(metrics, 60.0), Tokens(["a secret of thirty-two characters"], "us", 600, 600)
        courier = Courier(name, here, self.users, Inboxes(redis, keys, InboxSettings()), metrics)
        receipts = Receipts(self.archive, self.users, courier, metrics, self.tasks)
        ids = IdMaker(clock)
        ids.use(worker)
        switchboard = cast(Switchboard, Fixed(Switches(enabled=enabled, rollout_percent=0)))
        desk = Desk(
            name, shards, self.archive, courier, switchboard, WordFilter(()), metrics, self.tasks, Gate(), ids, 5.0,
            cast(Replicas, None),
        )  # fmt: skip
        self.admission = Admission(
            name, self.tokens, self.users, here, shards, self.archive, courier, receipts, desk, self.tasks
        )

    async def send(self, connection: int, body: str) -> int:
        """Come in, send, and hear saved; answers its serverMsgId."""
        socket = Socket(connection)
        token = self.tokens.access(SENDER, 0, now_ms() / 1000)
        user = await self.admission.admit(cast(ChatSocket, socket), token)
        assert isinstance(user, ChatUser)
        said = {"type": "SINGLE_CHAT", "clientMsgId": body, "to": RECEIVER, "body": body}
        user.outbound.take(decode_frame(json.dumps(said).encode()))
        await wait_until(lambda: any(frame.get("ackType") == "saved" for frame in socket.heard))
        (told,) = [frame for frame in socket.heard if frame.get("ackType") == "saved"]
        return int(str(told["serverMsgId"]))

    async def close(self) -> None:
        await self.tasks.settled()
        await self.archive.close()


@asynccontextmanager
async def two_houses(redis: Redis, keys: Keys, tmp_path: Path, enabled: bool) -> AsyncIterator[tuple[House, House]]:
    """Of the first the clock is a minute ahead."""
    database = tmp_path / "chat.sqlite3"
    ahead = House("i1", 1, lambda: now_ms() + AHEAD_MS, redis, keys, database, enabled)
    behind = House("i2", 2, now_ms, redis, keys, database, enabled)
    try:
        yield ahead, behind
    finally:
        await asyncio.gather(ahead.close(), behind.close())
        await redis.call("DEL", keys.shard(ahead.admission._shards._tags[0]))


@pytest.mark.parametrize("enabled", [False, True])
async def test_ids_rise_for_a_sender_that_goes_on_where_the_clock_is_behind(
    redis: Redis, keys: Keys, tmp_path: Path, enabled: bool
) -> None:
    async with two_houses(redis, keys, tmp_path, enabled) as (ahead, behind):
        first = await ahead.send(1, "one")
        second = await behind.send(2, "two")
        assert second > first
        assert await ahead.send(3, "three") > second
