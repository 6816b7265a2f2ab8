"""The database of a chat server goes away and comes back, or refuses a row; what was accepted waits, and is saved."""

import asyncio
from pathlib import Path

import pytest

from chaos.chat.chat_server import DELIVER_FIRST, MODES, SAVE_FIRST, TIMEOUT_S, ChatServer, chat_server, of_shard
from dragoman.archive import Status
from dragoman.domain.chat.shards import tag
from dragoman.store.chat.entries import ChatEntry
from dragoman.tools.postgres import PostgresServer
from dragoman.tools.verify.chat_ledger import ChatLedger
from dragoman.tools.verify.clients import chat_load
from dragoman.tools.verify.tcp_proxy import proxied
from support.chat import bodies
from support.databases import ask
from support.redis_servers import RedisAt
from support.waiting import wait_until

SENDER, RECEIVER = 7, 8


async def waiting(server: ChatServer, count: int) -> bool:
    return await server.backlog() >= count


@pytest.mark.parametrize("mode", ["save_first", pytest.param("deliver_first", marks=pytest.mark.long)])
async def test_a_sqlite_that_is_locked_makes_messages_wait_and_loses_none(server: ChatServer, mode: str) -> None:
    ledger = ChatLedger()
    await server.two(MODES[mode])
    async with chat_load(server.ports, ledger, 8, in_flight=8) as load:
        with server.database_locked():
            await load.send(400)
            await wait_until(lambda: waiting(server, 400), TIMEOUT_S, "messages to pile up")
            assert ledger.count(lambda entry: entry.saved_at is not None) == 0
        await load.stop_and_settle()
    await server.passes(ledger, order="accepted")


async def test_a_postgresql_that_is_killed_makes_messages_wait_and_loses_none(
    redis_at: RedisAt, prefix: str, tmp_path: Path, own_postgres: PostgresServer
) -> None:
    ledger = ChatLedger()
    async with chat_server(redis_at, tmp_path, prefix, own_postgres.new_database()) as server:
        await server.two(SAVE_FIRST)
        async with chat_load(server.ports, ledger, 8, in_flight=8) as load:
            await load.send(40)
            await asyncio.to_thread(own_postgres.kill)
            await load.send(400)
            await wait_until(lambda: waiting(server, 400), TIMEOUT_S, "messages to pile up")
            await asyncio.to_thread(own_postgres.start)
            await load.stop_and_settle()
        await server.passes(ledger, order="accepted")


async def test_a_row_the_database_refuses_is_a_dead_letter_and_its_neighbours_are_saved_in_order(
    redis_at: RedisAt, prefix: str, tmp_path: Path, sql_url: str
) -> None:
    async with chat_server(redis_at, tmp_path, prefix, sql_url) as server:
        here = await server.instance(SAVE_FIRST)
        if sql_url.startswith("sqlite"):
            await ask(
                sql_url,
                "CREATE TRIGGER poison BEFORE INSERT ON message WHEN new.body = 'poison' "
                "BEGIN SELECT RAISE(ABORT, 'no such words'); END",
            )
        else:
            await ask(sql_url, "ALTER TABLE message ADD CONSTRAINT poison CHECK (body <> 'poison')")
        uid = of_shard(0, 1)[0]
        sender, receiver = await server.speaker(here, uid), await server.speaker(here, 1)
        bodies = ["one", "two", "poison", "three", "four"]
        names = [await sender.chat(1, body) for body in bodies]
        failed = await sender.refused("save_failed", clientMsgId=names[2])
        assert int(failed["serverMsgId"]) > 0
        for name in (*names[:2], *names[3:]):
            await sender.saved(name)
        got = [(await receiver.expect("SINGLE_CHAT"))["body"] for _ in range(4)]
        assert got == ["one", "two", "three", "four"]
        await wait_until(server.is_at_rest, TIMEOUT_S)
        assert await server.dead() == [(uid, names[2])]
        assert not await server.redis.call("EXISTS", server.keys.claim(tag(0), uid, names[2]))


