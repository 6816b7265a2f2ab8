"""`open_instance` starts instances in this process under the prefix of the test, and closes them afterwards."""

import asyncio
from collections.abc import Iterator

import pytest

from support.in_process import InProcessInstance, OpenInstance
from support.redis_servers import RedisAt


@pytest.fixture
def open_instance(runner: asyncio.Runner, redis_at: RedisAt, prefix: str) -> Iterator[OpenInstance]:
    opened: list[InProcessInstance] = []

    async def open_one(name: str = "a", **flags: object) -> InProcessInstance:
        one = await InProcessInstance.open(redis_at, prefix, name, **flags)
        opened.append(one)
        return one

    async def close_all() -> None:
        for one in reversed(opened):
            await one.close()

    yield open_one
    runner.run(close_all())
