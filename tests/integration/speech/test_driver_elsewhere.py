"""Driving jobs whose node is far or old: kept back until a turn ends, carried through inboxes, bounced."""

import asyncio

import pytest

from dragoman.domain.job import Outcome, State
from dragoman.domain.turn import Turn
from dragoman.services.speech.job_request import JobRequest
from dragoman.services.speech.turn_queue import TurnQueue
from dragoman.services.upkeep.presence import TakeoverResult
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import Push
from dragoman.store.instances import Presence
from dragoman.store.nodes import Snapshot
from integration.speech.test_resumption import Client
from integration.speech.test_router import fill
from support.in_process import (
    ACKING,
    OLD,
    PATIENCE_S,
    SELDOM_RENEWED,
    Ear,
    House,
    Open,
    WiredNode,
    end_of,
    given,
    in_state,
    order,
    out_of_time,
    start,
)
from support.waiting import wait_until

# -- what old nodes keep back ----------------------------------------------------------------------


async def turn_on(here: House, node: WiredNode, ear: Ear) -> tuple[TurnQueue, JobRequest]:
    """A max-duration job that an old node keeps, of a turn that goes on."""
    line = TurnQueue(Turn("turn-1"))
    kept = order(line=line, ends_turn=False, ear=ear)
    here.services.dispatcher.take(kept)
    await given(node)
    return line, kept


async def finish_turn(here: House, line: TurnQueue, ear: Ear) -> None:
    here.services.dispatcher.take(order(line=line, index=1, ear=ear))
    here.services.dispatcher.turn_ended("s-1", line.turn.id)
    await here.stores.turns.end("s-1", line.turn.id)


async def test_a_job_an_old_node_keeps_has_no_deadline_while_its_turn_is_open_but_its_slot_goes_back(
    house: Open,
) -> None:
    here = await house(**out_of_time(200))
    node = await here.node("n", features=OLD)
    ear = Ear()
    line, kept = await turn_on(here, node, ear)
    assert await here.reserved("n") == 1

    async def slot_is_back() -> bool:
        return await here.reserved("n") == 0

    await wait_until(slot_is_back, PATIENCE_S)
    assert not node.cancelled
    assert not ear.ends
    node.answer(node.jobs[0])
    assert await end_of(ear) is Outcome.OK
    await finish_turn(here, line, ear)
    node.answer(await given(node, 2))
    assert await end_of(ear, 1) is Outcome.OK
    assert (await wait_until(lambda: here.released(kept.job_id), PATIENCE_S))["attempt"] == "1"


async def test_an_unanswered_job_whose_turn_ended_with_a_result_of_the_same_node_is_empty(house: Open) -> None:
    here = await house()
    node = await here.node("n", features=OLD)
    ear = Ear()
    line, kept = await turn_on(here, node, ear)
    await finish_turn(here, line, ear)
    node.answer(await given(node, 2), text_asr="all of it")
    assert await end_of(ear, 1) is Outcome.OK
    assert await end_of(ear, 0) is Outcome.EMPTY
    record = await wait_until(lambda: here.released(kept.job_id), PATIENCE_S)
    assert (record["outcome"], record["code"]) == ("empty", "")
    assert await here.reserved("n") == 0


async def test_an_unanswered_job_whose_turn_ended_on_another_node_is_out_of_time(house: Open) -> None:
    here = await house(speech__attempt_timeout_ms=500, speech__job_ack_timeout_ms=500)
    node = await here.node("n", features=OLD)
    ear = Ear()
    line, _ = await turn_on(here, node, ear)
    other = await here.node("other", features=OLD, working=True)
    here.services.view.fleet.cool("n", "nmt", float("inf"))
    await finish_turn(here, line, ear)
    assert await end_of(ear, 1) is Outcome.OK
    assert other.jobs
    assert await end_of(ear, 0) is Outcome.EXPIRED


# -- between instances -----------------------------------------------------------------------------


