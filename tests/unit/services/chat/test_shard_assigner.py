"""Which instance owns a shard, and what it has not delivered."""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import cast

import pytest

from dragoman.archive import Archive, ArchiveAway, Status, Stored
from dragoman.services.chat.acceptance import PushedMessages
from dragoman.services.chat.receipts import UndeliveredLookup
from dragoman.services.chat.save_stage import LostShard, SaveStage, ShardLease
from dragoman.services.chat.shard_assigner import ShardAssigner
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
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

    def _ask(self, shard: int) -> None:
        if shard in self.away:
            raise RedisAway("away")

    async def take_lease(self, shard: int, instance: str, fence: int, ttl_ms: int) -> int:
        self._ask(shard)
        if shard in self.leases:
            return 0
        self.fence += 1
        self.leases[shard] = f"{instance}|{self.fence}"
        return self.fence

    async def renew_lease(self, shard: int, holder: str, ttl_ms: int) -> bool:
        self._ask(shard)
        return self.leases.get(shard) == holder

    async def release_lease(self, shard: int, holder: str) -> None:
        self._ask(shard)
        if self.leases.get(shard) == holder:
            del self.leases[shard]

    def accepted(self, shard: int) -> str:
        return f"accepted-{shard}"

    def to_save(self, shard: int) -> str:
        return f"to_save-{shard}"


class Others:
    names: tuple[str, ...] = ("i0",)

    async def all(self) -> dict[str, Presence | None]:
        return {name: Presence(instance=name, incarnation="x") for name in self.names}


class IdleStage:
    """Waits until it is stopped and has ended its batch, or is told to fail."""

    def __init__(self) -> None:
        self.fail: Exception | None = None
        self.leases: list[ShardLease] = []
        self.batch = asyncio.Event()  # set while no batch is under way
        self.batch.set()

    async def run(self, lease: ShardLease) -> None:
        self.leases.append(lease)
        while not lease.stopping:
            if self.fail is not None:
                error, self.fail = self.fail, None
                raise error
            await asyncio.sleep(0.001)
        await self.batch.wait()


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


class AssignerEnv:
    def __init__(self) -> None:
        self.redis, self.others, self.save, self.announcer = Redis(), Others(), IdleStage(), Quiet()
        self.assigner = ShardAssigner(
            "i0",
            cast(Shards, self.redis),
            cast(Archive, NoDatabase()),
            cast(Instances, self.others),
            cast(Announcer, self.announcer),
            Metrics(),
            cast(SaveStage, self.save),
            PushedMessages("i0", cast(Announcer, self.announcer)),
            ttl_s=TTL_S,
        )

    def lease_of(self, shard: int) -> float:
        return self.assigner._owned[shard].lease._valid_until


async def test_partial_redis_outage_affects_only_its_shards() -> None:
    env = AssignerEnv()
    env.redis.away = {0, 2}
    with pytest.raises(StoreError):
        await env.assigner.run_once()
    assert env.assigner.owned == [1, 3]
    env.redis.away = {1}
    before = env.lease_of(3)
    with pytest.raises(StoreError):
        await env.assigner.renew()
    assert env.lease_of(3) > before
    await env.assigner.release_all()


async def test_a_lease_that_was_lost_ends_the_work_under_it() -> None:
    env = AssignerEnv()
    await env.assigner.run_once()
    env.redis.leases[2] = "i1|99"
    await env.assigner.renew()
    await wait_until(lambda: env.assigner.owned == [0, 1, 3])
    assert env.redis.leases[2] == "i1|99"
    await env.assigner.release_all()


@pytest.mark.parametrize("why", [LostShard("fenced by the database"), ValueError("a bug")])
async def test_shard_whose_stage_ended_is_released(why: Exception) -> None:
    env = AssignerEnv()
    await env.assigner.run_once()
    env.save.fail = why
    await wait_until(lambda: len(env.assigner.owned) == 3)
    assert len(env.redis.leases) == 3
    await env.assigner.run_once()
    assert env.assigner.owned == [0, 1, 2, 3]
    await env.assigner.release_all()
    assert env.redis.leases == {}


async def test_assigner_hands_over_shards_above_its_share() -> None:
    env = AssignerEnv()
    await env.assigner.run_once()
    env.others.names = ("i0", "i1")
    await env.assigner.run_once()
    assert len(env.assigner.owned) == len(env.redis.leases) == 2
    await env.assigner.release_all()


async def test_a_handover_that_is_cancelled_leaves_no_lease_that_is_renewed() -> None:
    """A drain that times out. The stages finish their batch meanwhile, and the lease is released after that."""
    env = AssignerEnv()
    await env.assigner.run_once()
    env.save.batch.clear()
    draining = asyncio.create_task(env.assigner.release_all())
    await wait_until(lambda: all(lease.stopping for lease in env.save.leases))
    draining.cancel()
    await asyncio.wait([draining])
    before = env.lease_of(0)
    await env.assigner.renew()
    assert env.lease_of(0) == before
    env.save.batch.set()
    await wait_until(lambda: env.redis.leases == {})
    assert len(env.announcer.told) == 4
    await wait_until(lambda: env.assigner.owned == [])


