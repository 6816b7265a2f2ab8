"""What all instances agree on about chat: the first one's layout counts, numbers are unique, switches are for all."""

import asyncio

import pytest

from dragoman.domain.chat.switches import Switches
from dragoman.store.chat import cluster as chat_cluster
from dragoman.store.chat.cluster import WORKER_TTL_MS, WORKERS, ChatCluster, Layout
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from support.redis_servers import Connect

LAYOUT = Layout(8, "im:accepted", "im:to_save", "im:cg:deliver", "im:cg:save")


@pytest.fixture
def cluster(redis: Redis, keys: Keys) -> ChatCluster:
    return ChatCluster(redis, keys)


# -- the layout


async def test_the_layout_of_the_first_counts_for_all(cluster: ChatCluster) -> None:
    assert await cluster.agree(LAYOUT) == LAYOUT
    assert await cluster.agree(LAYOUT) == LAYOUT
    assert await cluster.agree(Layout(4, "a", "b", "c", "d")) == LAYOUT


async def test_a_layout_written_by_a_later_release_can_be_read(cluster: ChatCluster, redis: Redis, keys: Keys) -> None:
    text = b'{"shards":2,"accepted":"a","to_save":"b","deliver_group":"c","save_group":"d","v":2,"colour":"red"}'
    await redis.call("SET", keys.chat_layout, text)
    assert await cluster.agree(LAYOUT) == Layout(2, "a", "b", "c", "d", 2)


# -- the database


async def test_the_database_of_the_first_counts_for_all(cluster: ChatCluster, connect: Connect, keys: Keys) -> None:
    other = ChatCluster(await connect(), keys)
    assert await cluster.agree_on_archive("one") == "one"
    assert await other.agree_on_archive("two") == "one"


# -- switches


async def test_switches_come_back_as_they_were_given(cluster: ChatCluster, connect: Connect, keys: Keys) -> None:
    assert await cluster.switches() == {}
    given = Switches(enabled=True, fail_open=False, rollout_percent=10, max_backlog=5)
    await cluster.switch(given.texts())
    other = ChatCluster(await connect(), keys)
    assert Switches().changed(await other.switches()) == given


async def test_a_switch_that_is_not_named_stays_and_one_that_is_forgotten_is_gone(cluster: ChatCluster) -> None:
    await cluster.switch({"enabled": "true", "batch_size": "10"})
    await cluster.switch({"batch_size": "20"})
    assert await cluster.switches() == {"enabled": "true", "batch_size": "20"}
    await cluster.forget_switches(["enabled", "block_ms"])
    assert await cluster.switches() == {"batch_size": "20"}


async def test_no_switch_changed_or_forgotten_is_nothing_to_do(cluster: ChatCluster) -> None:
    await cluster.switch({})
    await cluster.forget_switches([])
    assert await cluster.switches() == {}


async def test_switches_of_a_later_release_are_left_to_it(cluster: ChatCluster, redis: Redis, keys: Keys) -> None:
    await redis.call("HSET", keys.chat_switches, "enabled", "on", "colour", "red")
    assert await cluster.switches() == {"enabled": "on"}


# -- worker numbers


async def test_no_two_have_the_same_number(cluster: ChatCluster, connect: Connect, keys: Keys) -> None:
    other = ChatCluster(await connect(), keys)
    numbers = await asyncio.gather(
        *((cluster if number % 2 else other).claim_worker(f"incarnation-{number}") for number in range(300))
    )
    assert len(set(numbers)) == 300
    assert all(0 <= number < WORKERS for number in numbers)


async def test_worker_numbers_run_out_and_a_released_one_is_reused(
    cluster: ChatCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_cluster, "WORKERS", 4)
    numbers = [await cluster.claim_worker(name) for name in "abcd"]
    assert sorted(numbers) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="all 4 worker numbers are taken"):
        await cluster.claim_worker("e")
    await cluster.release_worker(numbers[2], "c")
    assert await cluster.claim_worker("e") == numbers[2]


async def test_only_its_holder_renews_a_worker_number(cluster: ChatCluster, redis: Redis, keys: Keys) -> None:
    number = await cluster.claim_worker("a")
    await redis.call("PEXPIRE", keys.worker(number), 5_000)
    assert not await cluster.keep_worker(number, "b")
    assert await redis.call("PTTL", keys.worker(number)) <= 5_000
    assert await cluster.keep_worker(number, "a")
    assert WORKER_TTL_MS - 10_000 < await redis.call("PTTL", keys.worker(number)) <= WORKER_TTL_MS


async def test_a_number_that_redis_forgot_is_ours_again_unless_another_was_faster(
    cluster: ChatCluster, redis: Redis, keys: Keys
) -> None:
    number = await cluster.claim_worker("a")
    await redis.call("DEL", keys.worker(number))
    assert await cluster.keep_worker(number, "a")
    assert await redis.call("GET", keys.worker(number)) == b"a"
    await redis.call("SET", keys.worker(number), "b", "PX", WORKER_TTL_MS)
    assert not await cluster.keep_worker(number, "a")


async def test_release_returns_only_the_own_worker_number(cluster: ChatCluster, redis: Redis, keys: Keys) -> None:
    number = await cluster.claim_worker("a")
    await cluster.release_worker(number, "b")
    assert await redis.call("GET", keys.worker(number)) == b"a"
    await cluster.release_worker(number, "a")
    assert await redis.call("GET", keys.worker(number)) is None
