"""What one instance learns of a node, the others respect: cool-downs, losses, whose socket it is."""

import asyncio
from collections.abc import Callable

import pytest

from dragoman.domain.job import Outcome
from dragoman.domain.placement import Assign, NoNode, Turn, Wait
from dragoman.protocol.codes import Close
from dragoman.services.speech.job_placement import Recorded
from dragoman.services.speech.job_request import TurnQueue
from support.in_process import (
    LEASE,
    TIMEOUT_S,
    InProcessInstance,
    InProcessNode,
    OpenInstance,
    RecordingListener,
    Undriven,
    job_request,
    missing_model,
    place,
)
from support.redis_servers import LONG_CLUSTER
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)

# Nothing but announcements can tell an instance of another's nodes within the life of a test.
BY_ANNOUNCEMENT_ALONE = {
    "scheduler__phase2__node_snapshot__refresh_interval_ms": 60_000,
    "scheduler__phase2__node_snapshot__presence_ttl_seconds": 90,
}


async def fail_once(
    instance: InProcessInstance, node: InProcessNode, session: str, service: str = "nmt-service"
) -> RecordingListener:
    """A job that its node cannot do, because a model is missing."""
    listener, before = RecordingListener(), len(node.jobs)
    instance.services.dispatcher.take(job_request(session, listener=listener))
    await wait_until(lambda: len(node.jobs) > before, TIMEOUT_S)
    node.answer(node.jobs[before], success=False, error=missing_model(service))
    return listener


async def place_one(instance: InProcessInstance, session: str) -> Assign | Wait:
    placed = await place(instance, job_request(session))
    assert isinstance(placed, Assign | Wait)
    return placed


async def test_a_node_seen_on_one_instance_is_usable_on_another_by_its_announcement_alone(
    open_instance: OpenInstance,
) -> None:
    a, b = await open_instance("a", **BY_ANNOUNCEMENT_ALONE), await open_instance("b", **BY_ANNOUNCEMENT_ALONE)
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    listener = RecordingListener()
    b.services.dispatcher.take(job_request(listener=listener))
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    node.answer(node.jobs[0])
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    assert listener.ends[0].outcome is Outcome.OK


async def test_a_node_lost_on_one_instance_is_not_asked_by_another_by_the_announcement_alone(
    open_instance: OpenInstance,
) -> None:
    a, b = await open_instance("a", **BY_ANNOUNCEMENT_ALONE), await open_instance("b", **BY_ANNOUNCEMENT_ALONE)
    node = await a.node("n", features=())
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    listener = RecordingListener()
    b.services.dispatcher.take(job_request(listener=listener))
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    good = await b.node("good", working=True)
    node.disconnect()
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    assert listener.ends[0].outcome is Outcome.OK
    assert not b.knows("n")
    assert [job["attempt_id"] for job in good.jobs] == [2]


async def test_a_cool_down_learnt_by_one_instance_is_respected_by_another(open_instance: OpenInstance) -> None:
    a = await open_instance("a", speech__placement_wait_ms=100, **BY_ANNOUNCEMENT_ALONE)
    b = await open_instance("b", speech__placement_wait_ms=100, **BY_ANNOUNCEMENT_ALONE)
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    listener = await fail_once(a, node, "s-1")
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    await wait_until(lambda: b.services.view.fleet.cooling("n", "nmt", asyncio.get_running_loop().time()), TIMEOUT_S)
    placed = await place_one(b, "s-2")
    assert isinstance(placed, Wait)
    assert placed.reason is NoNode.ALL_COOLING_DOWN
    assert len(node.jobs) == 1


async def test_a_cool_down_is_respected_by_an_instance_that_starts_later(open_instance: OpenInstance) -> None:
    a = await open_instance("a", speech__placement_wait_ms=100)
    node = await a.node("n")
    listener = await fail_once(a, node, "s-1")
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    late = await open_instance("late", speech__placement_wait_ms=100)
    assert late.knows("n")
    placed = await place_one(late, "s-2")
    assert isinstance(placed, Wait)
    assert placed.reason is NoNode.ALL_COOLING_DOWN


