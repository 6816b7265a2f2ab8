"""What becomes of messages and words that do not arrive, with an inbox and a table of owners that fail on demand."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from dragoman.protocol.peer import ChatCatchUp, ChatPush, ChatTell, InboxMessage, decode_inbox
from dragoman.services.chat.courier import Courier, Delivery, NotHeeded, Tell
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.user import ChatUser
from dragoman.services.metrics import Metrics
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import Inboxes, Push

OWNERS = {1: "i0|1", 2: "i1|5", 3: "i1|6"}


class Table:
    def __init__(self) -> None:
        self.away = False
        self.asked = 0  # for so many users
        self.left: list[tuple[int, bytes]] = []

    async def owners(self, users: Sequence[int]) -> list[str]:
        self.asked += len(users)
        if self.away:
            raise RedisAway("away")
        return [OWNERS.get(user, "") for user in users]

    async def leave_word(self, user: int, frame: bytes) -> None:
        if self.away:
            raise RedisAway("away")
        self.left.append((user, frame))


class Boxes:
    def __init__(self) -> None:
        self.answer: Push | None = Push.OK
        self.got: list[InboxMessage] = []
        self.busy = False  # nobody works what they hold
        self.stuck: asyncio.Future[Push] | None = None  # what a word that somebody is behind will be answered
        self.asked = asyncio.Event()

    async def put(self, instance: str, kind: str, data: bytes) -> tuple[Push, str]:
        if self.stuck is not None and kind == "chat_catch_up":
            self.asked.set()
            return await self.stuck, "1-1"
        if self.answer is None:
            raise RedisAway("away")
        if self.answer is Push.OK:
            self.got.append(decode_inbox(data))
        return self.answer, "1-1"

    async def get(self, instance: str, id: str) -> object:
        return object() if self.busy else None


class Stage:
    def __init__(self) -> None:
        self.table, self.boxes = Table(), Boxes()
        metrics = Metrics()
        self.courier = Courier(
            "i0", LocalUsers(metrics, 60), cast(Users, self.table), cast(Inboxes, self.boxes), metrics
        )

    async def push(self, *ids: int, user: int = 2) -> set[int]:
        owners = await self.courier.owners([user])
        return await self.courier.push([Delivery(user, id, 9, b"{}") for id in ids], owners)

    @property
    def arrived(self) -> list[Any]:
        return [
            message.users if isinstance(message, ChatCatchUp) else [one.id for one in message.pushes]
            for message in self.boxes.got
            if isinstance(message, ChatCatchUp | ChatPush)
        ]


async def test_who_missed_something_by_a_full_inbox_looks_into_the_archive_before_anything_newer() -> None:
    stage = Stage()
    stage.boxes.answer = Push.FULL
    assert await stage.push(10) == {10}
    stage.boxes.answer = Push.OK
    assert await stage.push(11) == set()
    assert stage.arrived == [[2], [11]]


async def test_who_missed_something_by_a_lost_connection_to_redis_does_so_as_well() -> None:
    stage = Stage()
    stage.boxes.answer = None
    assert await stage.push(10) == {10}
    assert await stage.push(11) == {11}
    stage.boxes.answer = Push.OK
    assert await stage.push(12) == set()
    assert stage.arrived == [[2], [12]]


async def test_who_could_not_be_found_is_found_before_anything_newer() -> None:
    stage = Stage()
    stage.table.away = True
    assert await stage.push(10) == {10}
    assert stage.courier.is_behind(2)
    stage.table.away = False
    assert await stage.push(11) == set()
    assert stage.arrived == [[2], [11]]
    assert not stage.courier.is_behind(2)


async def test_who_could_not_be_found_is_reminded_without_anything_newer() -> None:
    stage = Stage()
    stage.table.away = True
    await stage.push(10)
    await stage.courier.remind()
    assert stage.arrived == []
    stage.table.away = False
    await stage.courier.remind()
    assert stage.arrived == [[2]]


async def test_nobody_counts_as_reminded_before_its_instance_has_worked_the_reminder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That instance may be the one who saves and pushes what is newer, and does not wait for its own inbox."""
    monkeypatch.setattr("dragoman.services.chat.courier.HEED_S", 0.0)
    stage = Stage()
    stage.table.away = True
    await stage.push(10)
    stage.table.away, stage.boxes.busy = False, True
    for _ in range(2):
        with pytest.raises(NotHeeded):
            await stage.courier.make_up([2])
    stage.boxes.busy = False
    await stage.courier.make_up([2])
    assert stage.arrived == [[2]]


