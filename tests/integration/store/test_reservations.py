"""Slots: never sold twice, back by themselves when nobody keeps them."""

import asyncio
import random

import pytest

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.reservations import RESERVE_SLOT, ReleaseReply, Reservations, Reserved, ReserveReply
from support.redis_servers import Connect
from support.waiting import wait_until

TTL_MS = 60_000


@pytest.fixture
def slots(redis: Redis, keys: Keys) -> Reservations:
    return Reservations(redis, keys, TTL_MS)


async def take(slots: Reservations, job: str, limit: int, node: str = "n") -> Reserved:
    return Reserved.parse(await slots.reserve(node, job, limit))


async def test_a_slot_is_taken_held_and_refused(slots: Reservations, redis: Redis, keys: Keys) -> None:
    assert await take(slots, "j1", 2) == Reserved(ReserveReply.OK)
    assert await take(slots, "j1", 2) == Reserved(ReserveReply.HELD)
    assert await take(slots, "j2", 2) == Reserved(ReserveReply.OK)
    refused = await take(slots, "j3", 2)
    assert refused.verdict is ReserveReply.FULL
    assert 0 < refused.free_in_ms <= TTL_MS
    assert await slots.held("n") == ["j1", "j2"]
    assert 0 < await redis.call("PTTL", keys.reserved("n")) <= TTL_MS


async def test_a_node_without_slots_is_full_and_nothing_can_expire(slots: Reservations) -> None:
    assert await take(slots, "j", 0) == Reserved(ReserveReply.FULL, 0)


async def test_one_nodes_slots_are_nothing_to_another(slots: Reservations) -> None:
    assert (await take(slots, "j", 1, "n1")).verdict is ReserveReply.OK
    assert (await take(slots, "j", 1, "n2")).verdict is ReserveReply.OK


async def test_a_turns_own_jobs_may_go_above_the_slots_when_asked_to(slots: Reservations) -> None:
    assert (await take(slots, "j1", 1)).verdict is ReserveReply.OK
    assert (await take(slots, "j2", 1)).verdict is ReserveReply.FULL
    assert (await take(slots, "j2", 2)).verdict is ReserveReply.OK, "the limit is the caller's"


async def test_however_many_reserve_at_once_the_limit_holds(
    slots: Reservations, connect: Connect, keys: Keys, redis: Redis
) -> None:
    other = Reservations(await connect(), keys, TTL_MS)
    limit, most = 7, 0
    for round_ in range(20):
        jobs = [f"{round_}-{n}" for n in range(50)]
        verdicts = await asyncio.gather(*(take((slots, other)[n % 2], job, limit) for n, job in enumerate(jobs)))
        taken = [job for job, reserved in zip(jobs, verdicts, strict=True) if reserved.verdict is ReserveReply.OK]
        assert len(taken) == limit
        assert set(await slots.held("n")) == set(taken)
        most = max(most, await redis.call("ZCARD", keys.reserved("n")))
        given = await asyncio.gather(*((other, slots)[n % 2].release("n", job, limit) for n, job in enumerate(taken)))
        assert sorted(given) == sorted([ReleaseReply.FREED] + [ReleaseReply.OK] * (limit - 1)), (
            "the full node is freed once"
        )
    assert most == limit


async def test_while_jobs_come_and_go_no_node_is_ever_above_its_limit(
    slots: Reservations, connect: Connect, keys: Keys, redis: Redis
) -> None:
    other, limit = Reservations(await connect(), keys, TTL_MS), 3
    holding: set[str] = set()
    highest = 0

    async def driver(n: int) -> None:
        nonlocal highest
        mine, rng = (slots, other)[n % 2], random.Random(n)
        for turn in range(20):
            job = f"{n}-{turn}"
            if (await take(mine, job, limit)).verdict is ReserveReply.OK:
                holding.add(job)
                highest = max(highest, len(holding))
                for _ in range(rng.randrange(3)):
                    assert await mine.renew("n", [job]) == []
                holding.discard(job)
                assert await mine.release("n", job, limit) is not ReleaseReply.NONE

    await asyncio.gather(*(driver(n) for n in range(50)))
    assert 0 < highest <= limit
    assert await slots.held("n") == []


async def test_a_slot_is_given_back_once(slots: Reservations, connect: Connect, keys: Keys) -> None:
    other = Reservations(await connect(), keys, TTL_MS)
    await take(slots, "j", 5)
    answers = await asyncio.gather(*((slots, other)[n % 2].release("n", "j", 5) for n in range(10)))
    assert sorted(answers) == sorted([ReleaseReply.OK] + [ReleaseReply.NONE] * 9)


async def test_reservation_expires_when_it_is_not_renewed(redis: Redis, keys: Keys, slots: Reservations) -> None:
    # A driver that dies at once: its slot was taken for a moment only.
    assert await RESERVE_SLOT(redis, reserved=keys.reserved("n"), job="dead", ttl=30, limit=1) in (b"OK",)

    async def free() -> bool:
        return (await take(slots, "alive", 1)).verdict is ReserveReply.OK

    await wait_until(free)
    assert await slots.held("n") == ["alive"]
    assert await slots.release("n", "dead", 1) is ReleaseReply.NONE
    assert await slots.held("n") == ["alive"]


async def test_a_renewal_keeps_what_is_held_and_names_what_was_lost(slots: Reservations) -> None:
    await take(slots, "j1", 5)
    await take(slots, "j2", 5)
    await slots.release("n", "j2", 5)
    assert await slots.renew("n", ["j1", "j2", "j3"]) == ["j2", "j3"]
    assert await slots.held("n") == ["j1"], "what was lost is not revived: it may be sold"


async def test_renewing_a_slot_lengthens_its_life(redis: Redis, keys: Keys, slots: Reservations) -> None:
    await RESERVE_SLOT(redis, reserved=keys.reserved("n"), job="j", ttl=5_000, limit=1)
    before = float(await redis.call("ZSCORE", keys.reserved("n"), "j"))
    assert await slots.renew("n", ["j"]) == []
    assert float(await redis.call("ZSCORE", keys.reserved("n"), "j")) > before
    assert await redis.call("PTTL", keys.reserved("n")) > 5_000


async def test_a_renewal_of_nothing_loses_nothing(slots: Reservations) -> None:
    assert await slots.renew("n", []) == []
