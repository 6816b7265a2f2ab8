"""Nodes whose sockets are here: what they say finds the driver of the job, even if that takes more than one try."""

import asyncio
import json

import msgspec
import pytest

from dragoman.protocol.codec import decode_node, encode
from dragoman.protocol.codes import Close
from dragoman.protocol.node import JobAck, JobCancel, JobResult, JobStarted, NodePartial
from dragoman.protocol.peer import AssignJob, CancelJob, FromNode, decode_inbox
from dragoman.store.instances import Presence
from support.in_process import TIMEOUT_S, InProcessInstance, InProcessNode, OpenInstance, job_request
from support.redis_servers import LONG_CLUSTER
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)

DRIVER = "far"


async def distant_driver(instance: InProcessInstance) -> None:
    """Another instance that lives, and does not read its inbox for now."""
    await instance.stores.instances.open(DRIVER, "first", "scheduler")
    await instance.stores.instances.renew(Presence(DRIVER, "first"), 60_000)


async def assign(instance: InProcessInstance, node: InProcessNode) -> dict[str, object]:
    """A job that a distant instance drives."""
    mine = job_request()
    frame = msgspec.Raw(encode(mine.assignment))
    await instance.services.local_nodes.assign(AssignJob(node.id, node.local.epoch, mine.job_id, 1, DRIVER, frame))
    return node.jobs[-1]


async def said_to_driver(instance: InProcessInstance) -> list[FromNode]:
    rows = await instance.redis.call("XRANGE", instance.keys.inbox(DRIVER), "-", "+")
    found = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in rows]
    messages = [decode_inbox(fields[b"data"]) for fields in found if fields[b"type"] == b"from_node"]
    return [message for message in messages if isinstance(message, FromNode)]


async def test_node_messages_reach_the_driver_on_another_instance(open_instance: OpenInstance) -> None:
    instance = await open_instance("a")
    await distant_driver(instance)
    node = await instance.node("n")
    job = await assign(instance, node)
    node.ack(job)
    [told] = await wait_until(lambda: said_to_driver(instance), TIMEOUT_S)
    assert (told.node_id, told.epoch, told.job_id) == ("n", node.local.epoch, job["job_id"])
    assert [type(decode_node(bytes(frame))) for frame in told.frames] == [JobAck]


async def test_messages_of_a_job_that_arrive_together_are_one_entry_in_order(open_instance: OpenInstance) -> None:
    instance = await open_instance("a")
    await distant_driver(instance)
    node = await instance.node("n")
    jobs = [await assign(instance, node), await assign(instance, node)]
    for job in jobs:
        node.ack(job)
        node.start(job)
        node.answer(job)
    told = await wait_until(lambda: both(instance), TIMEOUT_S)
    assert [one.job_id for one in told] == [job["job_id"] for job in jobs]
    for one in told:
        assert [type(decode_node(bytes(frame))) for frame in one.frames] == [JobAck, JobStarted, JobResult]


async def test_large_batch_is_split_into_several_entries(open_instance: OpenInstance) -> None:
    instance = await open_instance("a")
    await distant_driver(instance)
    node = await instance.node("n")
    job = await assign(instance, node)
    long, many = "x" * (64 << 10), 20
    for _ in range(many):
        node.partial(job, long)
    node.answer(job)
    told = await wait_until(lambda: both(instance), TIMEOUT_S)
    said = [type(decode_node(bytes(frame))) for one in told for frame in one.frames]
    assert said == [NodePartial] * many + [JobResult]
    assert all(sum(len(frame) for frame in one.frames) <= 1 << 20 for one in told)


async def both(instance: InProcessInstance) -> list[FromNode]:
    told = await said_to_driver(instance)
    return told if len(told) == 2 else []