async def full_inbox(here: House, node: str, features: tuple[str, ...]) -> None:
    """A node whose owner lives, but has an inbox that takes nothing more."""
    owner = f"owner-of-{node}"
    await here.stores.instances.open(owner, "first", "scheduler")
    data = Presence(owner, "first")
    await here.stores.instances.renew(data, 60_000)
    while await here.stores.inboxes.push(owner, "evict", b"{}") == "OK":
        pass
    spoken = ["en", "es"]
    snapshot = Snapshot(node, 1, owner, slots=500, asr=spoken, semantic=spoken, tts=spoken, features=list(features))
    here.services.view.seen(snapshot)


@pytest.mark.parametrize("features", [OLD, ACKING], ids=["old", "ours"])
@pytest.mark.parametrize("ends_turn", [True, False], ids=["whole turn", "turn goes on"])
async def test_a_full_inbox_at_a_nodes_owner_frees_the_slot_and_the_next_candidate_has_the_job(
    house: Open, features: tuple[str, ...], ends_turn: bool
) -> None:
    here = await house(scheduler__phase2__stream_maxlen=3)
    near = await here.node("near", slots=100, features=features, working=True)
    await full_inbox(here, "far", features)
    ear = Ear()
    for number in range(30):
        line = TurnQueue(Turn(f"turn-{number}"))
        here.services.dispatcher.take(order(f"s-{number}", number, line=line, ends_turn=ends_turn, ear=ear))
    await wait_until(lambda: len(ear.ends) == 30, PATIENCE_S)
    for number in range(30):
        await here.stores.turns.end(f"s-{number}", f"turn-{number}")
    assert {end.outcome for end in ear.ends.values()} == {Outcome.OK}
    assert here.count("dragoman_inbox_push_total", verdict="FULL") >= 1
    assert len(near.jobs) == 30

    async def nothing_held() -> bool:
        return not await here.reserved("far") and not await here.reserved("near")

    await wait_until(nothing_held, PATIENCE_S)


async def test_an_assignment_that_finds_its_node_gone_bounces_and_goes_elsewhere(house: Open) -> None:
    a, b = await house("a"), await house("b")
    lost = await b.node("lost", slots=100)
    await wait_until(lambda: a.knows("lost"), PATIENCE_S)
    # b has forgotten the node and a has not heard of it.
    b.services.local_nodes.close_all(4000)  # type: ignore[arg-type]
    ear = Ear()
    a.services.dispatcher.take(order(ear=ear))
    await wait_until(lambda: ear.dispatched, PATIENCE_S)
    good = await a.node("good", working=True)
    assert await end_of(ear) is Outcome.OK
    assert not lost.jobs
    assert [job["attempt_id"] for job in good.jobs] == [2]


