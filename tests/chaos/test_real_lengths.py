"""The same faults at their real lengths, with the settings as they are shipped: for `make test-all`."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.tools.processes import InstanceProcess
from support.cluster import QUICK, Cluster, running
from support.redis_servers import CLUSTER, RedisAt
from support.waiting import wait_until

TIMEOUT_S = 90.0
PAUSE_S = 20.0
OUTAGE_S = 10.0
SHIPPED = {
    "scheduler__phase2__instance_presence_ttl_seconds": 6,
    "scheduler__phase2__owner_ttl_seconds": 45,
    "scheduler__phase2__stream_block_ms": 1000,
    "scheduler__phase2__dlq_min_idle_ms": 5000,
    "scheduler__phase2__dlq_scan_interval_ms": 5000,
    "scheduler__phase2__node_snapshot__refresh_interval_ms": 2000,
    "speech__node_grace_ms": 2000,
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


async def two(cluster: Cluster) -> tuple[InstanceProcess, InstanceProcess]:
    assert {name.replace("__", ".") for name in SHIPPED} <= set(QUICK)
    return await cluster.instance(**SHIPPED), await cluster.instance(**SHIPPED)


async def past(moment: float) -> None:
    """Until that much real time has passed: here the length is the fault."""
    await wait_until(lambda: time.monotonic() >= moment, TIMEOUT_S)


@pytest.mark.parametrize("redis_at", ["single", CLUSTER], indirect=True)
async def test_an_instance_paused_for_twenty_seconds_comes_back_as_a_new_incarnation(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with running(redis_at, tmp_path, prefix) as cluster:
        a, b = await two(cluster)
        cluster.node(b)
        await wait_until(a.node_count, TIMEOUT_S)
        speaker = await cluster.speaker(a, resume=True)
        await speaker.utterance(0)
        assert await speaker.result(0, TIMEOUT_S)
        a.signal(signal.SIGSTOP)
        await past(time.monotonic() + PAUSE_S)
        assert await b.sees_only("i1")
        again, ack = await cluster.resumed(speaker, b)
        assert ack["next_index"] == 1
        await again.utterance(1)
        assert await again.result(1, TIMEOUT_S)
        a.signal(signal.SIGCONT)
        await wait_until(lambda: b.sees_only("i0", "i1"), TIMEOUT_S)
        assert await a.metric("dragoman_lease_lost_total") == 1
        await again.utterance(2)
        assert await again.result(2, TIMEOUT_S)


async def test_redis_outage_of_ten_seconds_ends_no_session(server_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(server_binary, tmp_path / "redis", port=CHOOSE_PORT, fsync="always") as server:
        place = RedisAt("single", (server.tcp_url,), server=server)
        async with running(place, tmp_path) as cluster:
            a, b = await two(cluster)
            cluster.node(a)
            await wait_until(b.node_count, TIMEOUT_S)
            speaker = await cluster.speaker(b)
            await asyncio.to_thread(server.kill)
            await past(time.monotonic() + OUTAGE_S)
            await asyncio.to_thread(server.start)
            await wait_until(a.is_ready, TIMEOUT_S)
            await wait_until(b.is_ready, TIMEOUT_S)
            await speaker.utterance(0)
            assert await speaker.result(0, TIMEOUT_S)
            for one in (a, b):
                assert await one.metric("dragoman_takeovers_total") == 0
                assert await one.metric("dragoman_lease_lost_total") == 0