async def test_an_answer_waits_for_a_driver_whose_inbox_is_full(open_instance: OpenInstance) -> None:
    instance = await open_instance("a", scheduler__phase2__stream_maxlen=3)
    await distant_driver(instance)
    while await instance.stores.inboxes.push(DRIVER, "evict", b"{}") == "OK":
        pass
    node = await instance.node("n")
    job = await assign(instance, node)
    node.answer(job)
    await wait_until(lambda: instance.count("dragoman_inbox_push_total", verdict="FULL"), TIMEOUT_S)
    assert not await said_to_driver(instance)
    await instance.redis.call("XTRIM", instance.keys.inbox(DRIVER), "MAXLEN", 0)
    (told,) = await wait_until(lambda: said_to_driver(instance), TIMEOUT_S)
    assert told.job_id == job["job_id"]


async def test_a_cancelled_job_is_taken_back_from_its_node(open_instance: OpenInstance) -> None:
    instance = await open_instance("a")
    await distant_driver(instance)
    node = await instance.node("n")
    job = await assign(instance, node)
    job_id = str(job["job_id"])
    instance.services.local_nodes.cancel(CancelJob("n", job_id, msgspec.Raw(encode(JobCancel(job_id)))))
    assert node.cancelled == [job_id]
    node.answer(job)  # too late: the job is not this node's any more
    await wait_until(lambda: instance.count("dragoman_results_dropped_total", reason="no_driver"), TIMEOUT_S)
    assert not await said_to_driver(instance)


async def test_a_node_whose_heartbeats_stopped_is_closed_with_a_code_that_says_come_back(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance("a")
    silent, lively = await instance.node("silent"), await instance.node("lively")
    silent.local.last_heartbeat -= 3600
    await instance.services.local_nodes.close_silent()
    assert (silent.socket.code, lively.socket.code) == (Close.TIMEOUT, None)


async def test_a_node_that_left_is_offline_for_all_at_once(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    assert await a.stores.nodes.online("n")
    node.disconnect()
    await wait_until(lambda: not b.knows("n"), TIMEOUT_S)

    async def offline() -> bool:
        return not await a.stores.nodes.online("n") and await a.stores.owners.node_owner("n") is None

    await wait_until(offline, TIMEOUT_S)


# -- the drain -----------------------------------------------------------------------------------


async def test_draining_instance_keeps_a_node_until_it_has_answered_the_jobs_of_others(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance("a", server__drain_s=600)
    await distant_driver(instance)
    busy, idle = await instance.node("busy"), await instance.node("idle")
    first, second = await assign(instance, busy), await assign(instance, busy)
    draining = asyncio.ensure_future(instance.instance.drain())
    await wait_until(lambda: idle.socket.closed, TIMEOUT_S)
    known = await instance.redis.call("GET", instance.keys.node_snapshot("busy"))
    assert json.loads(known)["draining"]
    busy.answer(first)
    assert not busy.socket.closed
    busy.answer(second)
    await asyncio.wait_for(draining, TIMEOUT_S)
    assert (busy.socket.code, idle.socket.code) == (Close.SHUTDOWN, Close.SHUTDOWN)
    assert len(await wait_until(lambda: both(instance), TIMEOUT_S)) == 2


async def test_drain_does_not_wait_for_a_job_that_its_driver_no_longer_waits_for(open_instance: OpenInstance) -> None:
    times = {"placement_wait_ms": 100, "job_ack_timeout_ms": 100, "attempt_timeout_ms": 500, "job_timeout_ms": 1000}
    instance = await open_instance("a", server__drain_s=600, **{f"speech__{name}": ms for name, ms in times.items()})
    await distant_driver(instance)
    node = await instance.node("n")
    await assign(instance, node)
    await asyncio.wait_for(instance.instance.drain(), TIMEOUT_S)
    assert node.socket.code == Close.SHUTDOWN


async def test_drain_ends_with_its_time_although_a_node_still_works_for_others(open_instance: OpenInstance) -> None:
    instance = await open_instance("a", server__drain_s=0.2)
    await distant_driver(instance)
    node = await instance.node("n")
    await assign(instance, node)
    await asyncio.wait_for(instance.instance.drain(), TIMEOUT_S)
    assert not node.socket.closed
