"""What one instance learns of a node, the others respect: cool-downs, losses, whose socket it is."""

import asyncio
from collections.abc import Callable

import pytest

from dragoman.domain.job import Outcome
from dragoman.domain.placement import Assign, NoNode, Wait
from dragoman.domain.turn import Turn
from dragoman.protocol.codes import Close
from dragoman.services.speech.job_placement import Recorded
from dragoman.services.speech.turn_queue import TurnQueue
from support.in_process import PATIENCE_S, Ear, House, Open, Undriven, WiredNode, missing_model, order, place
from support.redis_servers import LONG_CLUSTER
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)

# Nothing but announcements can tell an instance of another's nodes within the life of a test.
BY_ANNOUNCEMENT_ALONE = {
    "scheduler__phase2__node_snapshot__refresh_interval_ms": 60_000,
    "scheduler__phase2__node_snapshot__presence_ttl_seconds": 90,
}


async def fail_once(house: House, node: WiredNode, session: str, service: str = "nmt-service") -> Ear:
    """A job that its node cannot do, because a model is missing."""
    ear, before = Ear(), len(node.jobs)
    house.services.dispatcher.take(order(session, ear=ear))
    await wait_until(lambda: len(node.jobs) > before, PATIENCE_S)
    node.answer(node.jobs[before], success=False, error=missing_model(service))
    return ear


async def place_one(house: House, session: str) -> Assign | Wait:
    placed = await place(house, order(session))
    assert isinstance(placed, Assign | Wait)
    return placed


async def test_a_node_seen_on_one_instance_is_usable_on_another_by_its_announcement_alone(house: Open) -> None:
    a, b = await house("a", **BY_ANNOUNCEMENT_ALONE), await house("b", **BY_ANNOUNCEMENT_ALONE)
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    ear = Ear()
    b.services.dispatcher.take(order(ear=ear))
    await wait_until(lambda: node.jobs, PATIENCE_S)
    node.answer(node.jobs[0])
    await wait_until(lambda: ear.ends, PATIENCE_S)
    assert ear.ends[0].outcome is Outcome.OK


async def test_a_node_lost_on_one_instance_is_not_asked_by_another_by_the_announcement_alone(house: Open) -> None:
    a, b = await house("a", **BY_ANNOUNCEMENT_ALONE), await house("b", **BY_ANNOUNCEMENT_ALONE)
    node = await a.node("n", features=())
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    ear = Ear()
    b.services.dispatcher.take(order(ear=ear))
    await wait_until(lambda: node.jobs, PATIENCE_S)
    good = await b.node("good", working=True)
    node.hang_up()
    await wait_until(lambda: ear.ends, PATIENCE_S)
    assert ear.ends[0].outcome is Outcome.OK
    assert not b.knows("n")
    assert [job["attempt_id"] for job in good.jobs] == [2]


async def test_a_cool_down_learnt_by_one_instance_is_respected_by_another(house: Open) -> None:
    a = await house("a", speech__placement_wait_ms=100, **BY_ANNOUNCEMENT_ALONE)
    b = await house("b", speech__placement_wait_ms=100, **BY_ANNOUNCEMENT_ALONE)
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    ear = await fail_once(a, node, "s-1")
    await wait_until(lambda: ear.ends, PATIENCE_S)
    await wait_until(lambda: b.services.view.fleet.cooling("n", "nmt", asyncio.get_running_loop().time()), PATIENCE_S)
    placed = await place_one(b, "s-2")
    assert isinstance(placed, Wait)
    assert placed.reason is NoNode.ALL_COOLING_DOWN
    assert len(node.jobs) == 1


async def test_a_cool_down_is_respected_by_an_instance_that_starts_later(house: Open) -> None:
    a = await house("a", speech__placement_wait_ms=100)
    node = await a.node("n")
    ear = await fail_once(a, node, "s-1")
    await wait_until(lambda: ear.ends, PATIENCE_S)
    late = await house("late", speech__placement_wait_ms=100)
    assert late.knows("n")
    placed = await place_one(late, "s-2")
    assert isinstance(placed, Wait)
    assert placed.reason is NoNode.ALL_COOLING_DOWN


