import asyncio

import pytest

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from machines import Bench
from redis_fixtures import FIXTURE_OF, OLD
from redis_servers import RedisAt


@pytest.fixture(params=["single", OLD])
def redis_at(request: pytest.FixtureRequest) -> RedisAt:
    """Scripts are the same on a Cluster; servers differ."""
    place: RedisAt = request.getfixturevalue(FIXTURE_OF[request.param])
    return place


@pytest.fixture
def bench(runner: asyncio.Runner, redis: Redis, keys: Keys) -> Bench:
    return Bench(runner, redis, keys)
