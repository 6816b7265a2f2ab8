"""Coming in while Redis is away: nothing is overtaken, nobody is thrown out, and no word is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from chat_house import OWNER_TTL_MS, House, Socket
from dragoman.archive import NewMessage, Verdict
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.inbound import frame_of
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

SENDER, RECEIVER = 7, 9


class FailingUsers(Users):
    """Redis is away for the owner's name while somebody says so, or slow to answer once it is written."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        super().__init__(redis, keys, OWNER_TTL_MS)
        self.away = False
        self.written, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def swap_owner(self, user: int, owner: str) -> str:
        if self.away:
            raise RedisAway("not there")
        before = await super().swap_owner(user, owner)
        self.written.set()
        await self.go_on.wait()
        return before


@asynccontextmanager
async def house_at(redis: Redis, keys: Keys, tmp_path: Path) -> AsyncIterator[tuple[House, FailingUsers]]:
    users = FailingUsers(redis, keys)
    house = House("i1", 1, redis, keys, tmp_path / "chat.sqlite3", users=users)
    try:
        yield house, users
    finally:
        await house.close()


async def save(house: House, body: str) -> int:
    """By somebody who could not bring it here."""
    row = NewMessage(house.ids.draw(), body, SENDER, RECEIVER, "TEXT", body, now_ms())
    (outcome,) = await house.archive.save([row])
    assert outcome.verdict is Verdict.SAVED
    return row.id


async def save_and_push(house: House, body: str) -> None:
    """By somebody who knows that the receiver is here."""
    id = await save(house, body)
    (row,) = [row for row in await house.archive.undelivered(RECEIVER, id - 1, 1) if row.id == id]
    assert house.here.push(RECEIVER, id, SENDER, frame_of(row))


async def test_who_is_known_late_gets_what_was_saved_before_that_ahead_of_what_is_pushed_to_it(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with house_at(redis, keys, tmp_path) as (house, users):
        users.away, socket = True, Socket(1)
        user = await house.come_in(RECEIVER, socket)
        assert not user.verified
        await save(house, "older")
        users.away = False
        await house.admission.run_once()
        await save_and_push(house, "newer")
        await house.tasks.settled()
        assert await users.owners([RECEIVER]) == ["i1|1"]
        assert socket.messages == ["older", "newer"]


async def test_what_is_pushed_before_redis_has_answered_waits_as_well(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    """Others know where it is as soon as it is written."""
    async with house_at(redis, keys, tmp_path) as (house, users):
        users.away, socket = True, Socket(1)
        await house.come_in(RECEIVER, socket)
        await save(house, "older")
        users.away = False
        users.written.clear()
        users.go_on.clear()
        verifying = asyncio.ensure_future(house.admission.run_once())
        await users.written.wait()
        await save_and_push(house, "newer")
        users.go_on.set()
        await verifying
        await house.tasks.settled()
        assert socket.messages == ["older", "newer"]


async def test_whom_redis_forgot_gets_what_was_saved_meanwhile_ahead_of_what_is_pushed_to_it(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with house_at(redis, keys, tmp_path) as (house, users):
        socket = Socket(1)
        await house.come_in(RECEIVER, socket)
        await redis.call("DEL", keys.user_owner(RECEIVER))
        await save(house, "older")
        await house.admission.renew()
        assert await users.owners([RECEIVER]) == ["i1|1"]
        await save_and_push(house, "newer")
        await house.tasks.settled()
        assert socket.messages == ["older", "newer"]
