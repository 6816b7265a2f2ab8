import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.speech_stage import Stage, standing
from key_leaks import Onlooker
from redis_fixtures import CLUSTER, FIXTURE_OF
from redis_servers import RedisAt

# The Redis that the environment names may be a Cluster itself.
_CLUSTERED = os.environ.get("LINGUA_TEST_REDIS_MODE", "single") == "cluster"
SHARED = pytest.param("shared", marks=[pytest.mark.cluster] if _CLUSTERED else [])


@pytest.fixture(params=[SHARED, CLUSTER, "old"])
def redis_at(request: pytest.FixtureRequest) -> RedisAt:
    place: RedisAt = request.getfixturevalue(FIXTURE_OF[request.param])
    return place


@pytest.fixture
def stage(redis_at: RedisAt, onlooker: Onlooker, tmp_path: Path) -> Iterator[Stage]:
    """Two instances, each a process."""
    with standing(redis_at, tmp_path, onlooker, {}, {}) as up:
        yield up
