"""Clients of the store for tests, connected before they are handed over."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from dragoman.store.redis import Redis, connect
from redis_servers import RedisAt

Connect = Callable[[], Awaitable[Redis]]
PATIENCE_S = 60.0


@asynccontextmanager
async def connected(place: RedisAt, **options: Any) -> AsyncIterator[Redis]:
    """A client whose connections are up; closed afterwards."""
    client = await connect(place.urls, cluster=place.mode == "cluster", **options)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await client.wait_connected()
        yield client
    finally:
        await client.close()
