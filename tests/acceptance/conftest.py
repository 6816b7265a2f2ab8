import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.redis_servers import CLUSTER, OLD, KeyInspector, RedisAt, redis_on
from support.speech import Harness, start_harness

# The Redis that the environment names may be a Cluster itself.
_CLUSTERED = os.environ.get("LINGUA_TEST_REDIS_MODE", "single") == "cluster"
SHARED = pytest.param("shared", marks=[pytest.mark.cluster] if _CLUSTERED else [])


redis_at = redis_on(SHARED, CLUSTER, OLD)


@pytest.fixture
def harness(redis_at: RedisAt, key_inspector: KeyInspector, tmp_path: Path) -> Iterator[Harness]:
    """Two instances, each a process."""
    with start_harness(redis_at, tmp_path, key_inspector, {}, {}) as up:
        yield up