async def test_a_node_cools_down_only_for_what_it_lacks(open_instance: OpenInstance) -> None:
    instance = await open_instance("a", speech__max_attempts=1)
    node = await instance.node("n")
    listener = await fail_once(instance, node, "s-1", "semantic-service")  # which no pipeline here asks for
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    assert isinstance(await place_one(instance, "s-2"), Assign)


async def test_reports_within_the_window_count_once_and_too_many_cool_the_whole_node(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance("a", speech__max_attempts=1)
    node = await instance.node("n", slots=40)
    listener = RecordingListener()
    for number in range(32):
        instance.services.dispatcher.take(job_request(f"s-{number}", number, listener=listener))
    await wait_until(lambda: len(node.jobs) == 32, TIMEOUT_S)
    for job in node.jobs:
        node.answer(job, success=False, error=missing_model("semantic-service"))
    await wait_until(lambda: len(listener.ends) == 32, TIMEOUT_S)
    counted = {word: instance.count("dragoman_storm_total", verdict=word) for word in ("MARKED", "DEBOUNCED")}
    assert counted == {"MARKED": 1, "DEBOUNCED": 29}
    assert instance.count("dragoman_storm_total", verdict="RATE_LIMITED") == 2
    assert instance.services.view.fleet.cooling("n", "anything", asyncio.get_running_loop().time())


async def test_a_node_that_dials_in_elsewhere_leaves_its_former_owner(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    former = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    newer = await b.node("n", working=True)
    await wait_until(lambda: former.socket.closed, TIMEOUT_S)
    assert former.socket.code == Close.REPLACED
    former.disconnect()  # its socket ends after it was replaced: nothing of the newer one goes with it
    for one in (a, b):
        await wait_until(lambda: owner_in_view(one, "n") == "b", TIMEOUT_S)  # noqa: B023
    assert await a.stores.owners.node_owner("n") == "b"
    listener = RecordingListener()
    a.services.dispatcher.take(job_request(listener=listener))
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    assert listener.ends[0].outcome is Outcome.OK
    assert len(newer.jobs) == 1


def owner_in_view(instance: InProcessInstance, node: str) -> str:
    known = instance.services.view.fleet.get(node)
    return known.instance if known is not None else ""


async def test_a_newer_connection_of_a_node_replaces_the_older_one_here(open_instance: OpenInstance) -> None:
    instance = await open_instance("a")
    older = await instance.node("n")
    newer = await instance.node("n", working=True)
    assert older.socket.code == Close.REPLACED
    older.disconnect()
    listener = RecordingListener()
    instance.services.dispatcher.take(job_request(listener=listener))
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    assert listener.ends[0].outcome is Outcome.OK
    assert (len(older.jobs), len(newer.jobs)) == (0, 1)


async def test_slots_of_running_jobs_are_renewed_before_they_expire(open_instance: OpenInstance) -> None:
    instance = await open_instance("a", speech__reservation_ttl_ms=3500, **{LEASE: 3})  # it must be the shorter one
    node = await instance.node("n", slots=1)
    listener = RecordingListener()
    instance.services.dispatcher.take(job_request(listener=listener))
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    first = await expiry(instance)
    await instance.services.dispatcher.renew()
    assert await expiry(instance) > first
    node.answer(node.jobs[0])
    await wait_until(lambda: listener.ends, TIMEOUT_S)


async def test_one_that_was_declared_dead_uses_again_the_slots_its_jobs_had(open_instance: OpenInstance) -> None:
    """The instance that took over frees them; its own count of them goes with its jobs."""
    a, b = await open_instance("a"), await open_instance("b")
    node = await b.node("n", slots=1)
    await wait_until(lambda: a.knows("n"), TIMEOUT_S)
    a.services.dispatcher.take(job_request("s-1"))
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    assert isinstance(Undriven(a, job_request("s-2")).select(), Wait)
    a.services.dispatcher.abandon_all()
    assert isinstance(Undriven(a, job_request("s-2")).select(), Assign)


async def expiry(instance: InProcessInstance) -> int:
    (_, score) = await instance.redis.call("ZRANGE", instance.keys.reserved("n"), 0, 0, "WITHSCORES")
    return int(score)


async def test_the_utterances_of_a_session_reach_their_node_in_order_of_index(open_instance: OpenInstance) -> None:
    """Old nodes do not translate an utterance that comes after a later one."""
    instance = await open_instance("a", speech__placement_wait_ms=50_000)
    node = await instance.node("n", slots=8, features=(), working=True)
    listener = RecordingListener()
    for index in range(300):
        instance.services.dispatcher.take(job_request(index=index, listener=listener))
    await wait_until(lambda: len(listener.ends) == 300, TIMEOUT_S)
    assert [job["utterance_index"] for job in node.jobs] == list(range(300))


async def turn_bound(instance: InProcessInstance, owner: str) -> None:
    """Two jobs of one turn; a session of `owner`'s has it when the first has found its node."""
    node = await instance.node("n", features=("job_ack",))
    await instance.stores.owners.claim_session("s-1", owner)
    listener, turn_queue = RecordingListener(), TurnQueue(Turn("turn-1"))
    instance.services.dispatcher.take(job_request(turn_queue=turn_queue, ends_turn=False, listener=listener))
    await wait_until(lambda: node.jobs, TIMEOUT_S)
    node.answer(node.jobs[0])
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    async with asyncio.timeout(TIMEOUT_S):
        await instance.services.tasks.settled()


async def test_the_node_of_a_turn_is_remembered_while_its_session_is_here(open_instance: OpenInstance) -> None:
    instance = await open_instance("a")
    await turn_bound(instance, "a")
    assert await instance.stores.turns.current("s-1") == "turn-1"
    assert await instance.stores.turns.node_of("turn-1") == "n"
    await instance.stores.turns.end("s-1", "turn-1")


async def test_the_node_of_a_turn_whose_session_went_on_elsewhere_is_not_left_behind(
    open_instance: OpenInstance,
) -> None:
    """Who has the session now looked for a turn before this one had a node, and would never end it."""
    instance = await open_instance("a")
    await turn_bound(instance, "b")
    assert await instance.stores.turns.current("s-1") is None
    assert await instance.stores.turns.node_of("turn-1") is None


async def test_a_turn_whose_first_job_was_ended_with_its_instance_leaves_nothing_behind(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, heir = await open_instance("a"), await open_instance("b")
    await heir.node("n")
    await wait_until(lambda: paused.knows("n"), TIMEOUT_S)
    listener = RecordingListener()
    mine = job_request(turn_queue=TurnQueue(Turn("turn-1")), ends_turn=False, listener=listener)
    paused.services.dispatcher.take(mine)
    placing = paused.services.dispatcher._driven[mine.job_id]._placement
    record_it = placing._record

    async def taken_over(binds_turn: bool, meanwhile: Callable[[], None]) -> Recorded:
        await heir.services.orphans.adopt(mine.job_id, paused.name)
        return await record_it(binds_turn, meanwhile)

    monkeypatch.setattr(placing, "_record", taken_over)
    await wait_until(lambda: listener.ends, TIMEOUT_S)
    assert listener.ends[0].code == "INSTANCE_LOST"
    async with asyncio.timeout(TIMEOUT_S):
        await paused.services.tasks.settled()
    assert await heir.stores.turns.current("s-1") is None
    assert await heir.stores.turns.node_of("turn-1") is None


async def test_utterance_that_waits_for_a_node_does_not_delay_others(open_instance: OpenInstance) -> None:
    instance = await open_instance("a", speech__placement_wait_ms=20_000)
    await instance.node("n", working=True)
    listener = RecordingListener()
    instance.services.dispatcher.take(job_request(index=0, tgt="xx", listener=listener))
    instance.services.dispatcher.take(job_request(index=1, listener=listener))
    await wait_until(lambda: 1 in listener.ends, TIMEOUT_S)
    assert 0 not in listener.ends
    await instance.node("other", languages=("en", "xx"), working=True)
    await wait_until(lambda: 0 in listener.ends, TIMEOUT_S)
    assert {end.outcome for end in listener.ends.values()} == {Outcome.OK}