async def test_who_has_moved_on_since_counts_as_reminded_though_its_old_instance_does_not_hear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Coming in there it has looked. Who is still where it was waits for that."""
    monkeypatch.setattr("dragoman.services.chat.courier.HEED_S", 0.0)
    stage = Stage()
    stage.table.away = True
    await stage.push(10)
    await stage.push(11, user=3)
    stage.table.away, stage.boxes.busy = False, True
    await stage.courier.remind()
    assert stage.arrived == [[2, 3]]
    monkeypatch.setitem(OWNERS, 2, "i2|7")
    await stage.courier.make_up([2])
    with pytest.raises(NotHeeded):
        await stage.courier.make_up([2, 3])


async def test_nobody_counts_as_reminded_while_its_instance_has_no_room_for_the_reminder() -> None:
    stage = Stage()
    stage.table.away = True
    await stage.push(10)
    stage.table.away, stage.boxes.answer = False, Push.FULL
    for _ in range(2):
        with pytest.raises(NotHeeded):
            await stage.courier.make_up([2])
    stage.boxes.answer = Push.OK
    await stage.courier.make_up([2])
    assert stage.arrived == [[2]]


async def one_behind_and_a_word_of_it_on_its_way(stage: Stage) -> "asyncio.Task[set[int]]":
    stage.boxes.answer = Push.FULL
    await stage.push(10)
    stage.boxes.answer, stage.boxes.stuck = Push.OK, asyncio.get_running_loop().create_future()
    pushing = asyncio.create_task(stage.push(11))
    await stage.boxes.asked.wait()
    return pushing


async def test_who_missed_something_is_not_forgotten_when_nobody_waits_for_the_answer() -> None:
    stage = Stage()
    pushing = await one_behind_and_a_word_of_it_on_its_way(stage)
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pushing
    assert stage.courier.owes_anybody
    stage.boxes.stuck = None
    await stage.push(12)
    assert stage.arrived == [[2], [12]]


async def test_while_a_receiver_is_told_that_it_missed_something_nobody_else_pushes_to_it() -> None:
    stage = Stage()
    first = await one_behind_and_a_word_of_it_on_its_way(stage)
    second = asyncio.create_task(stage.push(12))
    for _ in range(10):  # as far as it comes by itself
        await asyncio.sleep(0)
    assert stage.boxes.stuck is not None
    stage.boxes.stuck.set_result(Push.FULL)
    stage.boxes.stuck = None
    assert (await first, await second) == ({11}, set())
    assert stage.arrived == [[2], [12]]


async def test_an_inbox_that_is_gone_owes_nobody_anything() -> None:
    stage = Stage()
    stage.boxes.answer = Push.GONE
    assert await stage.push(10) == {10}
    stage.boxes.answer = Push.OK
    assert await stage.push(11) == set()
    assert stage.arrived == [[11]]


class Neighbour:
    """A user who is here, and what reaches it in which order."""

    id, owner = 1, "i0|1"

    def __init__(self, here: LocalUsers) -> None:
        self.inbound, self.heard = self, list[int | str]()
        here._users[self.id] = cast(ChatUser, self)
        here.on_catch_up = lambda user: self.heard.append("looks into the archive")

    def push(self, id: int, sender: int, frame: bytes) -> None:
        self.heard.append(id)


async def test_without_redis_one_who_is_here_looks_into_the_archive_before_it_is_pushed_anything_newer() -> None:
    """Another instance may have saved something for it that it could not bring here any more."""
    stage = Stage()
    neighbour = Neighbour(stage.courier.here)
    await stage.push(10, user=1)
    stage.table.away = True
    await stage.push(11, user=1)
    stage.table.away = False
    await stage.push(12, user=1)
    await stage.push(13, user=1)
    archive = "looks into the archive"
    assert neighbour.heard == [10, archive, 11, archive, 12, 13]


async def test_a_message_costs_the_same_however_many_missed_something_while_redis_was_away() -> None:
    stage = Stage()
    neighbour = Neighbour(stage.courier.here)
    stage.courier.owners_here(range(1000, 2000))
    stage.table.away = True
    await stage.push(10, user=1)
    assert (neighbour.heard, stage.table.asked) == (["looks into the archive", 10], 1)
    stage.table.away = False
    await stage.push(11, user=1)
    assert stage.table.asked == 3  # where it is, and once more, since it may have missed something
    await stage.courier.remind()
    assert (stage.table.asked, stage.courier.owes_anybody) == (1003, False)


async def test_one_who_left_here_is_not_reached() -> None:
    assert await Stage().push(10, user=1) == {10}


async def test_bad_news_for_one_elsewhere_says_that_it_must_be_kept() -> None:
    stage = Stage()
    await stage.courier.tell([Tell(2, b"{}", 1, keep=True), Tell(3, b"{}", 1)])
    (message,) = stage.boxes.got
    assert isinstance(message, ChatTell)
    assert [one.keep for one in message.tells] == [True, False]


async def test_bad_news_that_cannot_arrive_is_left_for_the_next_auth() -> None:
    stage = Stage()
    stage.boxes.answer = Push.GONE
    await stage.courier.tell([Tell(2, b"bad", 1, keep=True), Tell(3, b"good", 1), Tell(4, b"worse", 1, keep=True)])
    assert stage.table.left == [(4, b"worse"), (2, b"bad")]


async def test_a_word_for_one_whom_redis_could_not_find_is_told_when_it_can() -> None:
    stage = Stage()
    stage.table.away = True
    await stage.courier.tell([Tell(2, b"{}", 1)])
    await stage.courier.remind()
    assert stage.boxes.got == []
    stage.table.away = False
    await stage.courier.remind()
    await stage.courier.remind()
    (message,) = stage.boxes.got
    assert isinstance(message, ChatTell)
    assert [(one.user, one.ended) for one in message.tells] == [(2, 1)]


@pytest.mark.parametrize("answer", [Push.FULL, None])
async def test_a_word_that_an_inbox_did_not_take_is_told_when_it_does(answer: Push | None) -> None:
    stage = Stage()
    stage.boxes.answer = answer
    await stage.courier.tell([Tell(2, b"{}", 1)])
    stage.boxes.answer = Push.OK
    await stage.courier.remind()
    await stage.courier.remind()
    assert [type(message) for message in stage.boxes.got] == [ChatTell]


async def test_a_word_for_one_that_is_not_connected_does_not_wait() -> None:
    stage = Stage()
    await stage.courier.tell([Tell(4, b"{}", 1)])
    stage.table.asked = 0
    await stage.courier.remind()
    assert stage.table.asked == 0
