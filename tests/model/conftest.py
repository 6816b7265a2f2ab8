import asyncio

import pytest

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from model.machines import Bench
from support.redis_servers import OLD, redis_on

redis_at = redis_on("single", OLD)  # scripts are the same on a Cluster; servers differ


@pytest.fixture
def bench(runner: asyncio.Runner, redis: Redis, keys: Keys) -> Bench:
    return Bench(runner, redis, keys)
