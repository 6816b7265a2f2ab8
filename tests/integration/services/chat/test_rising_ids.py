"""Ids of a sender rise, also when it goes on at an instance whose clock is behind, and also with two-phase off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.services.chat.inbound import now_ms
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from integration.services.chat.in_process_chat import InProcessChat

SENDER, RECEIVER = 7, 9
AHEAD_MS = 60_000


@asynccontextmanager
async def two_instances(
    redis: Redis, keys: Keys, tmp_path: Path, enabled: bool
) -> AsyncIterator[tuple[InProcessChat, InProcessChat]]:
    """Of the first the clock is a minute ahead."""
    database = tmp_path / "chat.sqlite3"
    ahead = InProcessChat("i1", 1, redis, keys, database, clock=lambda: now_ms() + AHEAD_MS, enabled=enabled)
    behind = InProcessChat("i2", 2, redis, keys, database, enabled=enabled)
    try:
        yield ahead, behind
    finally:
        await asyncio.gather(ahead.close(), behind.close())
        await redis.call("DEL", keys.shard(ahead.shards._tags[0]))


@pytest.mark.parametrize("enabled", [False, True])
async def test_ids_rise_for_a_sender_that_goes_on_where_the_clock_is_behind(
    redis: Redis, keys: Keys, tmp_path: Path, enabled: bool
) -> None:
    async with two_instances(redis, keys, tmp_path, enabled) as (ahead, behind):
        first = await ahead.send(SENDER, RECEIVER, 1, "one")
        second = await behind.send(SENDER, RECEIVER, 2, "two")
        assert second > first
        assert await ahead.send(SENDER, RECEIVER, 3, "three") > second
