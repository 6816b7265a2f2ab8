"""Redis dies, hangs and is cut off under a chat server: what was accepted is kept within its durability class."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.chat.chat_server import (
    IN_TURN,
    MODES,
    SAVE_FIRST,
    TIMEOUT_S,
    ChatServer,
    chat_server,
    until_told,
)
from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.tools.redis_cluster import RedisCluster
from dragoman.tools.verify.chat_ledger import ChatLedger, Entry
from dragoman.tools.verify.clients import chat_load
from dragoman.tools.verify.tcp_proxy import proxied
from support.chat import ChatSpeaker
from support.redis_servers import RedisAt
from support.waiting import wait_until

CLASS_S = 2.0
RESENT_S = 30.0
# Tests that only cut Redis off must not see presences end.
LOAD_TIMING: dict[str, object] = {"scheduler__phase2__instance_presence_ttl_seconds": 12}


@pytest.fixture
def fsync() -> str:
    return "everysec"


@pytest.fixture
def mortal(server_binary: ServerBinary, tmp_path: Path, fsync: str) -> Iterator[RedisServer]:
    """A server of this test's own, to be killed."""
    with RedisServer(server_binary, tmp_path / "redis", port=CHOOSE_PORT, fsync=fsync) as server:
        yield server


def at(server: RedisServer) -> RedisAt:
    return RedisAt("single", (server.tcp_url,), server=server)


@contextmanager
def hanging(server: RedisServer) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("fsync", "mode"),
    [
        ("everysec", "save_first"),
        ("always", "save_first"),
        pytest.param("always", "deliver_first", marks=pytest.mark.long),
    ],
)
async def test_a_redis_killed_and_restarted_loses_nothing_beyond_its_class(
    mortal: RedisServer, tmp_path: Path, fsync: str, mode: str
) -> None:
    ledger = ChatLedger()
    async with chat_server(at(mortal), tmp_path) as server:
        a, _ = await server.two(MODES[mode])
        promised = "fsync" if fsync == "always" else "process"
        assert (await a.get("/api/v1/stats"))["durability"] == promised
        async with chat_load(server.ports, ledger, 8, in_flight=4) as load:
            load.start(per_s=150)
            await until_told(ledger, "saved", 80)
            await asyncio.to_thread(mortal.kill)
            killed_at = time.monotonic()
            await asyncio.to_thread(mortal.start)
            await wait_until(a.is_ready, TIMEOUT_S)
            await until_told(ledger, "saved", 160)
            await load.stop_and_settle()

        def tolerated(entry: Entry) -> bool:
            assert entry.accepted_at is not None
            return promised == "process" and 0 <= killed_at - entry.accepted_at < CLASS_S

        await server.passes(
            ledger, order="accepted", tolerated=tolerated, balanced=promised == "fsync", ack_grace_s=RESENT_S
        )


