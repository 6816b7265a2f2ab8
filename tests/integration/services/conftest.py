import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.instance.services import Stores
from dragoman.store.redis import Redis
from integration.services.members import Join, Member
from support.cluster import config
from support.redis_servers import LONG_CLUSTER, RedisAt, redis_on

redis_at = redis_on("single", LONG_CLUSTER)


@pytest.fixture
def stores(redis: Redis, redis_at: RedisAt, prefix: str) -> Stores:
    return Stores(config(redis_at, prefix), redis)


@pytest.fixture
def join(runner: asyncio.Runner, stores: Stores) -> Iterator[Join]:
    """`await join("a")` is one more instance, present and with an inbox; `present=False`: not yet."""
    members: list[Member] = []

    async def add(name: str, *, present: bool = True, on: Stores | None = None, **settings: Any) -> Member:
        member = Member(name, on or stores, **settings)
        members.append(member)
        return await member.enter() if present else member

    yield add
    for member in members:
        runner.run(member.close())
