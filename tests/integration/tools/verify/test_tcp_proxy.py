"""The process between instances and Redis: a link is cut, held and mended, and nobody gets around it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.store.errors import StoreError
from dragoman.store.redis import Redis, connect
from dragoman.tools.processes import LoadProcess
from dragoman.tools.verify import tcp_proxy
from support.redis_servers import CLUSTER, RedisAt
from support.waiting import wait_until

TIMEOUT_S = 30.0
KEYS = ("a", "b", "c", "d", "e", "f")  # in all thirds of a Cluster

pytestmark = pytest.mark.parametrize("redis_at", ["single", CLUSTER], indirect=True)


@asynccontextmanager
async def linked(redis: RedisAt, folder: Path) -> AsyncIterator[tuple[LoadProcess, dict[str, Redis]]]:
    """Two links, and a client behind each."""
    with LoadProcess(tcp_proxy.MODULE, folder / "proxy.log") as proxy:
        links: dict[str, Sequence[str]] = await proxy.call("open", links={"x": redis.urls, "y": redis.urls})
        clients = {
            name: await connect(urls, cluster=redis.mode == "cluster", timeout_s=1.0) for name, urls in links.items()
        }
        try:
            for client in clients.values():
                await client.wait_connected()
            yield proxy, clients
        finally:
            for client in clients.values():
                await client.close()


async def answers(client: Redis, prefix: str) -> list[bool]:
    """Of each key, whether it can be reached."""
    return [await _is_reached(client, f"{prefix}:{key}") for key in KEYS]


async def _is_reached(client: Redis, key: str) -> bool:
    try:
        await client.call("GET", key)
    except StoreError:
        return False
    return True


@pytest.mark.parametrize("how", ["cut", "stall"])
async def test_a_broken_link_reaches_no_server_until_it_is_mended_and_the_other_goes_on(
    redis_at: RedisAt, prefix: str, tmp_path: Path, how: str
) -> None:
    async with linked(redis_at, tmp_path) as (proxy, clients):
        assert all(await answers(clients["x"], prefix))
        await proxy.call(how, link="x")
        assert not any(await answers(clients["x"], prefix))
        assert all(await answers(clients["y"], prefix))
        await proxy.call("restore", link="x")

        async def back() -> bool:
            return all(await answers(clients["x"], prefix))

        await wait_until(back, TIMEOUT_S)
