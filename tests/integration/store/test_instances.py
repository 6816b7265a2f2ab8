"""Presence, the open inbox, and the race between one who comes back and one who takes over him."""

import asyncio
from typing import Any

import pytest

from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.instances import Instances, Owners, Presence
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

TTL_MS = 60_000
GROUP = "scheduler"


@pytest.fixture
def instances(redis: Redis, keys: Keys) -> Instances:
    return Instances(redis, keys)


@pytest.fixture
def inboxes(redis: Redis, keys: Keys) -> Inboxes:
    return Inboxes(redis, keys, InboxSettings(group=GROUP))


# -- opening and closing ----------------------------------------------------------------------------


# -- presence ---------------------------------------------------------------------------------------


async def test_presence_lists_living_instances_and_expires(instances: Instances, redis: Redis, keys: Keys) -> None:
    await instances.open("i", "a", GROUP)
    told = Presence("i", "a", host="h", pid=7, port=5100)
    assert await instances.renew(told, TTL_MS)
    assert await instances.presence("i") == told
    assert 0 < await redis.call("PTTL", keys.presence("i")) <= TTL_MS
    assert await instances.presence("nobody") is None


async def test_the_list_of_instances_tells_the_living_from_the_dead(
    instances: Instances, redis: Redis, keys: Keys
) -> None:
    for name in ("lives", "died", "garbled"):
        await instances.open(name, "a", GROUP)
    await instances.renew(Presence("lives", "a"), TTL_MS)
    await redis.call("SET", keys.presence("garbled"), b"\xff not json", "PX", TTL_MS)
    assert await instances.all() == {"died": None, "garbled": None, "lives": Presence("lives", "a")}


async def test_one_whose_name_went_with_its_former_life_is_listed_again_when_it_renews(
    instances: Instances, redis: Redis, keys: Keys
) -> None:
    # The survivor of the incarnation before it strikes the name out last, when the new one has opened already.
    await instances.open("i", "b", GROUP)
    await redis.call("SREM", keys.instances, "i")
    assert await instances.renew(Presence("i", "b"), TTL_MS)
    assert list(await instances.all()) == ["i"]


async def test_one_whose_inbox_is_gone_learns_it_when_it_renews(instances: Instances) -> None:
    await instances.open("i", "a", GROUP)
    assert await instances.renew(Presence("i", "a"), TTL_MS)
    await instances.close("i", "a")
    assert not await instances.renew(Presence("i", "a"), TTL_MS)
    await instances.open("i", "b", GROUP)
    assert not await instances.renew(Presence("i", "a"), TTL_MS)


# -- takeover -----------------------------------------------------------------------------------------


async def test_an_inbox_marked_by_mistake_is_handed_back(instances: Instances) -> None:
    await instances.open("i", "a", GROUP)
    await instances.mark_takeover("i", "a")
    assert not await instances.renew(Presence("i", "a"), TTL_MS)
    assert await instances.unmark_takeover("i", "a") == "OK"
    assert await instances.renew(Presence("i", "a"), TTL_MS)


async def test_one_survivor_at_a_time_and_only_it_keeps_or_frees_the_lock(
    instances: Instances, redis: Redis, keys: Keys
) -> None:
    assert await instances.lock_takeover("i", "first", TTL_MS)
    assert not await instances.lock_takeover("i", "second", TTL_MS)
    assert await instances.renew_takeover("i", "first", 2 * TTL_MS)
    assert await redis.call("PTTL", keys.takeover("i")) > TTL_MS
    assert not await instances.renew_takeover("i", "second", TTL_MS)
    await instances.unlock_takeover("i", "second")
    assert not await instances.lock_takeover("i", "second", TTL_MS)
    await instances.unlock_takeover("i", "first")
    assert not await instances.renew_takeover("i", "first", TTL_MS)
    assert await instances.lock_takeover("i", "second", TTL_MS)


async def test_after_the_last_step_nothing_is_left_to_be_found(instances: Instances, redis: Redis, keys: Keys) -> None:
    await instances.open("i", "a", GROUP)
    await instances.renew(Presence("i", "a"), TTL_MS)
    owners = Owners(redis, keys, TTL_MS)
    await owners.claim_node("n", "i")
    await owners.claim_session("s", "i")
    await redis.call("ZADD", keys.jobs_of("i"), 1, "j")
    await instances.close("i", "a")
    await instances.forget("i", "a")
    assert await instances.all() == {}
    left = [keys.presence("i"), keys.jobs_of("i"), keys.sessions_of("i"), keys.nodes_of("i"), keys.inbox("i")]
    assert [await redis.call("EXISTS", key) for key in left] == [0] * len(left)


async def test_the_presence_of_a_newer_incarnation_is_not_forgotten_with_the_old(instances: Instances) -> None:
    await instances.open("i", "b", GROUP)
    await instances.renew(Presence("i", "b"), TTL_MS)
    await instances.forget("i", "a")
    assert await instances.presence("i") == Presence("i", "b")


# -- the race: whatever the order, one of the two sees the other ------------------------------------


class Held:
    """A client whose reads wait until they are let go: the moment between "I live" and "was I declared dead?"."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.reading, self.go_on = asyncio.Event(), asyncio.Event()

    def call(self, command: str, key: str, *args: Any) -> "asyncio.Future[Any]":
        if command != "GET":
            return self._redis.call(command, key, *args)
        self.reading.set()

        async def later() -> Any:
            await self.go_on.wait()
            return await self._redis.call(command, key, *args)

        return asyncio.ensure_future(later())


async def take_over(instances: Instances) -> bool:
    """What a survivor does before anything else; False: he saw that it lives, and handed the inbox back."""
    assert await instances.mark_takeover("i", "a") == "OK"
    if await instances.presence("i") is None:
        return True
    await instances.unmark_takeover("i", "a")
    return False


async def test_takeover_between_presence_and_check_sees_the_living_instance(
    instances: Instances, redis: Redis, keys: Keys
) -> None:
    await instances.open("i", "a", GROUP)
    held = Held(redis)
    renewing = asyncio.create_task(Instances(held, keys).renew(Presence("i", "a"), TTL_MS))  # type: ignore[arg-type]
    await held.reading.wait()
    assert not await take_over(instances), "he has said that he lives"
    held.go_on.set()
    assert await renewing


async def test_mark_between_presence_and_check_is_noticed(instances: Instances, redis: Redis, keys: Keys) -> None:
    await instances.open("i", "a", GROUP)
    held = Held(redis)
    renewing = asyncio.create_task(Instances(held, keys).renew(Presence("i", "a"), TTL_MS))  # type: ignore[arg-type]
    await held.reading.wait()
    await instances.mark_takeover("i", "a")
    held.go_on.set()
    assert not await renewing
    assert await instances.presence("i") is not None, "and he is seen: who hands back last, wins"
