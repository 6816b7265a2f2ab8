"""The notices and look-ups of a save stage, with stores that fail on demand."""

from collections.abc import Sequence
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.archive import BadRow, NewMessage, Outcome, Status, Stored, Verdict
from dragoman.domain.chat.switches import Switches
from dragoman.protocol.peer import ChatNotices, ChatPush, InboxMessage, decode_inbox
from dragoman.services.chat import two_phase
from dragoman.services.chat.delivery import Delivery
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.one_phase import Refusals
from dragoman.services.chat.shard_lease import ShardLease
from dragoman.services.chat.two_phase import SaveStage
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Entry, SavedEntry
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import Push

SENDER, RECEIVER = 7, 9


class World:
    """Of Redis and SQL what a save stage uses; all users are at another instance."""

    def __init__(self) -> None:
        self.away = 0  # so many times, when asked where somebody is
        self.handed: list[InboxMessage] = []
        self.metrics = metrics = Metrics()
        this, self.bad = cast(Any, self), set[int]()
        self.delivery = Delivery("i0", LocalUsers(metrics, Tasks(), 60), this, this, metrics)
        switches = cast(Any, SimpleNamespace(current=Switches(enabled=True)))
        self.stage = SaveStage(this, this, self.delivery, this, switches, metrics, Refusals(metrics), 5)

    async def owners(self, users: Sequence[int]) -> list[str]:
        if self.away:
            self.away -= 1
            raise RedisAway("away")
        return [f"i1|{user}" for user in users]

    async def put(self, instance: str, kind: str, data: bytes) -> tuple[Push, str]:
        self.handed.append(decode_inbox(data))
        return Push.OK, "1-1"

    async def get(self, instance: str, id: str) -> None:
        return None

    async def save(self, rows: Sequence[NewMessage], *, shard: int, fence: int) -> list[Outcome]:
        if any(row.id in self.bad for row in rows):
            raise BadRow("one of them cannot be written")
        return [Outcome(Verdict.SAVED, _stored(row)) for row in rows]

    async def move_to_dead(self, *args: object, **more: object) -> int:
        return 0

    async def keep_notice(self, user: int, frame: bytes) -> None:
        pass

    async def saved(self, shard: int, holder: str, rows: Sequence[SavedEntry]) -> list[SavedEntry]:
        return []

    async def work(self, *ids: int) -> None:
        entries = [Entry("1-1", id, f"m{id}", SENDER, RECEIVER, "TEXT", "hi", 1, 1, "i0", "save_first") for id in ids]
        await self.stage.handle(ShardLease(0, "i0", 1, inf), list(entries))


def _stored(row: NewMessage) -> Stored:
    return Stored(row.id, 1, 1, row.from_user, row.to_user, "TEXT", row.body, row.client_msg_id, Status.SAVED, 5, 6)


async def test_sender_gets_saved_although_redis_was_unavailable_for_a_moment() -> None:
    world = World()
    world.away = 1
    await world.work(1)
    sent = [message for message in world.handed if isinstance(message, ChatNotices)]
    assert [(one.user, one.ended) for message in sent for one in message.notices] == [(SENDER, 1)]


async def test_sender_gets_saved_when_redis_is_back() -> None:
    world = World()
    world.away = 4
    await world.work(1)
    while world.away:
        await world.delivery.run_once()
    await world.delivery.run_once()
    assert [type(message) for message in world.handed].count(ChatNotices) == 1


async def test_senders_and_receivers_are_looked_up_in_one_query() -> None:
    world = World()
    asked = list[Sequence[int]]()

    async def owners(users: Sequence[int]) -> list[str]:
        asked.append(users)
        return ["i1|1"] * len(users)

    world.delivery.users.owners = owners  # type: ignore[method-assign]
    await world.work(1, 2)
    assert asked == [[RECEIVER, SENDER]]
    assert [type(message) for message in world.handed] == [ChatNotices, ChatPush]


async def test_sender_that_redis_could_not_locate_needs_no_resend() -> None:
    world = World()
    world.away = 1
    await world.work(1)
    assert not world.delivery.is_unlocated(SENDER)


async def test_each_row_that_the_database_refuses_counts_as_a_failed_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_phase, "BACK_OFF_S", (0.0,) * 6)
    world = World()
    world.bad = {2, 3}
    await world.work(1, 2, 3, 4)
    assert (world.metrics.chat_save_fail.value, world.metrics.chat_dead.value) == (2, 2)
    assert sum(world.metrics.chat_save_lag.buckets) == 2
