"""Coming in while Redis is away: nothing is overtaken, nobody is thrown out, and no word is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.archive import NewMessage, SaveVerdict
from dragoman.protocol import chat as wire
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import ChatKick, ChatOwnerCheck, ChatResend, decode_inbox
from dragoman.services.chat.delivery import SenderNotice
from dragoman.services.chat.inbound import ChatSocket, frame_of, now_ms
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway, UnknownOutcome
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script
from integration.services.chat.in_process_chat import OWNER_TTL_MS, InProcessChat, Socket
from support.waiting import wait_until

SENDER, RECEIVER = 7, 9


class FailingUsers(Users):
    """Redis is away for the owner's name while somebody says so, or slow to write it, or to answer once it has."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        super().__init__(redis, keys, OWNER_TTL_MS)
        self.away = False
        self.unreachable = set[int]()  # users whose master is away
        self.write, self.written, self.answer = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.asked = asyncio.Event()
        self.write.set()
        self.answer.set()

    async def swap_owner(self, user: int, owner: str) -> str:
        if self.away or user in self.unreachable:
            raise RedisAway("not there")
        return await asyncio.shield(self._swap_owner(user, owner))  # once it is sent, nobody can take it back

    async def renew(self, user: int, owner: str) -> str:
        if user in self.unreachable:
            raise RedisAway("not there")
        return await super().renew(user, owner)

    async def _swap_owner(self, user: int, owner: str) -> str:
        self.asked.set()
        await self.write.wait()
        before = await super().swap_owner(user, owner)
        self.written.set()
        await self.answer.wait()
        return before


@asynccontextmanager
async def chat_at(redis: Redis, keys: Keys, tmp_path: Path) -> AsyncIterator[tuple[InProcessChat, FailingUsers]]:
    users = FailingUsers(redis, keys)
    chat = InProcessChat("i1", 1, redis, keys, tmp_path / "chat.sqlite3", users=users)
    try:
        yield chat, users
    finally:
        await chat.close()


async def save(chat: InProcessChat, body: str) -> int:
    """By somebody who could not bring it here."""
    row = NewMessage(chat.ids.draw(), body, SENDER, RECEIVER, "TEXT", body, now_ms())
    (outcome,) = await chat.archive.save([row])
    assert outcome.verdict is SaveVerdict.SAVED
    return row.id


async def save_and_push(chat: InProcessChat, body: str) -> None:
    """By somebody who knows that the receiver is here."""
    id = await save(chat, body)
    (row,) = [row for row in await chat.archive.undelivered(RECEIVER, id - 1, 1) if row.id == id]
    assert chat.local.push(RECEIVER, id, SENDER, frame_of(row))


async def look_twice(chat: InProcessChat) -> None:
    """It is asked whether it is still there, and has answered."""
    await chat.admission.run_once()
    await chat.admission.run_once()


