"""Receipts of receivers, with a Redis and a database: none is lost with the instance that had it in its hands."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from dragoman.archive import Applied, NewMessage, Receipt, Status
from dragoman.archive.sqlite import SqliteArchive
from dragoman.domain.chat.message_ids import MessageIds
from dragoman.protocol.chat import Frame, Reason
from dragoman.services.chat.delivery import Delivery
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.local_users import ChatUser, LocalUsers
from dragoman.services.chat.receipts import Receipts
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from support.waiting import wait_until

SENDER, RECEIVER = 7, 9
ID = MessageIds(1).draw(now_ms())
# Of an instance whose clock is wrong, or of one that had to pass such an id.
FUTURE_ID = MessageIds(1).draw(now_ms() + 3_600_000)


class SlowArchive(SqliteArchive):
    """Its receipts wait until somebody lets them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked, self.go, self.answers = asyncio.Event(), asyncio.Event(), 0

    async def receipts(self, given: Sequence[Receipt]) -> list[Applied]:
        self.asked.set()
        await self.go.wait()
        applied = await super().receipts(given)
        self.answers += 1
        return applied


class LostUsers(Users):
    """Redis is away for them while somebody says so."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        super().__init__(redis, keys, 45_000)
        self.away, self.refused = False, asyncio.Event()

    async def park_early(self, user: int, receipts: Sequence[tuple[int, int]]) -> None:
        if self.away:
            self.refused.set()
            raise RedisAway("not there")
        await super().park_early(user, receipts)


class Giver:
    """A receiver, as far as its receipts go."""

    id = RECEIVER

    def acknowledged_any(self) -> None:
        pass

    @property
    def inbound(self) -> "Giver":
        return self

    def acknowledge(self, id: int) -> tuple[int, ...]:
        return (id,)

    def error(self, reason: Reason, client_msg_id: str | None = None, server_msg_id: int | None = None) -> None:
        raise AssertionError(f"told {reason} of {server_msg_id}")


class ReceiptsEnv:
    """One instance, as far as receipts go."""

    def __init__(self, redis: Redis, keys: Keys, database: Path) -> None:
        metrics, self.tasks = Metrics(), Tasks()
        self.archive, self.users = SlowArchive(database), LostUsers(redis, keys)
        inboxes = Inboxes(redis, keys, InboxSettings())
        delivery = Delivery("i1", LocalUsers(metrics, self.tasks, 60.0), self.users, inboxes, metrics, self.tasks)
        self.receipts = Receipts(self.archive, self.users, delivery, metrics, self.tasks)

    async def status(self, id: int = ID) -> Status:
        return (await self.archive.messages([id]))[id].status

    async def close(self) -> None:
        await self.tasks.cancel()
        await self.archive.close()


@asynccontextmanager
async def receipts_env(redis: Redis, keys: Keys, tmp_path: Path) -> AsyncIterator[ReceiptsEnv]:
    made = ReceiptsEnv(redis, keys, tmp_path / "chat.sqlite3")
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("parked", [Status.DELIVERED, Status.READ])
async def test_an_early_receipt_outlives_the_instance_that_was_about_to_write_it(
    redis: Redis, keys: Keys, tmp_path: Path, parked: Status
) -> None:
    async with receipts_env(redis, keys, tmp_path) as dying:
        await dying.users.park_early(RECEIVER, [(ID, int(parked))])
        await dying.archive.save([NewMessage(ID, "m", SENDER, RECEIVER, "TEXT", "hello", 0)])
        assert await dying.receipts.apply_early(RECEIVER, [ID]) == {ID}
        await dying.archive.asked.wait()
    async with receipts_env(redis, keys, tmp_path) as heir:
        heir.archive.go.set()
        await heir.receipts.apply_early(RECEIVER)
        await heir.tasks.settled()
        assert await heir.status() is parked
        assert not await redis.call("EXISTS", keys.early(RECEIVER)), "and is kept no longer than that"


async def test_an_early_receipt_for_what_is_no_row_yet_stays(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    async with receipts_env(redis, keys, tmp_path) as here:
        here.archive.go.set()
        await here.users.park_early(RECEIVER, [(ID, int(Status.READ))])
        await here.receipts.apply_early(RECEIVER)
        await here.tasks.settled()
        assert await here.users.early(RECEIVER, [ID]) == [(ID, Status.READ)]


async def test_a_receipt_that_rises_while_the_lower_one_is_written_stays(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with receipts_env(redis, keys, tmp_path) as here:
        await here.archive.save([NewMessage(ID, "m", SENDER, RECEIVER, "TEXT", "hello", 0)])
        await here.users.park_early(RECEIVER, [(ID, int(Status.DELIVERED))])
        await here.receipts.apply_early(RECEIVER, [ID])
        await here.archive.asked.wait()
        await here.users.park_early(RECEIVER, [(ID, int(Status.READ))])
        here.archive.go.set()
        await here.tasks.settled()
        assert await here.users.early(RECEIVER, [ID]) == [(ID, Status.READ)]


async def test_early_receipt_survives_a_redis_outage(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    """Its message would be sent again at the next AUTH, though the receiver has said that it has it."""
    async with receipts_env(redis, keys, tmp_path) as here:
        here.archive.go.set()
        here.users.away = True
        here.receipts.receive(cast(ChatUser, Giver()), Frame(type="ACK", ackType="delivered", serverMsgId=ID))
        await wait_until(lambda: here.archive.answers >= 2, what="both looks for the row")
        await here.archive.save([NewMessage(ID, "m", SENDER, RECEIVER, "TEXT", "hello", 0)])
        await here.tasks.settled()
        assert await here.status() is Status.DELIVERED


async def test_an_early_receipt_is_parked_when_redis_is_back(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    async with receipts_env(redis, keys, tmp_path) as here:
        here.archive.go.set()
        here.users.away = True
        here.receipts.receive(cast(ChatUser, Giver()), Frame(type="ACK", ackType="read", serverMsgId=ID))
        await here.users.refused.wait()
        here.users.away = False
        await here.tasks.settled()
        assert await here.users.early(RECEIVER, [ID]) == [(ID, Status.READ)]


async def test_a_receipt_counts_however_far_ahead_the_clock_was_that_made_the_id(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    """Ids rise for all when one is ahead: were they doubted, no receipt would count until the clocks get there."""
    async with receipts_env(redis, keys, tmp_path) as here:
        here.archive.go.set()
        await here.archive.save([NewMessage(FUTURE_ID, "m", SENDER, RECEIVER, "TEXT", "hello", 0)])
        here.receipts.receive(cast(ChatUser, Giver()), Frame(type="ACK", ackType="delivered", serverMsgId=FUTURE_ID))
        await here.tasks.settled()
        assert await here.status(FUTURE_ID) is Status.DELIVERED


async def test_an_early_receipt_for_such_an_id_is_parked_like_any_other(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with receipts_env(redis, keys, tmp_path) as here:
        here.archive.go.set()
        here.receipts.receive(cast(ChatUser, Giver()), Frame(type="ACK", ackType="read", serverMsgId=FUTURE_ID))
        await here.tasks.settled()
        assert await here.users.early(RECEIVER, [FUTURE_ID]) == [(FUTURE_ID, Status.READ)]