async def test_a_node_cools_down_only_for_what_it_lacks(house: Open) -> None:
    here = await house("a", speech__max_attempts=1)
    node = await here.node("n")
    ear = await fail_once(here, node, "s-1", "semantic-service")  # which no pipeline here asks for
    await wait_until(lambda: ear.ends, PATIENCE_S)
    assert isinstance(await place_one(here, "s-2"), Assign)


async def test_reports_within_the_window_count_once_and_too_many_cool_the_whole_node(house: Open) -> None:
    here = await house("a", speech__max_attempts=1)
    node = await here.node("n", slots=40)
    ear = Ear()
    for number in range(32):
        here.services.dispatcher.take(order(f"s-{number}", number, ear=ear))
    await wait_until(lambda: len(node.jobs) == 32, PATIENCE_S)
    for job in node.jobs:
        node.answer(job, success=False, error=missing_model("semantic-service"))
    await wait_until(lambda: len(ear.ends) == 32, PATIENCE_S)
    counted = {word: here.count("dragoman_storm_total", verdict=word) for word in ("MARKED", "DEBOUNCED")}
    assert counted == {"MARKED": 1, "DEBOUNCED": 29}
    assert here.count("dragoman_storm_total", verdict="RATE_LIMITED") == 2
    assert here.services.view.fleet.cooling("n", "anything", asyncio.get_running_loop().time())


async def test_a_node_that_dials_in_elsewhere_leaves_its_former_owner(house: Open) -> None:
    a, b = await house("a"), await house("b")
    former = await a.node("n")
    await wait_until(lambda: b.knows("n"), PATIENCE_S)
    newer = await b.node("n", working=True)
    await wait_until(lambda: former.wire.closed, PATIENCE_S)
    assert former.wire.code == Close.REPLACED
    former.hang_up()  # its socket ends after it was replaced: nothing of the newer one goes with it
    for house_ in (a, b):
        await wait_until(lambda: owner_in_view(house_, "n") == "b", PATIENCE_S)  # noqa: B023
    assert await a.stores.owners.node_owner("n") == "b"
    ear = Ear()
    a.services.dispatcher.take(order(ear=ear))
    await wait_until(lambda: ear.ends, PATIENCE_S)
    assert ear.ends[0].outcome is Outcome.OK
    assert len(newer.jobs) == 1


def owner_in_view(house: House, node: str) -> str:
    known = house.services.view.fleet.get(node)
    return known.instance if known is not None else ""


async def test_a_newer_connection_of_a_node_replaces_the_older_one_here(house: Open) -> None:
    here = await house("a")
    older = await here.node("n")
    newer = await here.node("n", working=True)
    assert older.wire.code == Close.REPLACED
    older.hang_up()
    ear = Ear()
    here.services.dispatcher.take(order(ear=ear))
    await wait_until(lambda: ear.ends, PATIENCE_S)
    assert ear.ends[0].outcome is Outcome.OK
    assert (len(older.jobs), len(newer.jobs)) == (0, 1)


async def test_slots_of_running_jobs_are_renewed_before_they_expire(house: Open) -> None:
    here = await house("a", speech__reservation_ttl_ms=3500)
    node = await here.node("n", slots=1)
    ear = Ear()
    here.services.dispatcher.take(order(ear=ear))
    await wait_until(lambda: node.jobs, PATIENCE_S)
    first = await expiry(here)
    await here.services.dispatcher.renew()
    assert await expiry(here) > first
    node.answer(node.jobs[0])
    await wait_until(lambda: ear.ends, PATIENCE_S)


async def test_one_that_was_declared_dead_uses_again_the_slots_its_jobs_had(house: Open) -> None:
    """The instance that took over frees them; its own count of them goes with its jobs."""
    a, b = await house("a"), await house("b")
    node = await b.node("n", slots=1)
    await wait_until(lambda: a.knows("n"), PATIENCE_S)
    a.services.dispatcher.take(order("s-1"))
    await wait_until(lambda: node.jobs, PATIENCE_S)
    assert isinstance(Undriven(a, order("s-2")).look(), Wait)
    a.services.dispatcher.abandon_all()
    assert isinstance(Undriven(a, order("s-2")).look(), Assign)


