"""An instance says that it lives, parks what it may not do, and comes back: as itself, or as a new incarnation."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dragoman.instance.services import Stores
from dragoman.services.loops import every
from dragoman.services.upkeep import presence as presence_module
from dragoman.services.upkeep.presence import AlreadyRunning, TakeoverResult
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import PushReply
from dragoman.store.instances import Instances, Presence
from integration.services.members import TTL_S, Join, Member, jobs, said
from support.waiting import wait_until

QUICK_S, RENEW_S = 0.3, 0.05


async def test_entering_opens_the_inbox_before_it_shows_presence(join: Join, stores: Stores) -> None:
    member = await join("a", present=False)
    assert await member.push(said("j")) is PushReply.GONE
    await member.enter()
    told = await stores.instances.presence("a")
    assert told is not None
    assert told.incarnation == await stores.instances.holder("a") == member.presence.incarnation
    assert await stores.instances.all() == {"a": told}
    assert await member.push(said("j")) is PushReply.OK


async def test_presence_lives_for_its_ttl_and_a_renewal_brings_it_back(join: Join, stores: Stores) -> None:
    member, brief = await join("a"), await join("b", ttl_s=QUICK_S)
    assert 0 < await stores.redis.call("PTTL", stores.keys.presence("a")) <= member.presence.ttl_s * 1000
    await wait_until(lambda: _gone(stores, stores.keys.presence("b")))
    brief.presence.ttl_s = member.presence.ttl_s
    await brief.presence.run_once()
    assert await stores.instances.presence("b") is not None
    assert brief.deaths == 0


async def test_the_lease_ends_with_the_ttl_and_a_renewal_gives_it_back(join: Join) -> None:
    member = await join("a", ttl_s=QUICK_S)
    await wait_until(lambda: not member.presence.has_lease())
    member.presence.lease.ttl_s = TTL_S
    await member.presence.run_once()
    assert member.presence.has_lease()


async def test_work_parked_while_the_lease_has_lapsed_runs_in_order_after_a_renewal(join: Join) -> None:
    member = await join("a")
    done: list[int] = []
    assert member.presence.guard(done.append, 0)
    member.pause()
    assert not any(member.presence.guard(done.append, each) for each in (1, 2, 3))
    assert done == [0]
    await member.presence.run_once()
    assert done == [0, 1, 2, 3]
    assert member.presence.guard(done.append, 4)
    assert done == [0, 1, 2, 3, 4]
    assert member.count("dragoman_lease_parked_total") == 3


async def test_new_work_queues_behind_parked_work(join: Join) -> None:
    member = await join("a")
    done: list[str] = []

    def first() -> None:
        done.append("first")
        member.presence.guard(done.append, "came meanwhile")

    member.pause()
    member.presence.guard(first)
    member.presence.guard(done.append, "second")
    await member.presence.run_once()
    assert done == ["first", "second", "came meanwhile"]


async def test_parked_work_that_fails_keeps_nothing_behind_it(join: Join) -> None:
    member = await join("a")
    done: list[int] = []
    member.pause()
    member.presence.guard(lambda: [][0])
    member.presence.guard(done.append, 1)
    await member.presence.run_once()
    assert done == [1]


async def test_past_their_bound_frames_are_dropped_but_a_closed_socket_is_not(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence_module, "MAX_WAITING_BYTES", 100)
    member = await join("a")
    done: list[object] = []
    member.pause()
    member.presence.guard(done.append, b"x" * 90)
    member.presence.guard(done.append, b"y" * 90)
    member.presence.guard(done.append, "closed")
    await member.presence.run_once()
    assert done == [b"x" * 90, "closed"]
    assert member.presence.guard(done.append, b"z" * 90)


async def test_waiting_work_resumes_after_what_we_own_is_written_again(join: Join) -> None:
    member = await join("a")
    member.pause()
    waiting = asyncio.create_task(member.presence.wait_for_lease())
    await member.presence.run_once()
    await waiting
    assert member.returns == 2  # once at the beginning


async def test_a_return_that_fails_half_way_is_repeated_and_nothing_is_done_before(join: Join) -> None:
    member = await join("a")
    done: list[int] = []
    failures = [RedisAway("gone again")]

    async def write_all() -> None:
        if failures:
            raise failures.pop()
        member.returns += 1

    member.presence._on_return = write_all
    member.pause()
    member.presence.guard(done.append, 1)
    with pytest.raises(RedisAway):
        await member.presence.run_once()
    assert (done, member.presence.has_lease()) == ([], False)
    await member.presence.run_once()
    assert (done, member.returns) == ([1], 2)


async def test_no_instance_is_declared_dead_within_one_ttl_after_the_first_renewal(join: Join) -> None:
    member = await join("a", ttl_s=QUICK_S)
    assert not member.presence.steady
    await wait_until(lambda: _renewed_and_steady(member))


async def test_a_return_starts_the_wait_for_steadiness_anew(join: Join) -> None:
    member = await join("a")

    def steady() -> bool:
        return member.presence.steady

    member.presence.steady_at = 0.0
    assert steady()
    member.pause()
    assert not steady()
    await member.presence.run_once()
    assert member.presence.has_lease()
    assert not steady()


async def test_a_name_that_fell_out_of_the_index_is_written_again(join: Join, stores: Stores) -> None:
    """A survivor that was slow to take a name off the list does not hide whoever came back meanwhile."""
    member = await join("a")
    await stores.redis.call("SREM", stores.keys.instances, "a")
    await member.presence.run_once()
    assert list(await stores.instances.all()) == ["a"]


# -- another of the same name --------------------------------------------------------------------


async def test_a_second_instance_of_a_living_name_is_refused_with_a_sentence(join: Join) -> None:
    first = await join("a")
    renewing = asyncio.create_task(every(RENEW_S, first.presence.run_once, name="presence"))
    try:
        with pytest.raises(AlreadyRunning) as refused:
            await join("a")
    finally:
        renewing.cancel()
    assert str(refused.value) == (
        "another instance with scheduler.phase2.instance_id = 'a' is alive (pid 7 on here); "
        "give this one another id or stop that one"
    )
    assert first.presence.has_lease()


async def test_one_killed_a_moment_ago_is_waited_for_and_taken_over(join: Join, stores: Stores) -> None:
    """Its presence still stands: that it is not renewed tells it from a living one."""
    first = await join("a", ttl_s=QUICK_S)
    await first.push(said("left behind"))
    second = await join("a")
    assert jobs(second.rehomed) == ["left behind"]
    assert await stores.instances.holder("a") == second.presence.incarnation


async def test_successor_of_a_process_that_is_known_to_be_dead_does_not_wait_for_its_presence(
    join: Join, stores: Stores
) -> None:
    first = await join("a", ttl_s=600)
    await first.push(said("left behind"))
    await stores.jobs.driven("a", "job", 1)
    second = Member("a", stores)
    second.dead.add(first.presence.incarnation)
    await second.enter()
    assert (jobs(second.rehomed), second.adopted) == (["left behind"], ["job"])
    assert await stores.instances.holder("a") == second.presence.incarnation
    found = await stores.instances.presence("a")
    assert found is not None
    assert found.incarnation == second.presence.incarnation


async def test_late_write_of_a_dead_process_only_makes_its_successor_look_again(join: Join, stores: Stores) -> None:
    first = await join("a", ttl_s=600)
    key = stores.keys.presence("a")
    last_word = await stores.redis.call("GET", key)
    second = Member("a", stores)
    second.dead.add(first.presence.incarnation)
    takeovers: list[TakeoverResult] = []

    async def take_over(name: str) -> TakeoverResult:
        if not takeovers:
            await stores.redis.call("SET", key, last_word, "PX", 600_000)
        takeovers.append(await second.takeover.take_over(name))
        return takeovers[-1]

    await second.presence.join(take_over)
    assert takeovers == [TakeoverResult.NOT_OURS, TakeoverResult.DONE]
    assert await stores.instances.holder("a") == second.presence.incarnation


async def test_a_dead_predecessor_is_taken_over_before_its_successor_opens(join: Join, stores: Stores) -> None:
    first = await join("a")
    for job in ("one", "two"):
        await first.push(said(job))
    await stores.jobs.driven("a", "job", 1)
    await first.die()
    second = await join("a")
    assert (jobs(second.rehomed), second.adopted) == (["one", "two"], ["job"])
    assert await second.push(said("new")) is PushReply.OK
    await second.reader.run_once()
    assert jobs(second.handled) == ["new"]


async def test_a_successor_keeps_what_must_stay_in_the_inbox(join: Join, stores: Stores) -> None:
    """An entry of a later release waits for one that knows it; that must not keep us from starting."""
    first = await join("a")
    await first.push_raw("v", "2", "type", "from_node", "size", "2", "data", "{}")
    await first.push(said("known"))
    await first.die()
    second = await join("a")
    assert jobs(second.rehomed) == ["known"]
    assert (await stores.inboxes.counts("a")).waiting == 1
    assert await stores.instances.holder("a") == second.presence.incarnation
    assert await second.balanced()


# -- the race between a survivor and one that comes back --------------------------------------


async def test_one_that_was_declared_dead_drops_what_was_parked_and_goes_on_as_a_new_incarnation(
    join: Join, stores: Stores
) -> None:
    member, other = await join("a"), await join("b")
    before, done = member.presence.incarnation, list[int]()
    member.pause()
    member.presence.guard(done.append, 1)
    await member.die()
    assert await other.takeover.run_once() == ["a"]
    await member.presence.run_once()
    assert (member.deaths, done) == (1, [])
    assert member.presence.incarnation != before
    assert await stores.instances.holder("a") == member.presence.incarnation
    assert list(await stores.instances.all()) == ["a", "b"]
    assert member.presence.has_lease()
    assert not member.presence.steady
    assert member.count("dragoman_lease_lost_total") == 1


async def test_one_that_returns_before_the_survivor_looks_again_lives(join: Join, stores: Stores) -> None:
    member, other = await join("a"), await join("b")
    member.pause()
    await member.die()
    between(stores.instances, "mark_takeover", member.presence.run_once, before=True)
    assert await other.takeover.run_once() == []
    assert member.deaths == 0
    assert await stores.instances.holder("a") == member.presence.incarnation


async def test_one_that_returns_between_mark_and_look_starts_over_and_is_not_taken_over_by_others(
    join: Join, stores: Stores
) -> None:
    """Both notice: the survivor lets go, and the other, who has seen the mark, goes on as a new incarnation."""
    member, other = await join("a"), await join("b")
    member.pause()
    await member.die()
    coming_back: list[asyncio.Task[None]] = []

    async def come_back() -> None:
        coming_back.append(asyncio.create_task(member.presence.run_once()))
        await wait_until(lambda: member.deaths)

    between(stores.instances, "mark_takeover", come_back)
    await other.takeover.run_once()
    await coming_back[0]
    assert member.deaths == 1
    assert await stores.instances.holder("a") == member.presence.incarnation
    assert member.presence.has_lease()


async def test_one_that_returns_during_its_takeover_waits_for_the_end_of_it(join: Join, stores: Stores) -> None:
    member, other = await join("a"), await join("b")
    await member.push(said("j"))
    member.pause()
    await member.die()
    coming_back: list[asyncio.Task[None]] = []

    async def come_back() -> None:
        coming_back.append(asyncio.create_task(member.presence.run_once()))
        await wait_until(lambda: member.deaths)

    between(stores.jobs, "driven_by", come_back)
    assert await other.takeover.run_once() == ["a"]
    await coming_back[0]
    assert (member.deaths, jobs(other.rehomed)) == (1, ["j"])
    assert await stores.instances.holder("a") == member.presence.incarnation
    assert list(await stores.instances.all()) == ["a", "b"]


async def test_a_start_over_that_redis_interrupts_is_taken_up_again_and_counted_once(
    join: Join, stores: Stores
) -> None:
    member, other = await join("a"), await join("b")
    member.pause()
    await member.die()
    await other.takeover.run_once()
    failing(stores.instances, "open", RedisAway("gone again"))
    with pytest.raises(RedisAway):
        await member.presence.run_once()
    await member.presence.run_once()
    assert member.presence.has_lease()
    assert member.count("dragoman_lease_lost_total") == 1


async def test_one_whose_name_was_taken_meanwhile_leaves_its_successor_alone(join: Join, stores: Stores) -> None:
    first = await join("a")
    first.pause()
    await first.die()
    second = await join("a")
    renewing = asyncio.create_task(every(RENEW_S, second.presence.run_once, name="presence"))
    try:
        await first.presence.run_once()
    finally:
        renewing.cancel()
    assert not first.presence.has_lease()
    assert second.deaths == 0
    told = await stores.instances.presence("a")
    assert told is not None
    assert told.incarnation == second.presence.incarnation == await stores.instances.holder("a")


# -- a clean end ---------------------------------------------------------------------------------


async def test_leaving_leaves_nothing_to_be_found(join: Join, stores: Stores) -> None:
    member = await join("a")
    await member.presence.close()
    assert await stores.instances.all() == {}
    assert await stores.instances.presence("a") is None
    assert await member.push(said("late")) is PushReply.GONE


async def test_leaving_with_entries_in_the_inbox_leaves_them_to_others_at_once(join: Join, stores: Stores) -> None:
    member, other = await join("a"), await join("b")
    await member.push(said("j"))
    await member.presence.close()
    assert await other.takeover.run_once() == ["a"]
    assert jobs(other.rehomed) == ["j"]


async def _gone(stores: Stores, key: str) -> bool:
    return not await stores.redis.call("EXISTS", key)


async def _renewed_and_steady(member: Member) -> bool:
    await member.presence.run_once()
    return member.presence.steady


def between(holder: Any, method: str, step: Callable[[], Awaitable[None]], *, before: bool = False) -> None:
    """Take `step` once, right after (or before) the next call of a store's method."""
    real = getattr(holder, method)

    async def interrupted(*args: Any) -> Any:
        setattr(holder, method, real)
        if before:
            await step()
        answer = await real(*args)
        if not before:
            await step()
        return answer

    setattr(holder, method, interrupted)


def failing(instances: Instances, method: str, error: Exception) -> None:
    """The next call of a store's method raises."""
    real = getattr(instances, method)

    async def fail(*_: Any) -> Presence:
        setattr(instances, method, real)
        raise error

    setattr(instances, method, fail)