OLD_ENTRIES = 2_000_000
ADD_OLD = "for n = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], string.rep('x', 64)) end"


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
async def test_redis_killed_with_a_large_append_only_file_loses_nothing_while_it_loads_for_long(
    server_binary: ServerBinary, tmp_path: Path, mode: str
) -> None:
    """The whole file is replayed, command by command, while instances and clients wait."""
    ledger, whole = ChatLedger(), {"auto-aof-rewrite-percentage": "0"}
    with RedisServer(server_binary, tmp_path / "redis", port=CHOOSE_PORT, fsync="always", settings=whole) as mortal:
        async with chat_server(at(mortal), tmp_path) as server:
            for part in range(20):
                await server.redis.call("EVAL", ADD_OLD, 1, f"old-{part}", OLD_ENTRIES // 20)
            a, _ = await server.two(MODES[mode])
            async with chat_load(server.ports, ledger, 32, in_flight=2) as load:
                load.start(per_s=150)
                await until_told(ledger, "saved", 80)
                await asyncio.to_thread(mortal.kill)
                assert _bytes_to_load(tmp_path) > 64 * OLD_ENTRIES
                await asyncio.to_thread(mortal.start)
                await wait_until(a.is_ready, TIMEOUT_S)
                await until_told(ledger, "saved", 240)
                await load.stop_and_settle()
            await server.passes(ledger, order="accepted", ack_grace_s=RESENT_S)
            await server.redis.call("UNLINK", *(f"old-{part}" for part in range(20)))


def _bytes_to_load(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.aof"))


async def test_fail_open_saves_under_the_same_id_while_redis_hangs_and_nothing_comes_twice(
    mortal: RedisServer, tmp_path: Path
) -> None:
    """The accept times out and happens all the same, when Redis goes on: its entry meets its own row."""
    async with chat_server(at(mortal), tmp_path) as server:
        a = await server.instance(SAVE_FIRST, **LOAD_TIMING)
        b = await server.instance(SAVE_FIRST, **LOAD_TIMING)
        await wait_until(server.is_shared, TIMEOUT_S)
        sender, receiver = await server.speaker(a, 5001), await server.speaker(b, 5002)
        await sender.saved(await sender.chat(5002, "before"))
        assert (await receiver.expect("SINGLE_CHAT"))["body"] == "before"
        with hanging(mortal):
            ids = [await sender.saved(await sender.chat(5002, body)) for body in ("one", "two", "three")]
        await sender.saved(await sender.chat(5002, "after"))
        got = [await receiver.expect("SINGLE_CHAT") for _ in range(4)]
        assert [frame["body"] for frame in got] == ["one", "two", "three", "after"]
        assert [int(frame["serverMsgId"]) for frame in got[:3]] == ids
        await wait_until(server.is_at_rest, TIMEOUT_S)
        assert [row.body for row in await server.rows()] == ["before", "one", "two", "three", "after"]
        assert [row.id for row in await server.rows()][1:4] == ids


async def test_sender_with_unsaved_messages_gets_server_busy_while_redis_hangs(
    mortal: RedisServer, tmp_path: Path
) -> None:
    async with chat_server(at(mortal), tmp_path) as server:
        a = await server.instance(SAVE_FIRST, **LOAD_TIMING)
        sender = await server.speaker(a, 5001)
        with server.database_locked():
            first = await sender.chat(5002, "first")
            accepted = await sender.expect("ACK", ackType="accepted", clientMsgId=first)
            with hanging(mortal):
                second = await sender.chat(5002, "second")
                await sender.refused("server_busy", clientMsgId=second)
        assert await sender.saved(first) == int(accepted["serverMsgId"])
        await wait_until(server.is_at_rest, TIMEOUT_S)
        await _until_saved(sender, 5002, "second", second)
        await wait_until(server.is_at_rest, TIMEOUT_S)
        assert [row.body for row in await server.rows()] == ["first", "second"]


async def test_fail_closed_answers_server_busy_while_redis_hangs_and_a_new_connection_may_not_send(
    mortal: RedisServer, tmp_path: Path
) -> None:
    async with chat_server(at(mortal), tmp_path) as server:
        closed = await server.instance(SAVE_FIRST, chat__two_phase__fail_open=False, **LOAD_TIMING)
        sender = await server.speaker(closed, 5001)
        with hanging(mortal):
            name = await sender.chat(5002, "closed")
            await sender.refused("server_busy", clientMsgId=name)
            newcomer = await server.speaker(closed, 5003)  # let in on its token alone
            other = await newcomer.chat(5002, "too early")
            await newcomer.refused("server_busy", clientMsgId=other)
            assert await server.rows() == []
        await _until_saved(sender, 5002, "closed", name)
        await _until_saved(newcomer, 5002, "too early", other)
        await wait_until(server.is_at_rest, TIMEOUT_S)
        assert sorted(row.body for row in await server.rows()) == ["closed", "too early"]


async def _until_saved(sender: ChatSpeaker, to: int, body: str, name: str) -> None:
    """Say it again while the server is busy, as every client does."""
    while True:
        await sender.chat(to, body, name=name)
        while True:
            frame = await sender.next()
            if frame.get("clientMsgId") == name and frame.get("ackType") == "saved":
                return
            if frame.get("clientMsgId") == name and frame.get("reason") == "server_busy":
                break


@pytest.mark.parametrize("mode", IN_TURN)
async def test_instances_cut_off_from_redis_under_load_fail_open_and_keep_every_order(
    server: ChatServer, redis_at: RedisAt, mode: str
) -> None:
    ledger = ChatLedger()
    async with proxied(redis_at.url) as proxy:
        a = await server.instance(MODES[mode], scheduler__phase2__redis__url=proxy.url, **LOAD_TIMING)
        b = await server.instance(MODES[mode], scheduler__phase2__redis__url=proxy.url, **LOAD_TIMING)
        await wait_until(server.is_shared, TIMEOUT_S)
        # A sender whose message was accepted before the cut is answered server_busy until Redis is back: enough others.
        async with chat_load(server.ports, ledger, 64, in_flight=1) as load:
            load.start(per_s=100)
            await until_told(ledger, "saved", 60)
            proxy.cut()
            await wait_until(a.is_not_ready, TIMEOUT_S)
            await until_told(ledger, "saved", 100)
            proxy.restore()
            for one in (a, b):
                await wait_until(one.is_ready, TIMEOUT_S)
            await until_told(ledger, "saved", 160)
            await load.stop_and_settle()
        await server.passes(ledger, ack_grace_s=RESENT_S)


@pytest.mark.long
async def test_messages_saved_without_redis_keep_their_order_when_their_senders_reconnect_elsewhere(
    server: ChatServer, redis_at: RedisAt
) -> None:
    """Cut off past its presence, it is taken over, and it disconnects its clients as soon as it is notified."""
    async with proxied(redis_at.url) as proxy:
        a = await server.instance(SAVE_FIRST, scheduler__phase2__redis__url=proxy.url)
        b = await server.instance(SAVE_FIRST)
        await wait_until(server.is_shared, TIMEOUT_S)
        sender, receiver = await server.speaker(a, 5001), await server.speaker(b, 5002)
        await sender.saved(await sender.chat(5002, "before"))
        await receiver.ack((await receiver.expect("SINGLE_CHAT"))["serverMsgId"], to=5001)
        proxy.cut()
        await wait_until(lambda: b.sees_only("i1"), TIMEOUT_S)
        for body in ("one", "two"):
            await _until_saved(sender, 5002, body, body)
        proxy.restore()
        with pytest.raises(AssertionError, match="closed"):
            await sender.expect("nothing")
        again = await server.speaker(b, 5001)
        await _until_saved(again, 5002, "three", "three")
        got = list[str]()
        while "three" not in got:
            got.append((await receiver.expect("SINGLE_CHAT"))["body"])
        assert list(dict.fromkeys(got)) == ["one", "two", "three"]


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["save_first", "deliver_first"])
async def test_killed_cluster_master_loses_nothing_that_its_replica_confirmed(
    server_binary: ServerBinary, tmp_path: Path, mode: str
) -> None:
    ledger = ChatLedger()
    with RedisCluster(server_binary, tmp_path / "cluster") as nodes:
        place = RedisAt("cluster", tuple(nodes.urls), cluster=nodes)
        async with chat_server(place, tmp_path) as server:
            a, _ = await server.two(MODES[mode], chat__two_phase__wait_replicas=1)
            assert (await a.get("/api/v1/cluster"))["instances"][0]["durability"] == "replicated"
            async with chat_load(server.ports, ledger, 8, in_flight=4) as load:
                load.start(per_s=100)
                await until_told(ledger, "saved", 100)
                dead = await asyncio.to_thread(nodes.kill_master, 0)
                await asyncio.to_thread(nodes.wait_failover, dead)
                await until_told(ledger, "saved", 200)
                await load.stop_and_settle()
            await server.passes(ledger, order="accepted", ack_grace_s=RESENT_S, balanced=False)
