"""Pushes and notices that do not arrive, with an inbox and a table of owners that fail on demand."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from dragoman.protocol.peer import ChatNotices, ChatPush, ChatResend, InboxMessage, decode_inbox
from dragoman.services.chat.delivery import Delivery, MessagePush, ResendNotBegun, SenderNotice
from dragoman.services.chat.local_users import ChatUser, LocalUsers
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import Inboxes, PushReply

RESEND = "resend"
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

    async def keep_notice(self, user: int, frame: bytes) -> None:
        if self.away:
            raise RedisAway("away")
        self.left.append((user, frame))


class Boxes:
    def __init__(self) -> None:
        self.answer: PushReply | None = PushReply.OK
        self.got: list[InboxMessage] = []
        self.busy = False  # nobody works what they hold
        self.stuck: asyncio.Future[PushReply] | None = None  # what a word that somebody is behind will be answered
        self.asked = asyncio.Event()

    async def put(self, instance: str, kind: str, data: bytes) -> tuple[PushReply, str]:
        if self.stuck is not None and kind == "chat_resend":
            self.asked.set()
            return await self.stuck, "1-1"
        if self.answer is None:
            raise RedisAway("away")
        if self.answer is PushReply.OK:
            self.got.append(decode_inbox(data))
        return self.answer, "1-1"

    async def get(self, instance: str, id: str) -> object:
        return object() if self.busy else None


class Env:
    def __init__(self) -> None:
        self.table, self.boxes, self.tasks = Table(), Boxes(), Tasks()
        metrics = Metrics()
        self.delivery = Delivery(
            "i0",
            LocalUsers(metrics, self.tasks, 60),
            cast(Users, self.table),
            cast(Inboxes, self.boxes),
            metrics,
            self.tasks,
        )

    async def push(self, *ids: int, user: int = 2) -> set[int]:
        owners = await self.delivery.owners([user])
        return await self.delivery.push([MessagePush(user, id, 9, b"{}") for id in ids], owners)

    @property
    def arrived(self) -> list[Any]:
        return [
            message.users if isinstance(message, ChatResend) else [one.id for one in message.pushes]
            for message in self.boxes.got
            if isinstance(message, ChatResend | ChatPush)
        ]


async def test_receiver_gets_a_resend_before_the_next_push_after_its_inbox_was_full() -> None:
    env = Env()
    env.boxes.answer = PushReply.FULL
    assert await env.push(10) == {10}
    env.boxes.answer = PushReply.OK
    assert await env.push(11) == set()
    assert env.arrived == [[2], [11]]


async def test_push_in_line_to_a_local_receiver_goes_through_the_inbox_while_redis_answers() -> None:
    env, one = Env(), MessagePush(1, 10, 9, b"{}")
    await env.delivery.push([one], await env.delivery.owners([1]), in_line=True)
    assert env.arrived == [[10]]
    env.table.away = True
    await env.delivery.push([one], await env.delivery.owners([1]), in_line=True)
    assert env.arrived == [[10]]


async def test_notices_of_several_shards_at_the_same_moment_share_an_inbox_entry() -> None:
    env = Env()
    await asyncio.gather(*(env.delivery.notify([SenderNotice(user, b"{}", id)]) for user, id in ((2, 10), (3, 11))))
    assert [[one.ended for one in entry.notices] for entry in env.boxes.got if isinstance(entry, ChatNotices)] == [
        [10, 11]
    ]


async def test_receiver_gets_a_resend_before_the_next_push_after_redis_was_lost() -> None:
    env = Env()
    env.boxes.answer = None
    assert await env.push(10) == {10}
    assert await env.push(11) == {11}
    env.boxes.answer = PushReply.OK
    assert await env.push(12) == set()
    assert env.arrived == [[2], [12]]


async def test_unlocated_receiver_is_located_before_the_next_push() -> None:
    env = Env()
    env.table.away = True
    assert await env.push(10) == {10}
    assert env.delivery.is_unlocated(2)
    env.table.away = False
    assert await env.push(11) == set()
    assert env.arrived == [[2], [11]]
    assert not env.delivery.is_unlocated(2)


async def test_unlocated_receiver_gets_a_resend_without_a_further_push() -> None:
    env = Env()
    env.table.away = True
    await env.push(10)
    await env.delivery.run_once()
    assert env.arrived == []
    env.table.away = False
    await env.delivery.run_once()
    assert env.arrived == [[2]]


async def test_resend_has_not_begun_until_the_instance_has_handled_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That instance may be the one who saves and pushes what is newer, and does not wait for its own inbox."""
    monkeypatch.setattr("dragoman.services.chat.delivery.REQUEST_TIMEOUT_S", 0.0)
    env = Env()
    env.table.away = True
    await env.push(10)
    env.table.away, env.boxes.busy = False, True
    for _ in range(2):
        with pytest.raises(ResendNotBegun):
            await env.delivery.resend_first([2])
    env.boxes.busy = False
    await env.delivery.resend_first([2])
    assert env.arrived == [[2]]


