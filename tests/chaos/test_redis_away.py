"""Redis dies and comes back, with a real server being killed: everything goes on, and what was answered is there."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.protocol.peer import Bounced, decode_inbox, encode_peer, kind_of
from dragoman.store.errors import StoreError
from dragoman.store.inbox import Inboxes, InboxSettings, PushReply
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.tools.processes import InstanceProcess
from support.cluster import running
from support.redis_servers import RedisAt, connected
from support.waiting import wait_until

TIMEOUT_S = 60.0


@pytest.fixture(params=["always", "everysec"])
def fsync(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mortal(server_binary: ServerBinary, tmp_path: Path, fsync: str) -> Iterator[RedisServer]:
    """A server of this test's own, to be killed."""
    with RedisServer(server_binary, tmp_path / "redis", port=CHOOSE_PORT, fsync=fsync) as server:
        yield server


async def taken_over(instance: InstanceProcess) -> float:
    """Takeovers it has done or suffered."""
    return await instance.metric("dragoman_takeovers_total") + await instance.metric("dragoman_lease_lost_total")


async def test_acknowledged_writes_survive_a_kill_of_redis_within_its_durability_class(
    mortal: RedisServer, fsync: str
) -> None:
    keys = Keys("t-answered")
    place = RedisAt("single", (mortal.tcp_url,), server=mortal)
    async with connected(place) as redis:
        inboxes = Inboxes(redis, keys, InboxSettings(maxlen=1_000_000))
        await Instances(redis, keys).open("i", "first", "scheduler")
        answered: list[tuple[float, str]] = []
        enough = asyncio.Event()

        async def pusher(name: int) -> None:
            for number in range(1_000_000):
                message = Bounced("n", 1, f"{name}-{number}", 1)
                try:
                    assert await inboxes.push("i", kind_of(message), encode_peer(message)) is PushReply.OK
                except StoreError:
                    return
                answered.append((time.monotonic(), message.job_id))
                if len(answered) > 3000:
                    enough.set()

        pushers = [asyncio.create_task(pusher(name)) for name in range(20)]
        await enough.wait()
        killed_at = time.monotonic()
        await asyncio.to_thread(mortal.kill)
        await asyncio.gather(*pushers)
        await asyncio.to_thread(mortal.start)
        await redis.wait_connected()
        entries = await redis.call("XRANGE", keys.inbox("i"), "-", "+")
        there = {job_of(fields) for _, fields in entries}
        missing = [(at, job) for at, job in answered if job not in there]
        if fsync == "always":
            assert not missing
        assert all(killed_at - at < 2 for at, _ in missing)


def job_of(fields: list[bytes]) -> str:
    pairs = dict(zip(fields[::2], fields[1::2], strict=True))
    message = decode_inbox(pairs[b"data"])
    assert isinstance(message, Bounced)
    return message.job_id


@pytest.mark.parametrize("fsync", ["always"], indirect=True)
async def test_speech_goes_on_after_redis_was_killed_and_restarted(mortal: RedisServer, tmp_path: Path) -> None:
    place = RedisAt("single", (mortal.tcp_url,), server=mortal)
    async with running(place, tmp_path) as cluster:
        a, b = await cluster.instance(), await cluster.instance()
        cluster.node(a)
        await wait_until(b.node_count, TIMEOUT_S)
        speaker = await cluster.speaker(b)
        await speaker.utterance(0)
        assert await speaker.result(0)
        await asyncio.to_thread(mortal.kill)
        await wait_until(b.is_not_ready, TIMEOUT_S)
        await asyncio.to_thread(mortal.start)
        await wait_until(a.is_ready, TIMEOUT_S)
        await wait_until(b.is_ready, TIMEOUT_S)
        await speaker.utterance(1)
        assert await speaker.result(1, TIMEOUT_S)
        assert (await taken_over(a), await taken_over(b)) == (0, 0)


@pytest.mark.parametrize("fsync", ["always"], indirect=True)
async def test_no_live_instance_is_taken_over_after_an_outage_longer_than_the_presence(
    mortal: RedisServer, tmp_path: Path
) -> None:
    place = RedisAt("single", (mortal.tcp_url,), server=mortal)
    async with running(place, tmp_path) as cluster:
        a, b = await cluster.instance(), await cluster.instance()
        cluster.node(a)
        await wait_until(b.node_count, TIMEOUT_S)
        speaker = await cluster.speaker(b)
        await asyncio.to_thread(mortal.kill)
        for one in (a, b):
            await wait_until(one.lease_is_over, TIMEOUT_S)
        await speaker.utterance(0)
        paused = await speaker.until(lambda m: m["type"] == "backpressure")
        assert paused["action"] == "PAUSE"
        await asyncio.to_thread(mortal.start)
        assert await speaker.result(0, TIMEOUT_S)
        ttl_s = b.settings.scheduler.phase2.instance_presence_ttl_seconds
        over = time.monotonic() + 2 * ttl_s
        await wait_until(lambda: time.monotonic() > over, TIMEOUT_S)
        assert (await taken_over(a), await taken_over(b)) == (0, 0)
        await speaker.utterance(1)
        assert await speaker.result(1, TIMEOUT_S)
