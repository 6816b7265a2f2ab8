"""Faults of a chat server at their real lengths, on Redis and Cluster, SQLite and PostgreSQL: for `make test-all`."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from chaos.chat.chat_server import MODES, SAVE_FIRST, ChatServer, chat_server, flap, until_told
from dragoman.tools.postgres import PostgresServer
from dragoman.tools.verify.chat_ledger import ChatLedger
from dragoman.tools.verify.clients import chat_load
from support.redis_servers import CLUSTER, RedisAt
from support.waiting import wait_until

TIMEOUT_S = 120.0
RESENT_S = 60.0
DATABASE_AWAY_S = 60.0
WAITING = 5000
PAUSE_S = 20.0
TALK_S = 20.0
SHIPPED: dict[str, object] = {
    "scheduler__phase2__instance_presence_ttl_seconds": 6,
    "scheduler__phase2__owner_ttl_seconds": 45,
    "chat__resend_after_s": 10.0,
    "archive__busy_ms": 5000,
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.parametrize("redis_at", ["single", CLUSTER], indirect=True),
]


async def past(moment: float) -> None:
    """Until that much real time has passed: here the length is the fault."""
    await wait_until(lambda: time.monotonic() >= moment, TIMEOUT_S)


async def waiting(server: ChatServer, count: int) -> bool:
    return await server.backlog() >= count


async def test_database_outage_of_a_minute_with_five_thousand_unsaved_messages_loses_nothing(
    redis_at: RedisAt, prefix: str, tmp_path: Path, own_postgres: PostgresServer
) -> None:
    ledger = ChatLedger()
    async with chat_server(redis_at, tmp_path, prefix, own_postgres.new_database()) as server:
        await server.two(SAVE_FIRST, **SHIPPED)
        async with chat_load(server.ports, ledger, 16, in_flight=16) as load:
            await load.send(100)
            back_at = time.monotonic() + DATABASE_AWAY_S
            await asyncio.to_thread(own_postgres.kill)
            await load.send(WAITING)
            await wait_until(lambda: waiting(server, WAITING), TIMEOUT_S, "messages to pile up")
            await past(back_at)
            await asyncio.to_thread(own_postgres.start)
            await load.stop_and_settle(TIMEOUT_S)
        await server.passes(ledger, order="accepted", ack_grace_s=RESENT_S)


@pytest.mark.parametrize("mode", MODES)
async def test_kill_pause_and_flapping_one_after_another_lose_nothing(
    redis_at: RedisAt, prefix: str, tmp_path: Path, sql_url: str, mode: str
) -> None:
    ledger = ChatLedger()
    async with chat_server(redis_at, tmp_path, prefix, sql_url) as server:
        a, b = await server.two(MODES[mode], **SHIPPED)
        await server.instance(MODES[mode], **SHIPPED)
        async with chat_load(server.ports, ledger, 12, in_flight=4) as load:
            load.start(per_s=150)
            await until_told(ledger, "saved", 200)
            b.signal(signal.SIGSTOP)
            await past(time.monotonic() + PAUSE_S)
            b.signal(signal.SIGCONT)
            await wait_until(server.is_shared, TIMEOUT_S)
            until = time.monotonic() + TALK_S
            while time.monotonic() < until:
                flap(load, [one.uid for one in load.users[:6]])
                await past(time.monotonic() + 0.5)
            a.kill()
            server.instances.remove(a)
            await wait_until(server.is_shared, TIMEOUT_S)
            await load.stop_and_settle(TIMEOUT_S)
        await server.passes(ledger, order="accepted", ack_grace_s=RESENT_S)
