"""Nodes whose sockets are here: what they say finds the driver of the job, even if that takes more than one try."""

import asyncio
import json

import msgspec
import pytest

from dragoman.protocol.codec import decode_node, encode
from dragoman.protocol.codes import Close
from dragoman.protocol.node import JobAck, JobCancel, JobResult, JobStarted, NodePartial
from dragoman.protocol.peer import Assign, CancelJob, FromNode, decode_inbox
from dragoman.store.instances import Presence
from support.in_process import PATIENCE_S, House, Open, WiredNode, order
from support.redis_servers import LONG_CLUSTER
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)

DRIVER = "far"


async def distant_driver(here: House) -> None:
    """Another instance that lives, and does not read its inbox for now."""
    await here.stores.instances.open(DRIVER, "first", "scheduler")
    await here.stores.instances.renew(Presence(DRIVER, "first"), 60_000)


async def assign(here: House, node: WiredNode) -> dict[str, object]:
    """A job that a distant instance drives."""
    mine = order()
    frame = msgspec.Raw(encode(mine.assignment))
    await here.services.local_nodes.assign(Assign(node.id, node.local.epoch, mine.job_id, 1, DRIVER, frame))
    return node.jobs[-1]


async def said_to_driver(here: House) -> list[FromNode]:
    rows = await here.redis.call("XRANGE", here.keys.inbox(DRIVER), "-", "+")
    found = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in rows]
    messages = [decode_inbox(fields[b"data"]) for fields in found if fields[b"type"] == b"from_node"]
    return [message for message in messages if isinstance(message, FromNode)]


async def test_what_a_node_says_goes_to_the_driver_of_its_job_elsewhere(house: Open) -> None:
    here = await house("a")
    await distant_driver(here)
    node = await here.node("n")
    job = await assign(here, node)
    node.ack(job)
    [told] = await wait_until(lambda: said_to_driver(here), PATIENCE_S)
    assert (told.node_id, told.epoch, told.job_id) == ("n", node.local.epoch, job["job_id"])
    assert [type(decode_node(bytes(frame))) for frame in told.frames] == [JobAck]


async def test_what_a_node_says_of_a_job_in_one_breath_is_one_entry_in_its_order(house: Open) -> None:
    here = await house("a")
    await distant_driver(here)
    node = await here.node("n")
    jobs = [await assign(here, node), await assign(here, node)]
    for job in jobs:
        node.ack(job)
        node.start(job)
        node.answer(job)
    told = await wait_until(lambda: both(here), PATIENCE_S)
    assert [one.job_id for one in told] == [job["job_id"] for job in jobs]
    for one in told:
        assert [type(decode_node(bytes(frame))) for frame in one.frames] == [JobAck, JobStarted, JobResult]


async def test_what_is_too_much_for_one_entry_is_told_in_several(house: Open) -> None:
    here = await house("a")
    await distant_driver(here)
    node = await here.node("n")
    job = await assign(here, node)
    long, many = "x" * (64 << 10), 20
    for _ in range(many):
        node.partial(job, long)
    node.answer(job)
    told = await wait_until(lambda: both(here), PATIENCE_S)
    said = [type(decode_node(bytes(frame))) for one in told for frame in one.frames]
    assert said == [NodePartial] * many + [JobResult]
    assert all(sum(len(frame) for frame in one.frames) <= 1 << 20 for one in told)


async def both(here: House) -> list[FromNode]:
    told = await said_to_driver(here)
    return told if len(told) == 2 else []


async def test_an_answer_waits_for_a_driver_whose_inbox_is_full(house: Open) -> None:
    here = await house("a", scheduler__phase2__stream_maxlen=3)
    await distant_driver(here)
    while await here.stores.inboxes.push(DRIVER, "evict", b"{}") == "OK":
        pass
    node = await here.node("n")
    job = await assign(here, node)
    node.answer(job)
    await wait_until(lambda: here.count("dragoman_inbox_push_total", verdict="FULL"), PATIENCE_S)
    assert not await said_to_driver(here)
    await here.redis.call("XTRIM", here.keys.inbox(DRIVER), "MAXLEN", 0)
    (told,) = await wait_until(lambda: said_to_driver(here), PATIENCE_S)
    assert told.job_id == job["job_id"]


async def test_a_cancelled_job_is_taken_back_from_its_node(house: Open) -> None:
    here = await house("a")
    await distant_driver(here)
    node = await here.node("n")
    job = await assign(here, node)
    job_id = str(job["job_id"])
    here.services.local_nodes.cancel(CancelJob("n", job_id, msgspec.Raw(encode(JobCancel(job_id)))))
    assert node.cancelled == [job_id]
    node.answer(job)  # too late: the job is not this node's any more
    await wait_until(lambda: here.count("dragoman_results_dropped_total", reason="no_driver"), PATIENCE_S)
    assert not await said_to_driver(here)


async def test_a_node_whose_heartbeats_stopped_is_closed_with_a_code_that_says_come_back(house: Open) -> None:
    here = await house("a")
    silent, lively = await here.node("silent"), await here.node("lively")
    silent.local.last_heartbeat -= 3600
    await here.services.local_nodes.close_silent()
    assert (silent.wire.code, lively.wire.code) == (Close.TIMEOUT, None)


async def test_a_node_that_left_is_offline_for_all_at_once(house: Open) -> None:
    a, b = await house("a"), await house("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    assert await a.stores.nodes.online("n")
    node.hang_up()
    await wait_until(lambda: not b.knows("n"), PATIENCE_S)

    async def offline() -> bool:
        return not await a.stores.nodes.online("n") and await a.stores.owners.node_owner("n") is None

    await wait_until(offline, PATIENCE_S)


# -- the drain -----------------------------------------------------------------------------------


async def test_draining_instance_keeps_a_node_until_it_has_answered_the_jobs_of_others(house: Open) -> None:
    here = await house("a", server__drain_s=600)
    await distant_driver(here)
    busy, idle = await here.node("busy"), await here.node("idle")
    first, second = await assign(here, busy), await assign(here, busy)
    draining = asyncio.ensure_future(here.instance.drain())
    await wait_until(lambda: idle.wire.closed, PATIENCE_S)
    known = await here.redis.call("GET", here.keys.node_snapshot("busy"))
    assert json.loads(known)["draining"]
    busy.answer(first)
    assert not busy.wire.closed
    busy.answer(second)
    await asyncio.wait_for(draining, PATIENCE_S)
    assert (busy.wire.code, idle.wire.code) == (Close.SHUTDOWN, Close.SHUTDOWN)
    assert len(await wait_until(lambda: both(here), PATIENCE_S)) == 2


async def test_drain_does_not_wait_for_a_job_that_its_driver_no_longer_waits_for(house: Open) -> None:
    times = {"placement_wait_ms": 100, "job_ack_timeout_ms": 100, "attempt_timeout_ms": 500, "job_timeout_ms": 1000}
    here = await house("a", server__drain_s=600, **{f"speech__{name}": ms for name, ms in times.items()})
    await distant_driver(here)
    node = await here.node("n")
    await assign(here, node)
    await asyncio.wait_for(here.instance.drain(), PATIENCE_S)
    assert node.wire.code == Close.SHUTDOWN


async def test_drain_ends_with_its_time_although_a_node_still_works_for_others(house: Open) -> None:
    here = await house("a", server__drain_s=0.2)
    await distant_driver(here)
    node = await here.node("n")
    await assign(here, node)
    await asyncio.wait_for(here.instance.drain(), PATIENCE_S)
    assert not node.wire.closed
