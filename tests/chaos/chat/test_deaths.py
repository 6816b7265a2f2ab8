"""Instances of a chat server die, are paused and leave, under load; a ledger decides whether anything was lost."""

from pathlib import Path

import pytest

from chat_faults import MODES, PATIENCE_S, chat_server, until_told
from chatters import chatting
from ledger import Ledger
from redis_servers import RedisAt
from waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single"], indirect=True)


@pytest.mark.parametrize("mode", MODES)
async def test_an_instance_killed_under_load_loses_nothing(
    redis_at: RedisAt, prefix: str, tmp_path: Path, mode: str
) -> None:
    ledger = Ledger()
    async with chat_server(redis_at, tmp_path, prefix) as server:
        a, _ = await server.two(MODES[mode])
        async with chatting(server.ports, ledger, 8, in_flight=4) as crowd:
            crowd.talk(per_s=200)
            await until_told(ledger, "saved", 100)
            a.kill()
            server.instances.remove(a)
            await wait_until(server.is_shared, PATIENCE_S, "the survivor to hold every shard")
            await until_told(ledger, "saved", len(ledger.entries))
            await crowd.quiet()
        await server.passes(ledger, order="accepted")
