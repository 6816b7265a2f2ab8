"""A sender that goes on elsewhere does not overtake itself: not what an instance without Redis could not push, and not
what waits in an inbox."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.domain.chat import sent_messages
from dragoman.protocol.peer import ChatPush, EarlyPushes, decode_inbox
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from integration.services.chat.in_process_chat import OWNER_TTL_MS, InProcessChat, Socket

SENDER, RECEIVER = 7, 9


class CutOffUsers(Users):
    """Redis goes away once somebody has come in."""

    async def owners(self, users: Sequence[int]) -> list[str]:
        raise RedisAway("not there")

    async def leave(self, user: int, owner: str) -> None:
        raise RedisAway("not there")


@asynccontextmanager
async def two_instances(
    redis: Redis, keys: Keys, tmp_path: Path, others: Users | None = None
) -> AsyncIterator[tuple[InProcessChat, InProcessChat]]:
    """The first is cut off from Redis."""
    database = tmp_path / "chat.sqlite3"
    cut_off = InProcessChat("i1", 1, redis, keys, database, users=CutOffUsers(redis, keys, OWNER_TTL_MS))
    other = InProcessChat("i2", 2, redis, keys, database, users=others)
    try:
        yield cut_off, other
    finally:
        await asyncio.gather(cut_off.close(), other.close())
        await redis.call("DEL", keys.shard(other.shards._tags[0]))


async def test_unpushed_saved_message_is_delivered_before_later_ones_from_another_instance(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with two_instances(redis, keys, tmp_path) as (cut_off, other):
        socket = Socket(1)
        await other.come_in(RECEIVER, socket)
        await cut_off.send(SENDER, RECEIVER, 2, "one")
        assert socket.messages == []
        await other.send(SENDER, RECEIVER, 3, "two")
        await other.tasks.settled()
        assert socket.messages == ["one", "two"]


async def test_nor_if_redis_is_back_just_when_it_leaves(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    """Its name must not go before those who missed something know it: by that name it is seen where it was."""
    async with two_instances(redis, keys, tmp_path) as (cut_off, other):
        socket = Socket(1)
        await other.come_in(RECEIVER, socket)
        await cut_off.send(SENDER, RECEIVER, 2, "one")
        sender = cut_off.local.get(SENDER)
        assert sender is not None
        cut_off.admission._users = other.users
        await cut_off.admission.disconnected(sender)
        await other.send(SENDER, RECEIVER, 3, "two")
        await other.tasks.settled()
        assert socket.messages == ["one", "two"]


class UsersAwayOnce(Users):
    """Redis does not say where the first one that comes in was before."""

    said = False

    async def swap_owner(self, user: int, owner: str) -> str:
        if user != SENDER or self.said:
            return await super().swap_owner(user, owner)
        self.said = True
        raise RedisAway("not there")


async def test_unpushed_message_keeps_its_order_while_its_sender_is_not_located(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with two_instances(redis, keys, tmp_path, UsersAwayOnce(redis, keys, OWNER_TTL_MS)) as (cut_off, other):
        socket = Socket(1)
        await other.come_in(RECEIVER, socket)
        await cut_off.send(SENDER, RECEIVER, 2, "one")
        await other.send(SENDER, RECEIVER, 3, "two")
        await other.tasks.settled()
        assert socket.messages == ["one", "two"]


async def read_inbox(chat: InProcessChat, name: str) -> None:
    """What the reader of this instance would do."""
    for entry in await chat.delivery.inboxes.unread(name, 10):
        message = decode_inbox(entry.data)
        assert isinstance(message, ChatPush | EarlyPushes)
        if isinstance(message, ChatPush):
            chat.local.on_push(message)
        else:
            chat.early.on_pushes(message)


@pytest.mark.parametrize("early", [True, False], ids=["delivered before saved", "one phase"])
@pytest.mark.parametrize("here", [True, False], ids=["its receiver's instance", "a third instance"])
async def test_message_of_a_sender_that_reconnects_does_not_overtake_one_in_a_slow_inbox(
    redis: Redis, keys: Keys, tmp_path: Path, here: bool, early: bool
) -> None:
    database, socket, rollout = tmp_path / "chat.sqlite3", Socket(1), 100 if early else 0
    former = InProcessChat("i1", 1, redis, keys, database)
    slow, third = (
        InProcessChat(name, number, redis, keys, database, enabled=early, rollout_percent=rollout,
                      deliver_before_saved=early)
        for number, name in enumerate(("i2", "i3"), 2)
    )  # fmt: skip
    await Instances(redis, keys).open("i2", "incarnation", former.delivery.inboxes.settings.group)
    try:
        await slow.come_in(RECEIVER, socket)
        await former.send(SENDER, RECEIVER, 2, "one")
        sender = former.local.get(SENDER)
        assert sender is not None
        await former.admission.disconnected(sender)
        ack = "accepted" if early else "saved"
        await (slow if here else third).send_until(ack, SENDER, RECEIVER, 3, "two")
        await asyncio.gather(slow.tasks.settled(), third.tasks.settled())
        assert socket.messages == []
        await read_inbox(slow, "i2")
        assert socket.messages == ["one", "two"]
    finally:
        await asyncio.gather(former.close(), slow.close(), third.close())


class UnaskedUsers(Users):
    def owner(self, user: int) -> "asyncio.Future[bytes | None]":
        raise AssertionError(f"Redis is asked where user {user} is")


async def test_receiver_on_the_instance_of_its_sender_gets_a_message_early_without_a_question_to_redis(
    redis: Redis, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_messages, "RECENT_S", 0.0)  # of a sender that has been connected for long
    users, socket = UnaskedUsers(redis, keys, OWNER_TTL_MS), Socket(1)
    chat = InProcessChat(
        "i1", 1, redis, keys, tmp_path / "chat.sqlite3", enabled=True, rollout_percent=100, deliver_before_saved=True,
        users=users,
    )  # fmt: skip
    try:
        await chat.come_in(RECEIVER, socket)
        await chat.send_until("accepted", SENDER, RECEIVER, 2, "one")
        await chat.tasks.settled()
        assert socket.messages == ["one"]
    finally:
        await chat.close()
