"""What a save stage tells and asks, with stores that fail on demand."""

from collections.abc import Sequence
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.archive import BadRow, NewMessage, Outcome, Status, Stored, Verdict
from dragoman.domain.chat.switches import Switches
from dragoman.protocol.peer import ChatPush, ChatTell, InboxMessage, decode_inbox
from dragoman.services.chat import save
from dragoman.services.chat.courier import Courier
from dragoman.services.chat.desk import Repeats
from dragoman.services.chat.holding import Holding
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.save import SaveStage, SaveTools
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
        self.courier = Courier("i0", LocalUsers(metrics, 60), this, this, metrics)
        switchboard = cast(Any, SimpleNamespace(current=Switches(enabled=True)))
        self.stage = SaveStage(SaveTools(this, this, self.courier, this, switchboard, metrics, 5, Repeats(metrics)))

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

    async def bury(self, *args: object, **more: object) -> int:
        return 0

    async def leave_word(self, user: int, frame: bytes) -> None:
        pass

    async def saved(self, shard: int, holder: str, rows: Sequence[SavedEntry]) -> list[SavedEntry]:
        return []

    async def work(self, *ids: int) -> None:
        entries = [Entry("1-1", id, f"m{id}", SENDER, RECEIVER, "TEXT", "hi", 1, 1, "i0", "save_first") for id in ids]
        await self.stage.work(Holding(0, "i0", 1, inf), list(entries))


def _stored(row: NewMessage) -> Stored:
    return Stored(row.id, 1, 1, row.from_user, row.to_user, "TEXT", row.body, row.client_msg_id, Status.SAVED, 5, 6)


async def test_a_sender_is_told_saved_though_redis_was_away_for_a_moment() -> None:
    world = World()
    world.away = 1
    await world.work(1)
    tells = [message for message in world.handed if isinstance(message, ChatTell)]
    assert [(one.user, one.ended) for message in tells for one in message.tells] == [(SENDER, 1)]


async def test_a_sender_is_told_saved_when_redis_is_back() -> None:
    world = World()
    world.away = 4
    await world.work(1)
    while world.away:
        await world.courier.remind()
    await world.courier.remind()
    assert [type(message) for message in world.handed].count(ChatTell) == 1


async def test_where_senders_and_receivers_are_is_asked_once() -> None:
    world = World()
    asked = list[Sequence[int]]()

    async def owners(users: Sequence[int]) -> list[str]:
        asked.append(users)
        return ["i1|1"] * len(users)

    world.courier.users.owners = owners  # type: ignore[method-assign]
    await world.work(1, 2)
    assert asked == [[RECEIVER, SENDER]]
    assert [type(message) for message in world.handed] == [ChatTell, ChatPush]


async def test_a_sender_whom_redis_could_not_find_has_missed_no_message() -> None:
    world = World()
    world.away = 1
    await world.work(1)
    assert not world.courier.is_behind(SENDER)


async def test_each_row_that_the_database_refuses_counts_as_a_failed_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "BACK_OFF_S", (0.0,) * 6)
    world = World()
    world.bad = {2, 3}
    await world.work(1, 2, 3, 4)
    assert (world.metrics.chat_save_fail.value, world.metrics.chat_dead.value) == (2, 2)
    assert sum(world.metrics.chat_save_lag.buckets) == 2
