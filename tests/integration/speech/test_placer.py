"""One request is one job, and no node has more jobs than slots, however many instances place at the same moment."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from dragoman.domain.job import Outcome, State
from dragoman.domain.job_signals import BareSignal, Duplicate
from dragoman.domain.placement import AffinityResult, Assign, NoNode, Turn, Wait
from dragoman.protocol.peer import SlotFreed
from dragoman.protocol.session import Pipeline
from dragoman.services.speech.job_placement import Recorded
from dragoman.services.speech.job_request import JobRequest, TurnQueue
from dragoman.services.speech.messages import needs_of
from dragoman.store.errors import RedisAway
from dragoman.store.jobs import LOCK_MS
from dragoman.store.nodes import ReleaseReply
from integration.speech.test_resumption import Gate
from support.in_process import (
    TIMEOUT_S,
    InProcessInstance,
    OpenInstance,
    RecordingListener,
    Undriven,
    job_request,
    place,
)
from support.redis_servers import LONG_CLUSTER
from support.waiting import wait_until

BOTH = ["single", LONG_CLUSTER]

pytestmark = pytest.mark.parametrize("redis_at", BOTH, indirect=True)


async def two(open_instance: OpenInstance, **flags: object) -> tuple[InProcessInstance, InProcessInstance]:
    """Two instances, each with clients of its own, that know each other's nodes."""
    return await open_instance("a", **flags), await open_instance("b", **flags)


async def all_jobs(instance: InProcessInstance, orders: list[JobRequest]) -> list[dict[str, str]]:
    found = await asyncio.gather(*(instance.job(one.job_id) for one in orders))
    return [record for record in found if record]


async def test_two_hundred_creations_of_one_request_on_two_instances_make_one_job(open_instance: OpenInstance) -> None:
    a, b = await two(open_instance, speech__placement_wait_ms=60_000, speech__job_timeout_ms=120_000)
    await a.node("n", slots=500)
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    orders = [job_request() for _ in range(200)]
    outcomes = await asyncio.gather(*(place((a, b)[at % 2], each) for at, each in enumerate(orders)))
    winners = [each.job_id for each, outcome in zip(orders, outcomes, strict=True) if isinstance(outcome, Assign)]
    assert len(winners) == 1
    assert {outcome.job_id for outcome in outcomes if isinstance(outcome, Duplicate)} == set(winners)
    assert Counter(type(outcome) for outcome in outcomes) == {Assign: 1, Duplicate: 199}
    recorded = await all_jobs(a, orders)
    assert [record["job_id"] for record in recorded if record["state"] == State.DISPATCHED] == winners
    assert await a.stores.reservations.held("n") == winners
    await wait_until(lambda: one_is_driven(a, b), TIMEOUT_S)


async def one_is_driven(*instances: InProcessInstance) -> bool:
    return sum([await one.driven() for one in instances]) == 1


async def test_placement_that_waits_for_another_creation_reserves_no_slot(open_instance: OpenInstance) -> None:
    """Or the creator would wait for that very slot, and both would until they give up."""
    a, b = await two(open_instance, speech__placement_wait_ms=1500)
    await a.node("n", slots=1)
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    creator, other = job_request(), job_request()
    assert await a.stores.jobs.lock(creator.request_id, creator.job_id)  # and it has no slot yet
    waiting = asyncio.create_task(place(b, other))
    await wait_until(lambda: b.redis.ops["reserve_slot"].ok, TIMEOUT_S)
    assert isinstance(await place(a, creator), Assign)
    assert await waiting == Duplicate(creator.job_id)
    assert await a.stores.reservations.held("n") == [creator.job_id]


async def test_a_request_created_eight_times_for_the_last_slot_is_placed(open_instance: OpenInstance) -> None:
    a, b = await two(open_instance, speech__placement_wait_ms=400)
    await a.node("n", slots=1)
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    for number in range(3):
        placings = [Undriven((a, b)[at % 2], job_request(index=number)) for at in range(8)]
        outcomes = await asyncio.gather(*(placing.find_node() for placing in placings))
        assert Counter(type(outcome) for outcome in outcomes) == {Assign: 1, Duplicate: 7}
        for placing in placings:
            await placing.release_slot()