async def expiry(house: House) -> int:
    (_, score) = await house.redis.call("ZRANGE", house.keys.reserved("n"), 0, 0, "WITHSCORES")
    return int(score)


async def test_the_utterances_of_a_session_reach_their_node_in_order_of_index(house: Open) -> None:
    """Old nodes do not translate an utterance that comes after a later one."""
    here = await house("a", speech__placement_wait_ms=50_000)
    node = await here.node("n", slots=8, features=(), working=True)
    ear = Ear()
    for index in range(300):
        here.services.dispatcher.take(order(index=index, ear=ear))
    await wait_until(lambda: len(ear.ends) == 300, PATIENCE_S)
    assert [job["utterance_index"] for job in node.jobs] == list(range(300))


async def turn_bound(here: House, owner: str) -> None:
    """Two jobs of one turn; a session of `owner`'s has it when the first has found its node."""
    node = await here.node("n", features=("job_ack",))
    await here.stores.owners.claim_session("s-1", owner)
    ear, line = Ear(), TurnQueue(Turn("turn-1"))
    here.services.dispatcher.take(order(line=line, ends_turn=False, ear=ear))
    await wait_until(lambda: node.jobs, PATIENCE_S)
    node.answer(node.jobs[0])
    await wait_until(lambda: ear.ends, PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await here.services.tasks.settled()


async def test_the_node_of_a_turn_is_remembered_while_its_session_is_here(house: Open) -> None:
    here = await house("a")
    await turn_bound(here, "a")
    assert await here.stores.turns.current("s-1") == "turn-1"
    assert await here.stores.turns.node_of("turn-1") == "n"
    await here.stores.turns.end("s-1", "turn-1")


async def test_the_node_of_a_turn_whose_session_went_on_elsewhere_is_not_left_behind(house: Open) -> None:
    """Who has the session now looked for a turn before this one had a node, and would never end it."""
    here = await house("a")
    await turn_bound(here, "b")
    assert await here.stores.turns.current("s-1") is None
    assert await here.stores.turns.node_of("turn-1") is None


async def test_a_turn_whose_first_job_was_ended_with_its_instance_leaves_nothing_behind(
    house: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, heir = await house("a"), await house("b")
    await heir.node("n")
    await wait_until(lambda: paused.knows("n"), PATIENCE_S)
    ear = Ear()
    mine = order(line=TurnQueue(Turn("turn-1")), ends_turn=False, ear=ear)
    paused.services.dispatcher.take(mine)
    placing = paused.services.dispatcher._driven[mine.job_id]._placement
    record_it = placing._record

    async def taken_over(binds_turn: bool, meanwhile: Callable[[], None]) -> Recorded:
        await heir.services.orphans.adopt(mine.job_id, paused.name)
        return await record_it(binds_turn, meanwhile)

    monkeypatch.setattr(placing, "_record", taken_over)
    await wait_until(lambda: ear.ends, PATIENCE_S)
    assert ear.ends[0].code == "INSTANCE_LOST"
    async with asyncio.timeout(PATIENCE_S):
        await paused.services.tasks.settled()
    assert await heir.stores.turns.current("s-1") is None
    assert await heir.stores.turns.node_of("turn-1") is None


async def test_an_utterance_that_waits_for_a_node_holds_up_nobody(house: Open) -> None:
    here = await house("a", speech__placement_wait_ms=20_000)
    await here.node("n", working=True)
    ear = Ear()
    here.services.dispatcher.take(order(index=0, tgt="xx", ear=ear))
    here.services.dispatcher.take(order(index=1, ear=ear))
    await wait_until(lambda: 1 in ear.ends, PATIENCE_S)
    assert 0 not in ear.ends
    await here.node("other", languages=("en", "xx"), working=True)
    await wait_until(lambda: 0 in ear.ends, PATIENCE_S)
    assert {end.outcome for end in ear.ends.values()} == {Outcome.OK}
