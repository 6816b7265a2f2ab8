"""A Redis for a test, a prefix of its own in it, and a look at what is left there, as a pytest plugin.

- `redis_at` names the server and runs the test on each kind: one server, a Cluster, and, in the long matrix, Redis 6.2.
  A test that makes sense on one only says so: `@pytest.mark.parametrize("redis_at", ["single"], indirect=True)`.
- `redis` is a connected client, `connect` makes more of them, `keys` names keys under a prefix nobody else has.
- A test that used the prefix and leaves a key that lives for ever, against the table in `store/keys.py`, fails.
"""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.verify.keys_left import leaks
from key_leaks import Onlooker
from redis_clients import Connect, connected
from redis_servers import RedisAt

CLUSTER = pytest.param("cluster", marks=pytest.mark.cluster)
LONG_CLUSTER = pytest.param("cluster", marks=(pytest.mark.cluster, pytest.mark.long))
OLD = pytest.param("old", marks=pytest.mark.long)
PLACES = ("single", CLUSTER, OLD)
FIXTURE_OF = {
    "single": "redis_server",
    "cluster": "redis_cluster",
    "old": "old_redis_server",
    "shared": "shared_redis",
}


@pytest.fixture(params=PLACES)
def redis_at(request: pytest.FixtureRequest) -> RedisAt:
    place: RedisAt = request.getfixturevalue(FIXTURE_OF[request.param])
    return place


@pytest.fixture(scope="session")
def onlooker() -> Iterator[Onlooker]:
    with Onlooker() as each:
        yield each


@pytest.fixture
def prefix(redis_at: RedisAt, onlooker: Onlooker) -> Iterator[str]:
    """Under which this test alone writes; what it leaves is looked at and then removed."""
    mine = f"t-{uuid.uuid4().hex[:12]}"
    yield mine
    left = onlooker.take_away(redis_at, mine)
    assert not leaks(left, mine)


@pytest.fixture
def keys(prefix: str) -> Keys:
    return Keys(prefix)


@pytest.fixture
def connect(runner: asyncio.Runner, redis_at: RedisAt, prefix: str) -> Iterator[Connect]:
    """`await connect()` is one more client of the same Redis; closed when the test is over, before it is looked at."""
    stack = AsyncExitStack()

    async def open_one() -> Redis:
        return await stack.enter_async_context(connected(redis_at))

    yield open_one
    runner.run(stack.aclose())


@pytest.fixture
def redis(runner: asyncio.Runner, connect: Connect) -> Redis:
    async def first() -> Redis:
        return await connect()

    return runner.run(first())