async def test_late_connection_gets_saved_messages_before_pushed_ones(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        users.away, socket = True, Socket(1)
        user = await chat.come_in(RECEIVER, socket)
        assert not user.verified
        await save(chat, "older")
        users.away = False
        await look_twice(chat)
        await save_and_push(chat, "newer")
        await chat.tasks.settled()
        assert await users.owners([RECEIVER]) == ["i1|1"]
        assert socket.messages == ["older", "newer"]


async def test_pushed_message_waits_until_redis_has_answered(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    """Others know where it is as soon as it is written."""
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        users.away, socket = True, Socket(1)
        await chat.come_in(RECEIVER, socket)
        await save(chat, "older")
        users.away = False
        users.answer.clear()
        verifying = asyncio.ensure_future(look_twice(chat))
        await users.written.wait()
        await save_and_push(chat, "newer")
        users.answer.set()
        await verifying
        await chat.tasks.settled()
        assert socket.messages == ["older", "newer"]


async def test_late_owner_key_still_sends_older_messages_first(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        users.away, socket = True, Socket(1)
        user = await chat.come_in(RECEIVER, socket)
        users.away = False
        users.write.clear()
        verifying = asyncio.ensure_future(look_twice(chat))
        await users.asked.wait()
        verifying.cancel()
        await asyncio.wait([verifying])
        await chat.tasks.settled()
        await save(chat, "older")
        users.write.set()
        await users.written.wait()
        await save_and_push(chat, "newer")
        await wait_until(lambda: not user.inbound._state.resending)
        assert socket.messages == ["older", "newer"]


async def test_one_that_is_ended_by_a_newer_one_before_it_came_in_ends_the_one_before_it(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    """Of three, the second knows of the first, and the third of the second."""
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        first, second = Socket(1), Socket(2)
        await chat.come_in(RECEIVER, first)
        users.written.clear()
        users.answer.clear()
        token = chat.tokens.access(RECEIVER, 0, now_ms() / 1000)
        coming = asyncio.ensure_future(chat.admission.admit(cast(ChatSocket, second), token))
        await users.written.wait()
        await Users(redis, keys, OWNER_TTL_MS).swap_owner(RECEIVER, "i2|3")  # the third
        chat.local.on_kick(ChatKick(RECEIVER, 2))
        users.answer.set()
        await coming
        assert second.closed
        assert first.closed


async def test_a_closed_connection_whose_owner_key_is_written_late_does_not_end_the_newer_connection(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    """The client reconnected elsewhere while its first instance waited for Redis. The newer connection stays the
    owner, and is sent what was pushed to the closed one meanwhile."""
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        elsewhere = InProcessChat("i2", 2, redis, keys, tmp_path / "chat.sqlite3")
        await Instances(redis, keys).open("i2", "incarnation", chat.delivery.inboxes.settings.group)
        older, newer = Socket(1), Socket(2)
        users.write.clear()
        token = chat.tokens.access(RECEIVER, 0, now_ms() / 1000)
        coming = asyncio.ensure_future(chat.admission.admit(cast(ChatSocket, older), token))
        await users.asked.wait()
        older.close(1001)
        await elsewhere.come_in(RECEIVER, newer)
        users.answer.clear()
        users.write.set()
        await users.written.wait()
        await save_and_push(chat, "sent to the closed connection")
        users.answer.set()
        await coming
        await chat.delivery.run_once()
        (entry,) = await chat.delivery.inboxes.unread("i2", 10)
        request = decode_inbox(entry.data)
        assert isinstance(request, ChatResend)
        elsewhere.local.on_resend_request(request)
        await elsewhere.tasks.settled()
        assert not newer.closed
        assert await users.owners([RECEIVER]) == ["i2|2"]
        assert newer.messages == ["sent to the closed connection"]
        await elsewhere.close()


async def test_a_connection_whose_auth_is_under_way_is_closed_with_all_others(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    """The instance starts over: nobody it knew before may stay."""
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        users.answer.clear()
        socket, token = Socket(1), chat.tokens.access(RECEIVER, 0, now_ms() / 1000)
        coming = asyncio.ensure_future(chat.admission.admit(cast(ChatSocket, socket), token))
        await users.written.wait()
        chat.local.close_all(Close.LEASE_LOST)
        users.answer.set()
        await coming
        assert socket.closed
        assert chat.local.get(RECEIVER) is None
        assert await users.owners([RECEIVER]) == [""]


async def test_a_connection_that_is_dead_does_not_end_the_one_its_user_has_elsewhere(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        users.away, socket = True, Socket(1)
        user = await chat.come_in(RECEIVER, socket)
        socket.frames += 1  # the last it could say
        socket.dead, users.away = True, False
        elsewhere = InProcessChat("i2", 2, redis, keys, tmp_path / "chat.sqlite3")
        await elsewhere.come_in(RECEIVER, Socket(2))
        for _ in range(2):
            await look_twice(chat)
        assert not user.verified
        assert socket.pings == 1
        assert await users.owners([RECEIVER]) == ["i2|2"]
        await elsewhere.close()


async def test_user_whose_owner_key_redis_lost_gets_saved_messages_before_pushed_ones(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        socket = Socket(1)
        await chat.come_in(RECEIVER, socket)
        await redis.call("DEL", keys.user_owner(RECEIVER))
        await save(chat, "older")
        await chat.admission.renew()
        assert await users.owners([RECEIVER]) == ["i1|1"]
        await save_and_push(chat, "newer")
        await chat.tasks.settled()
        assert socket.messages == ["older", "newer"]


async def test_users_of_other_masters_are_verified_while_one_master_is_away(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        users.away = True
        first, second = await chat.come_in(SENDER, Socket(1)), await chat.come_in(RECEIVER, Socket(2))
        users.away, users.unreachable = False, {SENDER}
        await chat.admission.run_once()
        with pytest.raises(RedisAway):
            await chat.admission.run_once()
        assert (first.verified, second.verified) == (False, True)


async def test_owner_keys_on_other_masters_are_renewed_while_one_master_is_away(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        await chat.come_in(SENDER, Socket(1))
        await chat.come_in(RECEIVER, Socket(2))
        await redis.call("DEL", keys.user_owner(RECEIVER))
        users.unreachable = {SENDER}
        with pytest.raises(RedisAway):
            await chat.admission.renew()
        assert await users.owners([RECEIVER]) == ["i1|2"]


async def test_owner_key_of_a_connection_that_died_with_its_instance_does_not_end_a_live_one(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    """Redis executed the write of an instance that was killed after that of the instance the client moved to."""
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        socket = Socket(1)
        await chat.come_in(RECEIVER, socket)
        await users.swap_owner(RECEIVER, "dead|7")
        await save(chat, "pushed to nobody")
        await chat.admission.renew()
        await chat.tasks.settled()
        assert not socket.closed
        assert await users.owners([RECEIVER]) == ["i1|1"]
        assert socket.messages == ["pushed to nobody"]


@pytest.mark.parametrize("is_open", [True, False])
async def test_only_an_open_connection_that_the_owner_key_names_ends_another(
    redis: Redis, keys: Keys, tmp_path: Path, is_open: bool
) -> None:
    """Open: it is the newer one, and its kick was lost. Closed: its key was written late."""
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        elsewhere = InProcessChat("i2", 2, redis, keys, tmp_path / "chat.sqlite3")
        inboxes = chat.delivery.inboxes
        for name in ("i1", "i2"):
            await Instances(redis, keys).open(name, "incarnation", inboxes.settings.group)
        asking, other = Socket(1), Socket(2)
        await chat.come_in(RECEIVER, asking)
        if is_open:
            await elsewhere.come_in(RECEIVER, other)
            (lost,) = await inboxes.unread("i1", 10)
            assert isinstance(decode_inbox(lost.data), ChatKick)
        else:
            await users.swap_owner(RECEIVER, "i2|2")
        await chat.admission.renew()
        (entry,) = await inboxes.unread("i2", 10)
        check = decode_inbox(entry.data)
        assert isinstance(check, ChatOwnerCheck)
        await elsewhere.admission.on_owner_check(check)
        kicks = [decode_inbox(entry.data) for entry in await inboxes.unread("i1", 10)]
        assert kicks == [ChatKick(RECEIVER, 1)] * is_open
        await chat.admission.renew()
        assert await users.owners([RECEIVER]) == ["i2|2" if is_open else "i1|1"]
        assert not other.closed
        await elsewhere.close()


async def test_notice_for_a_user_whose_auth_is_under_way_is_sent_after_auth_ok(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        users.answer.clear()
        socket, token = Socket(1), chat.tokens.access(SENDER, 0, now_ms() / 1000)
        coming = asyncio.ensure_future(chat.admission.admit(cast(ChatSocket, socket), token))
        await users.written.wait()
        saved = wire.ack(wire.AckType.SAVED, SENDER, "sent before", 5, now_ms())
        await chat.delivery.notify([SenderNotice(SENDER, saved, 5, saved="sent before")])
        assert socket.heard == []
        users.answer.set()
        await coming
        await chat.delivery.run_once()
        assert [(frame["type"], frame.get("clientMsgId")) for frame in socket.heard] == [
            ("AUTH_OK", None),
            ("ACK", "sent before"),
        ]


class Cut:
    """A Redis whose answers about one key are lost once each, after it has done what was asked."""

    def __init__(self, redis: Redis, key: str) -> None:
        self._redis, self._key, self._lost = redis, key, set[str]()

    async def call(self, command: str, key: str, *args: Any) -> Any:
        return self._lose(command, key, await self._redis.call(command, key, *args))

    async def evaluate(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        return self._lose(script.name, keys[0], await self._redis.evaluate(script, keys, args))

    def _lose(self, what: str, key: str, answer: Any) -> Any:
        if key != self._key or what in self._lost:
            return answer
        self._lost.add(what)
        raise UnknownOutcome("the connection was lost")


async def test_failure_notice_is_sent_once_whichever_reply_of_redis_is_lost(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    async with chat_at(redis, keys, tmp_path) as (chat, users):
        for name in ("one", "two"):
            await users.keep_notice(SENDER, wire.error(wire.Reason.SAVE_FAILED, now_ms(), name, chat.ids.draw()))
        users.redis = cast(Redis, Cut(redis, keys.failed(SENDER)))
        socket = Socket(1)
        await chat.come_in(SENDER, socket)
        for _ in range(3):
            with suppress(UnknownOutcome):
                await chat.admission.run_once()
        assert [frame["clientMsgId"] for frame in socket.of_type("ERROR")] == ["one", "two"]
        assert await redis.call("LLEN", keys.failed(SENDER)) == 0