async def test_receiver_that_moved_since_needs_no_resend_from_its_old_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Coming in there it has looked. Who is still where it was waits for that."""
    monkeypatch.setattr("dragoman.services.chat.delivery.REQUEST_TIMEOUT_S", 0.0)
    env = Env()
    env.table.away = True
    await env.push(10)
    await env.push(11, user=3)
    env.table.away, env.boxes.busy = False, True
    await env.delivery.run_once()
    assert env.arrived == [[2, 3]]
    monkeypatch.setitem(OWNERS, 2, "i2|7")
    await env.delivery.resend_first([2])
    with pytest.raises(ResendNotBegun):
        await env.delivery.resend_first([2, 3])


async def test_resend_has_not_begun_while_the_inbox_has_no_room_for_the_request() -> None:
    env = Env()
    env.table.away = True
    await env.push(10)
    env.table.away, env.boxes.answer = False, PushReply.FULL
    for _ in range(2):
        with pytest.raises(ResendNotBegun):
            await env.delivery.resend_first([2])
    env.boxes.answer = PushReply.OK
    await env.delivery.resend_first([2])
    assert env.arrived == [[2]]


async def request_under_way(env: Env) -> "asyncio.Task[set[int]]":
    env.boxes.answer = PushReply.FULL
    await env.push(10)
    env.boxes.answer, env.boxes.stuck = PushReply.OK, asyncio.get_running_loop().create_future()
    pushing = asyncio.create_task(env.push(11))
    await env.boxes.asked.wait()
    return pushing


async def test_request_of_a_caller_that_is_cancelled_goes_on() -> None:
    env = Env()
    pushing = await request_under_way(env)
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pushing
    assert env.boxes.stuck is not None
    env.boxes.stuck.set_result(PushReply.FULL)
    env.boxes.stuck = None
    await env.push(12)
    assert env.arrived == [[2], [12]]


async def test_pushes_of_several_senders_share_an_entry_in_their_order() -> None:
    env = Env()
    assert await asyncio.gather(*(env.push(id) for id in (11, 12, 13))) == [set(), set(), set()]
    assert env.arrived == [[11, 12, 13]]


async def test_pushes_wait_while_a_resend_request_is_under_way() -> None:
    env = Env()
    first = await request_under_way(env)
    second = asyncio.create_task(env.push(12))
    for _ in range(10):  # as far as it comes by itself
        await asyncio.sleep(0)
    assert env.boxes.stuck is not None
    env.boxes.stuck.set_result(PushReply.FULL)
    env.boxes.stuck = None
    assert (await first, await second) == ({11}, set())
    assert env.arrived == [[2], [12]]


async def test_no_resend_is_pending_after_a_push_to_an_inbox_that_is_gone() -> None:
    env = Env()
    env.boxes.answer = PushReply.GONE
    assert await env.push(10) == {10}
    env.boxes.answer = PushReply.OK
    assert await env.push(11) == set()
    assert env.arrived == [[11]]


class Neighbour:
    """A local user, and what reaches it in which order."""

    id, owner = 1, "i0|1"

    def __init__(self, local: LocalUsers) -> None:
        self.inbound, self.heard = self, list[int | str]()
        local._users[self.id] = cast(ChatUser, self)

    def pause(self) -> None:
        self.heard.append(RESEND)

    async def resume(self) -> None:
        pass

    def push(self, id: int, sender: int, frame: bytes) -> None:
        self.heard.append(id)


async def test_local_receiver_gets_a_resend_before_each_push_without_redis() -> None:
    """Another instance may have saved something for it that it could not bring here any more."""
    env = Env()
    neighbour = Neighbour(env.delivery.local)
    await env.push(10, user=1)
    env.table.away = True
    await env.push(11, user=1)
    env.table.away = False
    await env.push(12, user=1)
    await env.push(13, user=1)
    assert neighbour.heard == [10, RESEND, 11, RESEND, 12, 13]


async def test_push_looks_up_its_own_receivers_only_however_many_are_unlocated() -> None:
    env = Env()
    neighbour = Neighbour(env.delivery.local)
    env.delivery.local_owners(range(1000, 2000))
    env.table.away = True
    await env.push(10, user=1)
    assert (neighbour.heard, env.table.asked) == ([RESEND, 10], 1)
    env.table.away = False
    await env.push(11, user=1)
    assert env.table.asked == 3  # where it is, and once more, since it may have missed something
    await env.delivery.run_once()
    assert (env.table.asked, env.delivery.resends_pending) == (1003, False)


async def test_user_that_disconnected_is_not_reached() -> None:
    assert await Env().push(10, user=1) == {10}


async def test_error_for_a_remote_sender_is_marked_to_be_kept() -> None:
    env = Env()
    await env.delivery.notify([SenderNotice(2, b"{}", 1, keep=True), SenderNotice(3, b"{}", 1)])
    (message,) = env.boxes.got
    assert isinstance(message, ChatNotices)
    assert [one.keep for one in message.notices] == [True, False]


async def test_error_that_cannot_be_sent_is_kept_for_the_next_auth() -> None:
    env = Env()
    env.boxes.answer = PushReply.GONE
    await env.delivery.notify(
        [SenderNotice(2, b"bad", 1, keep=True), SenderNotice(3, b"good", 1), SenderNotice(4, b"worse", 1, keep=True)]
    )
    assert env.table.left == [(4, b"worse"), (2, b"bad")]


async def test_notice_is_sent_when_redis_can_locate_its_sender_again() -> None:
    env = Env()
    env.table.away = True
    await env.delivery.notify([SenderNotice(2, b"{}", 1)])
    await env.delivery.run_once()
    assert env.boxes.got == []
    env.table.away = False
    await env.delivery.run_once()
    await env.delivery.run_once()
    (message,) = env.boxes.got
    assert isinstance(message, ChatNotices)
    assert [(one.user, one.ended) for one in message.notices] == [(2, 1)]


@pytest.mark.parametrize("answer", [PushReply.FULL, None])
async def test_notice_is_sent_again_after_the_inbox_did_not_take_it(answer: PushReply | None) -> None:
    env = Env()
    env.boxes.answer = answer
    await env.delivery.notify([SenderNotice(2, b"{}", 1)])
    env.boxes.answer = PushReply.OK
    await env.delivery.run_once()
    await env.delivery.run_once()
    assert [type(message) for message in env.boxes.got] == [ChatNotices]


async def test_notice_for_a_sender_that_is_not_connected_is_dropped() -> None:
    env = Env()
    await env.delivery.notify([SenderNotice(4, b"{}", 1)])
    env.table.asked = 0
    await env.delivery.run_once()
    assert env.table.asked == 0
