"""`house` opens instances in this process under the test's prefix, and closes them before it is looked at."""

import asyncio
from collections.abc import Iterator

import pytest

from support.in_process import House, Open
from support.redis_servers import RedisAt


@pytest.fixture
def house(runner: asyncio.Runner, redis_at: RedisAt, prefix: str) -> Iterator[Open]:
    opened: list[House] = []

    async def open_one(name: str = "a", **flags: object) -> House:
        one = await House.open(redis_at, prefix, name, **flags)
        opened.append(one)
        return one

    async def close_all() -> None:
        for one in reversed(opened):
            await one.close()

    yield open_one
    runner.run(close_all())