async def test_stopping_assigner_takes_no_shard_and_does_not_wait_for_idle_ones() -> None:
    env, began = AssignerEnv(), monotonic()
    await env.assigner.run_once()
    await env.assigner.release_all()
    await env.assigner.run_once()
    assert (env.assigner.owned, env.redis.leases) == ([], {})
    assert monotonic() - began < TTL_S


def lease() -> ShardLease:
    return ShardLease(0, "i0", 3, monotonic() + 60, "to_save")


def test_expired_lease_is_lost_until_it_is_renewed() -> None:
    held = lease()
    held.check()
    held.renew(monotonic() - 1)
    with pytest.raises(LostShard):
        held.check()
    held.renew(monotonic() + 60)
    held.check()
    held.lose()
    with pytest.raises(LostShard):
        held.check()


PAGE = 100


class Rows:
    """An archive that counts how often it is asked, and answers when it is told to."""

    def __init__(self, *receivers: int) -> None:
        self.rows = {to: [_row(to, number) for number in range(1, 4)] for to in receivers}
        self.pages = list[tuple[int, int]]()
        self.questions = list[list[int]]()
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.away = False

    async def undelivered(self, user: int, after: int, limit: int) -> list[Stored]:
        self.pages.append((user, after))
        await self._answer()
        return [row for row in self.rows.get(user, []) if row.id > after][:limit]

    async def undelivered_users(self, users: Sequence[int], saved_before_ms: int) -> set[int]:
        self.questions.append(list(users))
        await self._answer()
        return {user for user in users if any(row.saved_ms < saved_before_ms for row in self.rows.get(user, []))}

    async def _answer(self) -> None:
        self.asked.set()
        await self.go_on.wait()
        if self.away:
            raise ArchiveAway("The database is away.")


def _row(to: int, number: int) -> Stored:
    id = to * 10 + number
    return Stored(id, 1, id, 1, to, "TEXT", "hi", f"c{id}", Status.SAVED, 5, 6)


class UndeliveredEnv:
    def __init__(self, *receivers: int) -> None:
        self.rows, self.tasks = Rows(*receivers), Tasks()
        self.lookup = UndeliveredLookup(cast(Archive, self.rows), self.tasks)

    async def all_come(self, *users: int) -> list[list[int]]:
        """At the same time; the ids that each of them finds."""
        found = await asyncio.gather(*(self.lookup.undelivered(user, 0, PAGE) for user in users))
        return [[row.id for row in rows] for rows in found]


def test_one_user_is_looked_up_at_once() -> None:
    async def main() -> None:
        env = UndeliveredEnv(7)
        assert await env.all_come(7) == [[71, 72, 73]]
        assert env.rows.pages == [(7, 0)]
        assert env.rows.questions == []

    asyncio.run(main())


def test_of_many_users_only_those_with_undelivered_messages_are_looked_up() -> None:
    async def main() -> None:
        env = UndeliveredEnv(7, 9)
        assert await env.all_come(6, 7, 8, 9) == [[], [71, 72, 73], [], [91, 92, 93]]
        assert env.rows.questions == [[6, 7, 8, 9]]
        assert sorted(env.rows.pages) == [(7, 0), (9, 0)]

    asyncio.run(main())


def test_user_that_connects_during_a_query_is_in_the_next_query() -> None:
    """What was saved meanwhile is found: nobody gets an answer to a question from before it came."""

    async def main() -> None:
        env = UndeliveredEnv()
        env.rows.go_on.clear()
        first = asyncio.ensure_future(env.all_come(5, 6))
        await env.rows.asked.wait()
        env.rows.rows[7] = [_row(7, 1)]
        later = asyncio.ensure_future(env.all_come(7, 8))
        env.rows.go_on.set()
        assert await first == [[], []]
        assert await later == [[71], []]
        assert env.rows.questions == [[5, 6], [7, 8]]

    asyncio.run(main())


def test_a_further_page_is_fetched_without_a_question() -> None:
    async def main() -> None:
        env = UndeliveredEnv(7)
        assert [row.id for row in await env.lookup.undelivered(7, 71, PAGE)] == [72, 73]
        assert env.rows.questions == []

    asyncio.run(main())


def test_every_caller_gets_the_error_of_the_database_and_can_ask_again() -> None:
    async def main() -> None:
        env = UndeliveredEnv(7)
        env.rows.away = True
        for asked in await asyncio.gather(
            *(env.lookup.undelivered(user, 0, PAGE) for user in (6, 7)), return_exceptions=True
        ):
            assert isinstance(asked, ArchiveAway)
        env.rows.away = False
        assert await env.all_come(6, 7) == [[], [71, 72, 73]]

    asyncio.run(main())


def test_cancelled_caller_does_not_affect_the_others() -> None:
    async def main() -> None:
        env = UndeliveredEnv(7)
        env.rows.go_on.clear()
        gone, waits = (asyncio.ensure_future(env.lookup.undelivered(user, 0, PAGE)) for user in (6, 7))
        await env.rows.asked.wait()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        env.rows.go_on.set()
        assert [row.id for row in await waits] == [71, 72, 73]

    asyncio.run(main())