async def test_a_job_of_one_instance_is_answered_by_a_node_of_another(house: Open) -> None:
    a, b = await house("a"), await house("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    ear = Ear()
    mine = order(ear=ear)
    b.services.dispatcher.take(mine)
    job = await given(node)
    for say, state in ((node.ack, State.ACCEPTED), (node.start, State.RUNNING)):
        say(job)
        await wait_until(lambda: in_state(b, mine, state), PATIENCE_S)  # noqa: B023
    node.partial(job, "half")
    node.answer(job)
    assert await end_of(ear) is Outcome.OK
    assert ear.partials == ["half"]
    record = await wait_until(lambda: b.released(mine.job_id), PATIENCE_S)
    assert (record["driver"], record["node_id"], record["outcome"]) == ("b", "n", "ok")
    assert "acked_ms" in record
    assert "started_ms" in record


async def taken_over_and_back(a: House, by: House) -> None:
    """Taken for dead, while it was only paused, and on its feet again as a new incarnation."""
    await a.redis.call("DEL", a.keys.presence(a.name))
    assert await by.services.takeover.take_over(a.name) is TakeoverResult.DONE
    await a.services.presence.run_once()
    assert a.services.presence.has_lease()


async def test_what_a_node_answers_to_one_that_was_declared_dead_and_came_back_reaches_who_has_the_job_now(
    house: Open,
) -> None:
    """The node's instance knows it as the driver, and it reads its inbox again."""
    a, b = await house("a", **SELDOM_RENEWED), await house("b")
    node = await b.node("n")
    await wait_until(lambda: a.knows("n"), PATIENCE_S)
    client = Client()
    await client.open(a)
    job = await client.spoken(a, node, 0)
    await taken_over_and_back(a, by=b)
    await client.resume(b)
    node.ack(job)
    node.answer(job)
    await client.hears(0)
    record = await wait_until(lambda: b.released(job["job_id"]), PATIENCE_S)
    assert (record["driver"], record["outcome"]) == ("b", "ok")


async def test_what_a_node_answers_to_a_job_that_is_over_is_dropped_where_it_was_driven(house: Open) -> None:
    a, b = await house("a"), await house("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    ear = Ear()
    b.services.dispatcher.take(order(ear=ear))
    job = await given(node)
    for _ in range(2):
        node.answer(job)
        assert await end_of(ear) is Outcome.OK
    await wait_until(lambda: b.count("dragoman_results_dropped_total", reason="finished") == 1, PATIENCE_S)


async def test_a_node_is_told_that_its_job_is_cancelled_when_its_owners_inbox_has_room_again(house: Open) -> None:
    a, b = await house("a"), await house("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    mine, _ = await start(b, node)
    before = fill(b)
    b.services.dispatcher.cancel_session(mine.session_id, "socket closed")
    await wait_until(lambda: b.count("dragoman_inbox_push_total", verdict="FULL") >= 2, PATIENCE_S)
    assert not node.cancelled
    b.services.router.inboxes.settings = before
    await wait_until(lambda: node.cancelled == [mine.job_id], PATIENCE_S)


async def test_a_node_is_told_that_its_job_is_cancelled_when_redis_is_back(
    house: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await house("a"), await house("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    mine, _ = await start(b, node)

    async def away(*args: object) -> Push:
        monkeypatch.undo()
        raise RedisAway("the connection was cut")

    monkeypatch.setattr(b.services.router.inboxes, "push", away)
    b.services.dispatcher.cancel_session(mine.session_id, "socket closed")
    await wait_until(lambda: node.cancelled == [mine.job_id], PATIENCE_S)


async def test_a_node_that_has_the_job_again_is_not_told_late_that_its_first_attempt_is_cancelled(
    house: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would drop the second: a cancelled job is named without its attempt."""
    a, b = await house("a"), await house("b", speech__job_ack_timeout_ms=300)
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    inboxes, push = b.services.router.inboxes, b.services.router.inboxes.push

    async def no_room_for_cancels(instance: str, kind: str, data: bytes, trace_id: str = "") -> Push:
        return Push.FULL if kind == "cancel" else await push(instance, kind, data, trace_id)

    monkeypatch.setattr(inboxes, "push", no_room_for_cancels)
    _, ear = await start(b, node)
    again = await given(node, 2)
    node.ack(again)
    await wait_until(lambda: ear.taken, PATIENCE_S)
    monkeypatch.undo()
    node.answer(again)
    assert await end_of(ear) is Outcome.OK
    async with asyncio.timeout(PATIENCE_S):
        await b.services.tasks.settled()
    await wait_until(lambda: nothing_waits(a), PATIENCE_S)
    assert not node.cancelled


async def nothing_waits(house: House) -> bool:
    return (await house.stores.inboxes.tally(house.name)).waiting == 0


async def test_every_driven_job_is_told_once_when_nodes_come_and_go(house: Open) -> None:
    here = await house(speech__placement_wait_ms=5000)
    ear = Ear()
    steady = await here.node("steady", slots=100, features=ACKING, working=True)
    nodes = [await here.node(f"n{number}", features=ACKING) for number in range(6)]
    for number in range(60):
        here.services.dispatcher.take(order(f"s-{number}", number, ear=ear))
    await wait_until(lambda: len(ear.dispatched) >= 60, PATIENCE_S)
    for node in nodes:
        node.hang_up()
    await wait_until(lambda: len(ear.ends) == 60, PATIENCE_S)
    assert {end.outcome for end in ear.ends.values()} == {Outcome.OK}
    await wait_until(lambda: len(here.services.dispatcher) == 0, PATIENCE_S)
    assert here.services.view.fleet.reserved("steady") == 0
    assert len(steady.jobs) == 60
    await asyncio.wait_for(here.services.dispatcher.drained(1), PATIENCE_S)