async def test_a_crash_between_lock_and_binding_frees_the_request_when_the_lock_lapses(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance("a")
    await instance.node("n")
    mine = job_request()
    # All that a crashed creator leaves: its lock. Its slot and its place among the driven are found by others.
    assert await instance.stores.jobs.lock(mine.request_id, "job-of-the-dead") == b"OK"
    lock = instance.keys.request_lock(mine.request_id)
    assert 0 < await instance.redis.call("PTTL", lock) <= LOCK_MS
    placing = asyncio.create_task(place(instance, mine))
    assert await instance.redis.call("GET", lock) == b"job-of-the-dead"
    assert isinstance(await placing, Assign)
    binding = instance.stores.jobs.parse_binding(await instance.stores.jobs.binding(mine.request_id))
    assert binding is not None
    assert binding.job_id == mine.job_id


async def test_a_job_that_lost_its_binding_ends_cancelled_and_gives_its_slot_back(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock had lapsed before it was recorded, and another instance bound the request."""
    a, b = await two(open_instance)
    await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    slow, quick = job_request(), job_request()
    placing = Undriven(a, slow)
    record_it = placing._record

    async def lapsed(binds_turn: bool, meanwhile: Callable[[], None]) -> Recorded:
        await a.stores.jobs.unlock(slow.request_id, slow.job_id)
        assert isinstance(await place(b, quick), Assign)
        return await record_it(binds_turn, meanwhile)

    monkeypatch.setattr(placing, "_record", lapsed)
    assert await placing.find_node() == Duplicate(quick.job_id)
    record = await a.job(slow.job_id)
    assert (record["state"], record["outcome"]) == (State.FINISHED, Outcome.CANCELLED)
    assert await a.stores.reservations.held("n") == [quick.job_id]


async def test_a_job_whose_instance_was_declared_dead_before_it_was_recorded_is_not_recorded_any_more(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance was only paused, and goes on from where it stood: the job has ended, and its slot goes back."""
    paused, heir = await two(open_instance)
    await heir.node("n")
    await wait_until(lambda: paused.knows("n"), TIMEOUT_S)
    mine = job_request()
    placing = Undriven(paused, mine)
    record_it = placing._record

    async def taken_over(binds_turn: bool, meanwhile: Callable[[], None]) -> Recorded:
        await heir.services.orphans.adopt(mine.job_id, paused.name)
        return await record_it(binds_turn, meanwhile)

    monkeypatch.setattr(placing, "_record", taken_over)
    assert await placing.find_node() == BareSignal.DECLARED_DEAD
    record = await heir.job(mine.job_id)
    assert (record["state"], record["outcome"], record["code"]) == (State.RELEASED, Outcome.FAILED, "INSTANCE_LOST")
    assert (record["driver"], record["session_id"]) == (heir.name, mine.session_id)
    assert not await heir.stores.reservations.held("n")
    assert not await heir.driven()


async def test_a_job_that_waited_for_a_node_while_its_instance_was_declared_dead_is_not_begun(
    open_instance: OpenInstance,
) -> None:
    """Nobody knew of it yet, so nobody could end it."""
    paused, heir = await two(open_instance)
    mine = job_request(turn_queue=TurnQueue(Turn("turn-1")), ends_turn=False)
    undriven = Undriven(paused, mine)
    choosing = Gate(undriven, "_wait_for_node")
    placing = asyncio.ensure_future(undriven.find_node())
    await choosing.reached()
    assert await heir.stores.instances.mark_takeover(paused.name, paused.services.presence.incarnation) == "OK"
    await heir.node("n")
    await wait_until(lambda: paused.knows("n"), TIMEOUT_S)
    choosing.open()
    assert await placing == BareSignal.DECLARED_DEAD
    assert not await heir.job(mine.job_id)
    assert await heir.stores.turns.current(mine.session_id) is None
    await wait_until(lambda: nothing_held(heir), TIMEOUT_S)
    assert not await paused.driven()


async def test_the_slots_of_a_node_are_never_exceeded_by_fifty_jobs_on_two_instances(
    open_instance: OpenInstance,
) -> None:
    a, b = await two(open_instance, speech__placement_wait_ms=20_000)
    node = await a.node("n", slots=4)
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    ears = [RecordingListener() for _ in range(50)]
    held, running = [], []
    for number, listener in enumerate(ears):
        (a, b)[number % 2].services.dispatcher.take(job_request(session=f"s-{number}", listener=listener))
    for done in range(50):
        await wait_until(lambda: len(node.jobs) > done, TIMEOUT_S)  # noqa: B023
        running.append(len(node.jobs) - done)
        held.append(await a.reserved("n"))
        node.answer(node.jobs[done])
    await wait_until(lambda: all(listener.ends for listener in ears), TIMEOUT_S)
    assert {listener.ends[0].outcome for listener in ears} == {Outcome.OK}
    assert max(held) == 4
    assert max(running) <= 4
    assert len({job["job_id"] for job in node.jobs}) == 50
    await wait_until(lambda: nothing_held(a), TIMEOUT_S)


async def nothing_held(instance: InProcessInstance) -> bool:
    return not await instance.reserved("n")


async def test_jobs_of_one_moment_spread_over_the_nodes_and_none_is_refused(open_instance: OpenInstance) -> None:
    """What was asked for a moment ago counts, though Redis has not answered yet."""
    instance = await open_instance("a")
    nodes = [f"n{number}" for number in range(5)]
    for node in nodes:
        await instance.node(node, slots=20)
    placings = [Undriven(instance, job_request(f"s-{number}")) for number in range(100)]
    placed = await asyncio.gather(*(placing.find_node() for placing in placings))
    assert all(isinstance(one, Assign) for one in placed)
    assert instance.redis.ops["reserve_slot"].ok == 100
    assert sum([await instance.reserved(node) for node in nodes]) == 100
    assert [instance.services.view.fleet.reserved(node) for node in nodes] == [
        await instance.reserved(node) for node in nodes
    ]
    for placing in placings:
        await placing.release_slot()
    assert not any(instance.services.view.fleet.reserved(node) for node in nodes)


async def test_reservation_that_is_not_renewed_expires(open_instance: OpenInstance) -> None:
    instance = await open_instance("a")
    await instance.node("n", slots=1)
    reserved = instance.keys.reserved("n")
    # As an instance that died left it: a slot that is about to expire.
    seconds, micros = await instance.redis.call_at(reserved, "TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    await instance.redis.call("ZADD", reserved, now_ms + 700, "job-of-the-dead")
    mine = job_request()
    placed = await place(instance, mine)
    assert isinstance(placed, Assign)
    assert await instance.stores.reservations.held("n") == [mine.job_id]


async def test_a_slot_is_given_back_once_however_often_it_is_asked(open_instance: OpenInstance) -> None:
    instance = await open_instance("a")
    await instance.node("n", slots=1)
    next_one, fleet = job_request(index=1), instance.services.view.fleet
    placing = Undriven(instance, job_request(index=0))
    assert isinstance(await placing.find_node(), Assign)
    assert fleet.reserved("n") == 1
    assert await asyncio.gather(*(placing.release_slot() for _ in range(5))) == [
        ReleaseReply.FREED,
        *[ReleaseReply.NONE] * 4,
    ]
    assert fleet.reserved("n") == 0
    assert isinstance(await place(instance, next_one), Assign)
    assert await placing.release_slot() is ReleaseReply.NONE
    assert await instance.stores.reservations.held("n") == [next_one.job_id]


async def test_a_job_of_a_known_request_holds_nothing_afterwards(open_instance: OpenInstance) -> None:
    a, b = await two(open_instance)
    await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    first, again = job_request(), job_request()
    assert isinstance(await place(a, first), Assign)
    placing = Undriven(b, again)
    assert await placing.find_node() == Duplicate(first.job_id)
    assert placing.slot is None
    assert await a.stores.reservations.held("n") == [first.job_id]
    assert await b.stores.jobs.get(again.job_id) is None
    await wait_until(lambda: one_is_driven(a, b), TIMEOUT_S)


async def test_a_job_is_recorded_with_how_long_it_waited_for_its_place(open_instance: OpenInstance) -> None:
    instance = await open_instance("a", speech__placement_wait_ms=20_000)
    mine = job_request()
    placing = asyncio.ensure_future(place(instance, mine))
    mine.cut_at -= 3  # as if it had waited since then
    await instance.node("n")
    assert isinstance(await placing, Assign)
    assert 3000 <= int((await instance.job(mine.job_id))["waited_ms"]) < 3000 + TIMEOUT_S * 1000


async def test_a_waiting_job_is_woken_by_a_slot_that_goes_back_on_the_other_instance(
    open_instance: OpenInstance,
) -> None:
    a, b = await two(open_instance, speech__placement_wait_ms=20_000)
    await a.node("n", slots=1)
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    holder, listener = Undriven(a, job_request(session="s-holder")), RecordingListener()
    waiting = job_request(session="s-waiting", listener=listener)
    assert isinstance(await holder.find_node(), Assign)
    placing = asyncio.create_task(place(b, waiting))
    await wait_until(lambda: listener.waits, TIMEOUT_S)
    assert listener.waits[-1] is NoNode.ALL_FULL
    assert await holder.release_slot() is ReleaseReply.FREED
    assert isinstance(await placing, Assign)


async def test_the_news_of_a_free_slot_may_overtake_the_refusal(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies and announcements come by different connections."""
    instance = await open_instance("a")
    await instance.node("n", slots=1)
    reservations, reserve = instance.stores.reservations, instance.stores.reservations.reserve
    assert await reserve("n", "job-of-another", 1) == b"OK"

    def overtaken(node: str, job: str, limit: int) -> "asyncio.Future[bytes]":
        monkeypatch.setattr(reservations, "reserve", reserve)
        return asyncio.ensure_future(refused_late(reserve(node, job, limit)))

    async def refused_late(reply: "asyncio.Future[bytes]") -> bytes:
        refusal = await reply
        assert await reservations.release("n", "job-of-another", 1) is ReleaseReply.FREED
        instance.services.announcer.announce(SlotFreed("n"))
        return refusal

    monkeypatch.setattr(reservations, "reserve", overtaken)
    assert isinstance(await place(instance, job_request()), Assign)


async def test_last_released_slot_resumes_waiting_placements(open_instance: OpenInstance) -> None:
    """It was allowed beyond the slots; those who wait are not."""
    instance = await open_instance("a", speech__placement_wait_ms=20_000)
    await instance.node("n", slots=1)
    turn_queue = TurnQueue(Turn("turn-1"))
    first, second = (
        Undriven(instance, job_request(turn_queue=turn_queue, ends_turn=False)),
        Undriven(instance, job_request(turn_queue=turn_queue, index=1)),
    )
    listener = RecordingListener()
    assert isinstance(await first.find_node(), Assign)
    await first.release_slot()
    placed = await second.find_node()
    assert isinstance(placed, Assign)
    assert placed.affinity is AffinityResult.HIT
    await instance.stores.turns.end("s-1", "turn-1")
    waiting = asyncio.create_task(place(instance, job_request("s-waiting", listener=listener)))
    await wait_until(lambda: listener.waits, TIMEOUT_S)
    assert await second.release_slot() is ReleaseReply.FREED
    assert isinstance(await waiting, Assign)


async def test_a_turn_is_bound_even_if_redis_stumbles_while_its_first_job_is_recorded(
    open_instance: OpenInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await open_instance("a")
    await instance.node("n")
    turn_queue = TurnQueue(Turn("turn-1"))
    first = job_request(turn_queue=turn_queue, ends_turn=False)
    turns, binding = instance.stores.turns, instance.stores.turns.binding
    cut: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    cut.set_exception(RedisAway("the connection was cut"))

    def stumble(session: str, turn: str, node: str) -> "list[asyncio.Future[int]]":
        monkeypatch.setattr(turns, "binding", binding)
        return [cut]

    monkeypatch.setattr(turns, "binding", stumble)
    assert isinstance(await place(instance, first), Assign)
    assert await turns.node_of("turn-1") == "n"
    await turns.end("s-1", "turn-1")


async def test_nothing_goes_to_a_node_before_dispatched_is_recorded_with_its_receipt(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance("a")
    await instance.node("n")
    mine = job_request()
    assert isinstance(await place(instance, mine), Assign)
    record = await instance.job(mine.job_id)
    assert (record["state"], record["node_id"], record["attempt"]) == (State.DISPATCHED, "n", "1")
    assert '"chosen":"n"' in record["receipt"]


async def test_job_that_only_recognises_goes_to_a_node_that_does_not_translate_into_its_target(
    open_instance: OpenInstance,
) -> None:
    instance = await open_instance()
    await instance.node("hears", languages=["en"], kinds=["asr"])
    assert isinstance(await place(instance, job_request("whole")), Wait)
    mine = job_request("recognise-only")
    mine.assignment.pipeline = Pipeline(use_asr=True, use_nmt=False, use_tts=False)
    mine.needs = needs_of(mine.assignment.pipeline)
    placed = await place(instance, mine)
    assert isinstance(placed, Assign)
    assert placed.node_id == "hears"