async def test_unreadable_entry_becomes_a_dead_letter_and_its_absent_sender_is_notified_at_its_next_auth(
    server: ChatServer,
) -> None:
    uid = of_shard(0, 1)[0]
    good = [
        ChatEntry("", 4_194_304 * n, f"good-{n}", uid, 1, "TEXT", "hi", 1, 1, "test", "save_first") for n in (1, 2, 3)
    ]
    for entry in good[:2]:
        await server.shards.accept(entry, entry.client_msg_id, 100)
    bad = [str(part) for part in good[2].fields()]
    bad[bad.index("toUserId") + 1] = "nobody"
    bad[bad.index("clientMsgId") + 1] = "bad"
    await server.redis.call("XADD", server.shards.accepted(0), "*", *bad)
    await server.shards.accept(good[2], "good-3", 100)
    here = await server.instance(SAVE_FIRST)

    async def all_done() -> bool:
        return len(await server.rows()) == 3 and await server.dead() == [(uid, "bad")]

    await wait_until(all_done, TIMEOUT_S)
    assert [row.client_msg_id for row in await server.rows()] == ["good-1", "good-2", "good-3"]
    sender = await server.speaker(here, uid)
    await sender.refused("save_failed", clientMsgId="bad")


@pytest.mark.parametrize("across", [False, True], ids=["here", "across"])
async def test_receiver_gets_confirms_and_reads_a_message_before_it_is_saved(server: ChatServer, across: bool) -> None:
    here, there = await server.two(DELIVER_FIRST)
    sender, receiver = await server.speaker(here, SENDER), await server.speaker(there if across else here, RECEIVER)
    with server.database_locked():
        names = [await sender.chat(RECEIVER, body) for body in ("one", "two", "three")]
        got = [await receiver.expect("SINGLE_CHAT", clientMsgId=name) for name in names]
        for frame, kind in zip(got, ("delivered", "delivered", "read"), strict=True):
            await receiver.ack(frame["serverMsgId"], kind, SENDER)
        assert await server.rows() == []
    for name in names:
        await sender.saved(name)
    await sender.expect("ACK", ackType="read", serverMsgId=got[-1]["serverMsgId"])
    assert bodies(await receiver.so_far()) == [], "nothing comes twice"

    async def all_read() -> bool:
        return [row.status for row in await server.rows()] == [Status.READ] * 3

    await wait_until(all_read, TIMEOUT_S, "the receipts to be saved")


@pytest.mark.parametrize("commit_s", [0.02, pytest.param(5.0, marks=pytest.mark.long)])
async def test_slow_commits_delay_saved_and_not_the_delivery(
    redis_at: RedisAt, prefix: str, tmp_path: Path, own_postgres: PostgresServer, commit_s: float
) -> None:
    url = own_postgres.new_database()
    async with proxied(url) as proxy, chat_server(redis_at, tmp_path, prefix, url) as server:
        server.database = url.replace(f":{own_postgres.port}/", f":{proxy.port}/")
        here, there = await server.two(DELIVER_FIRST, chat__resend_after_s=60.0)
        server.database = url
        sender, receiver = await server.speaker(here, SENDER), await server.speaker(there, RECEIVER)
        proxy.delay_commits(commit_s)
        names = [await sender.chat(RECEIVER, f"{number}") for number in range(20)]
        got = [await receiver.expect("SINGLE_CHAT") for _ in names]
        assert [frame["clientMsgId"] for frame in got] == names
        if commit_s > 1:
            assert not any(frame.get("ackType") == "saved" for frame in sender.heard), "none is saved yet"
        for frame in got:
            await receiver.ack(frame["serverMsgId"], "delivered", SENDER)
        for name in names:
            await sender.saved(name)
        await wait_until(server.is_at_rest, TIMEOUT_S)
        assert [row.client_msg_id for row in await server.rows()] == names
