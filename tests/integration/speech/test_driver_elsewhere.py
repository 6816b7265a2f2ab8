"""Driving jobs whose node is far or old: kept back until a turn ends, carried through inboxes, bounced."""

import asyncio

import pytest

from dragoman.domain.job import Outcome, State
from dragoman.domain.placement import Turn
from dragoman.services.speech.job_request import JobRequest, TurnQueue
from dragoman.services.upkeep.presence import TakeoverResult
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Presence
from dragoman.store.nodes import Snapshot
from integration.speech.test_resumption import Client
from integration.speech.test_router import fill
from support.in_process import (
    ACKING,
    OLD,
    SELDOM_RENEWED,
    TIMEOUT_S,
    InProcessInstance,
    InProcessNode,
    OpenInstance,
    RecordingListener,
    end_of,
    given,
    in_state,
    job_request,
    out_of_time,
    start,
)
from support.waiting import wait_until

# -- what old nodes keep back ----------------------------------------------------------------------


async def turn_on(
    instance: InProcessInstance, node: InProcessNode, listener: RecordingListener
) -> tuple[TurnQueue, JobRequest]:
    """A max-duration job that an old node keeps, of a turn that goes on."""
    turn_queue = TurnQueue(Turn("turn-1"))
    kept = job_request(turn_queue=turn_queue, ends_turn=False, listener=listener)
    instance.services.dispatcher.take(kept)
    await given(node)
    return turn_queue, kept


async def finish_turn(instance: InProcessInstance, turn_queue: TurnQueue, listener: RecordingListener) -> None:
    instance.services.dispatcher.take(job_request(turn_queue=turn_queue, index=1, listener=listener))
    instance.services.dispatcher.turn_ended("s-1", turn_queue.turn.id)
    await instance.stores.turns.end("s-1", turn_queue.turn.id)


