"""Receivers come and go between two instances while they are written to, and the switches change under way."""

from pathlib import Path

import pytest

from chaos.chat.chat_server import IN_TURN, MODES, OFF, chat_server, flap, until_told
from dragoman.tools.verify.chat_ledger import ChatLedger
from dragoman.tools.verify.clients import chat_load
from support.redis_servers import RedisAt

FLAPS = 8
FLIPS: list[dict[str, object]] = [
    {"enabled": True},
    {"deliver_before_saved": True},
    {"rollout_percent": 40},
    {"deliver_before_saved": False, "rollout_percent": 100},
    {"enabled": False},
    {"enabled": True, "deliver_before_saved": True, "batch_size": 3},
    {"enabled": False, "fail_open": False},
]


@pytest.mark.parametrize("mode", IN_TURN)
async def test_receivers_that_flap_between_two_instances_get_everything_once_and_in_order(
    redis_at: RedisAt, prefix: str, tmp_path: Path, mode: str
) -> None:
    ledger = ChatLedger()
    async with chat_server(redis_at, tmp_path, prefix) as server:
        await server.two(MODES[mode])
        async with chat_load(server.ports, ledger, 6, in_flight=4) as load:
            load.start(per_s=250)
            for number in range(FLAPS):
                await until_told(ledger, "saved", 40 * (number + 1))
                flap(load, [one.uid for one in load.users[number % 2 :: 2]])
            await load.stop_and_settle()
        await server.passes(ledger, order="accepted")


async def test_switches_flipped_under_load_lose_double_and_reorder_nothing(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    ledger = ChatLedger()
    async with chat_server(redis_at, tmp_path, prefix) as server:
        await server.two(OFF)
        async with chat_load(server.ports, ledger, 8, in_flight=4) as load:
            load.start(per_s=200)
            for number, flip in enumerate(FLIPS):
                await until_told(ledger, "saved", 40 * (number + 1))
                await server.switch(**flip)
                if number % 2:
                    flap(load, [one.uid for one in load.users[:3]])
            await until_told(ledger, "saved", 40 * (len(FLIPS) + 1))
            await load.stop_and_settle()
        assert ledger.count(lambda entry: entry.accepted_at is not None and entry.saved_at is not None) > 0
        await server.passes(ledger, order="accepted")
