"""Which shards are taken, kept and let go, when Redis answers for some of them only."""

import asyncio
from time import monotonic
from typing import cast

import pytest

from dragoman.archive import Archive, ArchiveAway
from dragoman.services.chat.shard_assigner import ShardAssigner
from dragoman.services.chat.shard_lease import LostShard, ShardLease
from dragoman.services.chat.two_phase import DeliverStage, SaveStage
from dragoman.services.metrics import Metrics
from dragoman.services.routing.announcer import Announcer
from dragoman.store.chat.shards import Shards
from dragoman.store.errors import RedisAway, StoreError
from dragoman.store.instances import Instances, Presence
from support.waiting import wait_until

TTL_S = 5.0


class Redis:
    """Leases of four shards; those in `away` cannot be asked."""

    count = 4

    def __init__(self) -> None:
        self.leases: dict[int, str] = {}
        self.fence = 0
        self.away: set[int] = set()
        self.failing: set[str] = set()

    def _ask(self, shard: int, what: str = "") -> None:
        if shard in self.away or what in self.failing:
            raise RedisAway("away")

    async def take(self, shard: int, instance: str, fence: int, ttl_ms: int) -> int:
        self._ask(shard)
        if shard in self.leases:
            return 0
        self.fence += 1
        self.leases[shard] = f"{instance}|{self.fence}"
        return self.fence

    async def keep(self, shard: int, holder: str, ttl_ms: int) -> bool:
        self._ask(shard)
        return self.leases.get(shard) == holder

    async def release(self, shard: int, holder: str) -> None:
        self._ask(shard)
        if self.leases.get(shard) == holder:
            del self.leases[shard]

    async def ensure_groups(self, shard: int) -> None:
        self._ask(shard, "groups")

    async def newest_to_save(self, shard: int) -> str:
        self._ask(shard)
        return ""


class Others:
    names: tuple[str, ...] = ("i0",)

    async def all(self) -> dict[str, Presence | None]:
        return {name: Presence(instance=name, incarnation="x") for name in self.names}


class IdleStage:
    """Waits until it is stopped, or is told to fail."""

    def __init__(self) -> None:
        self.fail: Exception | None = None

    async def run(self, lease: ShardLease) -> None:
        while not lease.stopping:
            if self.fail is not None:
                error, self.fail = self.fail, None
                raise error
            await asyncio.sleep(0.001)


class Quiet:
    def __init__(self) -> None:
        self.told: list[object] = []

    def subscribe(self, heard: object) -> None:
        pass

    def announce(self, message: object) -> None:
        self.told.append(message)


class NoDatabase:
    async def fence(self, shard: int) -> int:
        raise ArchiveAway("away")


class House:
    def __init__(self) -> None:
        self.redis, self.others, self.save, self.announcer = Redis(), Others(), IdleStage(), Quiet()
        self.assigner = ShardAssigner(
            "i0",
            cast(Shards, self.redis),
            cast(Archive, NoDatabase()),
            cast(Instances, self.others),
            cast(Announcer, self.announcer),
            Metrics(),
            cast(DeliverStage, IdleStage()),
            cast(SaveStage, self.save),
            ttl_s=TTL_S,
        )

    def lease_of(self, shard: int) -> float:
        return self.assigner._owned[shard].lease._valid_until


async def test_a_part_of_redis_that_is_away_costs_the_shards_there_and_no_others() -> None:
    house = House()
    house.redis.away = {0, 2}
    with pytest.raises(StoreError):
        await house.assigner.run_once()
    assert house.assigner.owned == [1, 3]
    house.redis.away = {1}
    before = house.lease_of(3)
    with pytest.raises(StoreError):
        await house.assigner.renew()
    assert house.lease_of(3) > before
    await house.assigner.release_all()


async def test_a_lease_that_was_lost_ends_the_work_under_it() -> None:
    house = House()
    await house.assigner.run_once()
    house.redis.leases[2] = "i1|99"
    await house.assigner.renew()
    await wait_until(lambda: house.assigner.owned == [0, 1, 3])
    assert house.redis.leases[2] == "i1|99"
    await house.assigner.release_all()


@pytest.mark.parametrize("why", [LostShard("fenced by the database"), ValueError("a bug")])
async def test_a_shard_whose_work_ended_is_given_up_so_that_somebody_can_go_on(why: Exception) -> None:
    house = House()
    await house.assigner.run_once()
    house.save.fail = why
    await wait_until(lambda: len(house.assigner.owned) == 3)
    assert len(house.redis.leases) == 3
    await house.assigner.run_once()
    assert house.assigner.owned == [0, 1, 2, 3]
    await house.assigner.release_all()
    assert house.redis.leases == {}


async def test_a_shard_that_was_taken_and_cannot_be_worked_is_given_up() -> None:
    house = House()
    house.redis.failing = {"groups"}
    with pytest.raises(StoreError):
        await house.assigner.run_once()
    assert house.redis.leases == {}


async def test_what_is_somebody_elses_share_is_handed_over() -> None:
    house = House()
    await house.assigner.run_once()
    house.others.names = ("i0", "i1")
    await house.assigner.run_once()
    assert len(house.assigner.owned) == len(house.redis.leases) == 2
    await house.assigner.release_all()


async def test_who_leaves_takes_nothing_more_and_waits_for_no_quiet_shard() -> None:
    house, began = House(), monotonic()
    await house.assigner.run_once()
    await house.assigner.release_all()
    await house.assigner.run_once()
    assert (house.assigner.owned, house.redis.leases) == ([], {})
    assert monotonic() - began < TTL_S