async def test_a_job_an_old_node_keeps_has_no_deadline_while_its_turn_is_open_but_its_slot_goes_back(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance(**out_of_time(200))
    node = await instance.node("n", features=OLD)
    listener = RecordingListener()
    turn_queue, kept = await turn_on(instance, node, listener)
    assert await instance.reserved("n") == 1

    async def slot_is_back() -> bool:
        return await instance.reserved("n") == 0

    await wait_until(slot_is_back, TIMEOUT_S)
    assert not node.cancelled
    assert not listener.ends
    node.answer(node.jobs[0])
    assert await end_of(listener) is Outcome.OK
    await finish_turn(instance, turn_queue, listener)
    node.answer(await given(node, 2))
    assert await end_of(listener, 1) is Outcome.OK
    assert (await wait_until(lambda: instance.released(kept.job_id), TIMEOUT_S))["attempt"] == "1"


async def test_an_unanswered_job_whose_turn_ended_with_a_result_of_the_same_node_is_empty(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance()
    node = await instance.node("n", features=OLD)
    listener = RecordingListener()
    turn_queue, kept = await turn_on(instance, node, listener)
    await finish_turn(instance, turn_queue, listener)
    node.answer(await given(node, 2), text_asr="all of it")
    assert await end_of(listener, 1) is Outcome.OK
    assert await end_of(listener, 0) is Outcome.EMPTY
    record = await wait_until(lambda: instance.released(kept.job_id), TIMEOUT_S)
    assert (record["outcome"], record["code"]) == ("empty", "")
    assert await instance.reserved("n") == 0


async def test_an_unanswered_job_whose_turn_ended_on_another_node_is_out_of_time(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__attempt_timeout_ms=500, speech__job_ack_timeout_ms=500)
    node = await instance.node("n", features=OLD)
    listener = RecordingListener()
    turn_queue, _ = await turn_on(instance, node, listener)
    other = await instance.node("other", features=OLD, working=True)
    instance.services.view.fleet.cool("n", "nmt", float("inf"))
    await finish_turn(instance, turn_queue, listener)
    assert await end_of(listener, 1) is Outcome.OK
    assert other.jobs
    assert await end_of(listener, 0) is Outcome.EXPIRED


# -- between instances -----------------------------------------------------------------------------


async def full_inbox(instance: InProcessInstance, node: str, features: tuple[str, ...]) -> None:
    """A node whose owner lives, but has an inbox that takes nothing more."""
    owner = f"owner-of-{node}"
    await instance.stores.instances.open(owner, "first", "scheduler")
    data = Presence(owner, "first")
    await instance.stores.instances.renew(data, 60_000)
    while await instance.stores.inboxes.push(owner, "evict", b"{}") == "OK":
        pass
    spoken = ["en", "es"]
    snapshot = Snapshot(node, 1, owner, slots=500, asr=spoken, semantic=spoken, tts=spoken, features=list(features))
    instance.services.view.seen(snapshot)


@pytest.mark.parametrize("features", [OLD, ACKING], ids=["old", "ours"])
@pytest.mark.parametrize("ends_turn", [True, False], ids=["whole turn", "turn goes on"])
async def test_a_full_inbox_at_a_nodes_owner_frees_the_slot_and_the_next_candidate_has_the_job(
    open_instance: OpenInstance, features: tuple[str, ...], ends_turn: bool
) -> None:
    instance = await open_instance(scheduler__phase2__stream_maxlen=3)
    near = await instance.node("near", slots=100, features=features, working=True)
    await full_inbox(instance, "far", features)
    listener = RecordingListener()
    for number in range(30):
        turn_queue = TurnQueue(Turn(f"turn-{number}"))
        instance.services.dispatcher.take(
            job_request(f"s-{number}", number, turn_queue=turn_queue, ends_turn=ends_turn, listener=listener)
        )
    await wait_until(lambda: len(listener.ends) == 30, TIMEOUT_S)
    for number in range(30):
        await instance.stores.turns.end(f"s-{number}", f"turn-{number}")
    assert {end.outcome for end in listener.ends.values()} == {Outcome.OK}
    assert instance.count("dragoman_inbox_push_total", verdict="FULL") >= 1
    assert len(near.jobs) == 30

    async def nothing_held() -> bool:
        return not await instance.reserved("far") and not await instance.reserved("near")

    await wait_until(nothing_held, TIMEOUT_S)


async def test_an_assignment_that_finds_its_node_gone_bounces_and_goes_elsewhere(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    lost = await b.node("lost", slots=100)
    await wait_until(lambda: a.knows("lost"), TIMEOUT_S)
    # b has forgotten the node and a has not heard of it.
    b.services.local_nodes.close_all(4000)  # type: ignore[arg-type]
    listener = RecordingListener()
    a.services.dispatcher.take(job_request(listener=listener))
    await wait_until(lambda: listener.dispatched, TIMEOUT_S)
    good = await a.node("good", working=True)
    assert await end_of(listener) is Outcome.OK
    assert not lost.jobs
    assert [job["attempt_id"] for job in good.jobs] == [2]


async def test_a_job_of_one_instance_is_answered_by_a_node_of_another(open_instance: OpenInstance) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    listener = RecordingListener()
    mine = job_request(listener=listener)
    b.services.dispatcher.take(mine)
    job = await given(node)
    for say, state in ((node.ack, State.ACCEPTED), (node.start, State.RUNNING)):
        say(job)
        await wait_until(lambda: in_state(b, mine, state), TIMEOUT_S)  # noqa: B023
    node.partial(job, "half")
    node.answer(job)
    assert await end_of(listener) is Outcome.OK
    assert listener.partials == ["half"]
    record = await wait_until(lambda: b.released(mine.job_id), TIMEOUT_S)
    assert (record["driver"], record["node_id"], record["outcome"]) == ("b", "n", "ok")
    assert "acked_ms" in record
    assert "started_ms" in record


async def taken_over_and_back(a: InProcessInstance, by: InProcessInstance) -> None:
    """Taken for dead, while it was only paused, and on its feet again as a new incarnation."""
    await a.redis.call("DEL", a.keys.presence(a.name))
    assert await by.services.takeover.take_over(a.name) is TakeoverResult.DONE
    await a.services.presence.run_once()
    assert a.services.presence.has_lease()


async def test_result_sent_to_a_restarted_instance_reaches_the_new_driver_of_the_job(
    open_instance: OpenInstance,
) -> None:
    """The node's instance knows it as the driver, and it reads its inbox again."""
    a, b = await open_instance("a", **SELDOM_RENEWED), await open_instance("b")
    node = await b.node("n")
    await wait_until(lambda: a.knows("n"), TIMEOUT_S)
    client = Client()
    await client.open(a)
    job = await client.spoken(a, node, 0)
    await taken_over_and_back(a, by=b)
    await client.resume(b)
    node.ack(job)
    node.answer(job)
    await client.hears(0)
    record = await wait_until(lambda: b.released(job["job_id"]), TIMEOUT_S)
    assert (record["driver"], record["outcome"]) == ("b", "ok")


async def test_node_gets_the_cancel_when_the_inbox_of_its_owner_has_room_again(
    open_instance: OpenInstance,
) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    mine, _ = await start(b, node)
    before = fill(b)
    b.services.dispatcher.cancel_session(mine.session_id, "socket closed")
    await wait_until(lambda: b.count("dragoman_inbox_push_total", verdict="FULL") >= 2, TIMEOUT_S)
    assert not node.cancelled
    b.services.router.inboxes.settings = before
    await wait_until(lambda: node.cancelled == [mine.job_id], TIMEOUT_S)


async def test_node_gets_the_cancel_when_redis_is_back(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await open_instance("a"), await open_instance("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    mine, _ = await start(b, node)

    async def away(*args: object) -> PushReply:
        monkeypatch.undo()
        raise RedisAway("the connection was cut")

    monkeypatch.setattr(b.services.router.inboxes, "push", away)
    b.services.dispatcher.cancel_session(mine.session_id, "socket closed")
    await wait_until(lambda: node.cancelled == [mine.job_id], TIMEOUT_S)


async def test_late_cancel_of_a_first_attempt_is_not_sent_to_a_node_that_has_the_job_again(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would drop the second: a cancelled job is named without its attempt."""
    a, b = await open_instance("a"), await open_instance("b", speech__job_ack_timeout_ms=300)
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    inboxes, push = b.services.router.inboxes, b.services.router.inboxes.push

    async def no_room_for_cancels(instance: str, kind: str, data: bytes, trace_id: str = "") -> PushReply:
        return PushReply.FULL if kind == "cancel" else await push(instance, kind, data, trace_id)

    monkeypatch.setattr(inboxes, "push", no_room_for_cancels)
    _, listener = await start(b, node)
    again = await given(node, 2)
    node.ack(again)
    await wait_until(lambda: listener.taken, TIMEOUT_S)
    monkeypatch.undo()
    node.answer(again)
    assert await end_of(listener) is Outcome.OK
    async with asyncio.timeout(TIMEOUT_S):
        await b.services.tasks.settled()
    await wait_until(lambda: nothing_waits(a), TIMEOUT_S)
    assert not node.cancelled


async def nothing_waits(instance: InProcessInstance) -> bool:
    return (await instance.stores.inboxes.counts(instance.name)).waiting == 0


async def test_every_job_ends_once_while_nodes_come_and_go(open_instance: OpenInstance) -> None:
    instance = await open_instance(speech__placement_wait_ms=5000)
    listener = RecordingListener()
    steady = await instance.node("steady", slots=100, features=ACKING, working=True)
    nodes = [await instance.node(f"n{number}", features=ACKING) for number in range(6)]
    for number in range(60):
        instance.services.dispatcher.take(job_request(f"s-{number}", number, listener=listener))
    await wait_until(lambda: len(listener.dispatched) >= 60, TIMEOUT_S)
    for node in nodes:
        node.disconnect()
    await wait_until(lambda: len(listener.ends) == 60, TIMEOUT_S)
    assert {end.outcome for end in listener.ends.values()} == {Outcome.OK}
    await wait_until(lambda: len(instance.services.dispatcher) == 0, TIMEOUT_S)
    assert instance.services.view.fleet.reserved("steady") == 0
    assert len(steady.jobs) == 60
    await asyncio.wait_for(instance.services.dispatcher.drained(1), TIMEOUT_S)
