"""Real processes die, are paused, and come back; the survivors carry on and nothing promised is lost."""

import asyncio
import signal
import time

import pytest

from dragoman.domain.job import State
from dragoman.store.instances import Instances
from dragoman.store.jobs import Jobs
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from support.cluster import Cluster, Speaker
from support.redis_servers import LONG_CLUSTER
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)


async def finished(jobs: Jobs, job: str) -> dict[str, str]:
    record = await jobs.get(job)
    return record if record is not None and record["state"] == State.RELEASED else {}


async def test_a_job_whose_node_died_is_run_by_another(cluster: Cluster, redis: Redis, keys: Keys) -> None:
    here = await cluster.instance()
    doomed = cluster.node(here, silence=1, node_id="doomed")
    await wait_until(here.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(here)
    await speaker.utterance(0)
    await speaker.until(lambda m: m["type"] == "ui_event" and m["event"] == "NODE_ACCEPTED")
    cluster.node(here, node_id="healthy")
    await wait_until(lambda: here.has_nodes(2), TIMEOUT_S)
    doomed.kill()
    result = await speaker.result(0, TIMEOUT_S)
    record = await wait_until(lambda: finished(Jobs(redis, keys), result["job_id"]), TIMEOUT_S)
    assert (record["node_id"], record["attempt"], record["outcome"]) == ("healthy", "2", "ok")
    assert not await redis.call("ZCARD", keys.reserved("doomed"))


async def test_killed_instance_is_taken_over_and_its_nodes_serve_the_others_again(
    cluster: Cluster, redis: Redis, keys: Keys
) -> None:
    a, b = await cluster.instance(), await cluster.instance()
    cluster.node(a, b, node_id="n1")
    await wait_until(b.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(b)
    a.kill()
    await wait_until(lambda: b.sees_only("i1"), TIMEOUT_S)
    await wait_until(b.node_count, TIMEOUT_S)
    await speaker.utterance(0)
    assert await speaker.result(0, TIMEOUT_S)
    assert await Instances(redis, keys).holder("i0") is None


async def test_jobs_of_a_dead_driver_end_and_release_their_slots(cluster: Cluster, redis: Redis, keys: Keys) -> None:
    a, b = await cluster.instance(), await cluster.instance(speech__attempt_timeout_ms=2000)
    cluster.node(b, silence=1, node_id="n1")
    await wait_until(a.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(a)
    await speaker.utterance(0)
    told = await speaker.until(lambda m: m["type"] == "ui_event" and m["event"] == "NODE_ACCEPTED")
    a.kill()
    record = await wait_until(lambda: finished(Jobs(redis, keys), told["job_id"]), TIMEOUT_S)
    assert (record["outcome"], record["code"], record["driver"]) == ("failed", "INSTANCE_LOST", "i1")
    assert not await redis.call("ZCARD", keys.reserved("n1"))


async def test_an_instance_paused_past_its_presence_starts_over_and_serves_again(
    cluster: Cluster, redis: Redis, keys: Keys
) -> None:
    a, b = await cluster.instance(), await cluster.instance()
    cluster.node(b, node_id="n1")
    await wait_until(a.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(a)
    incarnation = await Instances(redis, keys).holder("i0")
    a.signal(signal.SIGSTOP)
    await wait_until(lambda: b.sees_only("i1"), TIMEOUT_S)
    await speaker.utterance(0)  # reaches it in its first callbacks, when it is nobody's owner any more
    a.signal(signal.SIGCONT)
    closed = await _closed(speaker)
    assert closed == 4004
    heard = [m for m in speaker.heard if m["type"] == "translation_result"]
    assert not heard
    await wait_until(lambda: b.sees_only("i0", "i1"), TIMEOUT_S)
    assert await Instances(redis, keys).holder("i0") not in (None, incarnation)
    again = await cluster.speaker(a)
    await again.utterance(0)
    assert await again.result(0, TIMEOUT_S)


async def test_an_instance_paused_for_less_than_its_presence_loses_nothing(cluster: Cluster) -> None:
    here = await cluster.instance(scheduler__phase2__instance_presence_ttl_seconds=14)
    cluster.node(here)
    await wait_until(here.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(here)
    here.signal(signal.SIGSTOP)
    await speaker.utterance(0)
    here.signal(signal.SIGCONT)
    assert await speaker.result(0, TIMEOUT_S)


async def _closed(speaker: Speaker) -> int | None:
    with pytest.raises(AssertionError, match="closed with"):
        await speaker.until(lambda m: False, TIMEOUT_S)
    return speaker.ws.close_code


async def test_an_instance_that_ends_waits_for_the_jobs_of_others_on_its_nodes(
    cluster: Cluster, redis: Redis, keys: Keys
) -> None:
    a, b = await cluster.instance(server__drain_s=60), await cluster.instance()
    cluster.node(a, b, node_id="busy", delay_ms=3000, slots=1)
    await wait_until(b.node_count, TIMEOUT_S)
    speaker = await cluster.speaker(b)
    await speaker.utterance(0)
    await speaker.until(lambda m: m["type"] == "ui_event" and m["event"] == "NODE_ACCEPTED")
    a.signal(signal.SIGTERM)
    result = await speaker.result(0, TIMEOUT_S)
    record = await wait_until(lambda: finished(Jobs(redis, keys), result["job_id"]), TIMEOUT_S)
    assert (record["node_id"], record["attempt"], record["outcome"]) == ("busy", "1", "ok")
    # It goes as soon as that is done, long before its drain is over, and its node serves on elsewhere.
    assert await asyncio.to_thread(a.process.wait, 30) == 0
    await speaker.utterance(1)
    assert await speaker.result(1, TIMEOUT_S)


# -- a fixed id ----------------------------------------------------------------------------------


async def test_instance_killed_and_restarted_on_its_host_takes_its_id_back_at_once(
    cluster: Cluster, redis: Redis, keys: Keys
) -> None:
    fixed: dict[str, object] = {
        "scheduler__phase2__instance_id": "fixed",
        "scheduler__phase2__instance_presence_ttl_seconds": 300,
        "scheduler__phase2__owner_ttl_seconds": 600,
        "speech__reservation_ttl_ms": 400_000,
    }
    other = await cluster.instance()
    cluster.node(other, delay_ms=2000, node_id="n")
    await wait_until(other.node_count, TIMEOUT_S)
    first = await cluster.instance(**fixed)
    speaker = await cluster.speaker(first, resume=True)
    await speaker.utterance(0)
    await speaker.until(lambda m: m["type"] == "ui_event" and m["event"] == "NODE_ACCEPTED")
    before = await Instances(redis, keys).holder("fixed")
    first.kill()
    # Long before the presence of the first lapses.
    second = await asyncio.wait_for(cluster.instance(**fixed), TIMEOUT_S)
    assert await Instances(redis, keys).holder("fixed") not in (None, before)
    # What the first had begun goes on: its job was adopted, and its session may resume.
    after, _ = await cluster.resumed(speaker, second)
    await after.result(0, TIMEOUT_S)
    await after.utterance(1)
    await after.result(1, TIMEOUT_S)


async def test_paused_instance_keeps_its_id_until_its_presence_lapses_and_is_fenced_after(
    cluster: Cluster, redis: Redis, keys: Keys
) -> None:
    fixed: dict[str, object] = {"scheduler__phase2__instance_id": "fixed"}
    first = await cluster.instance(**fixed)
    before = await Instances(redis, keys).holder("fixed")
    first.signal(signal.SIGSTOP)
    began, left_ms = time.monotonic(), await redis.call("PTTL", keys.presence("fixed"))
    second = await cluster.instance(**fixed)
    assert time.monotonic() - began > left_ms / 1000 - 0.1
    holder = await Instances(redis, keys).holder("fixed")
    assert holder not in (None, before)
    first.signal(signal.SIGCONT)
    await wait_until(lambda: "declared dead" in first.log.read_text(), TIMEOUT_S)
    await wait_until(lambda: "cannot come back" in first.log.read_text(), TIMEOUT_S)
    assert await Instances(redis, keys).holder("fixed") == holder
    assert await second.is_ready()
