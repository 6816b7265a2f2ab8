"""A chat client's inbox, outbox and account, without a connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from aiohttp import web

from dragoman.client.chat import AccessDenied, Account, ChatError, Unreachable, login
from dragoman.client.chat.messages import ChatClosed, Message, SendFailed, Sent
from dragoman.client.chat.outbox import Inbox, Outbox, PendingReceipts, Put, SentReceipts
from dragoman.connection import Backoff
from dragoman.protocol.chat import AckType, receipt
from support.tables import for_each


def sent() -> Sent:
    return Sent(1, "c1", 2, "hi", "TEXT")


@for_each(
    [
        (AckType.ACCEPTED, {AckType.ACCEPTED}),
        (AckType.SAVED, {AckType.ACCEPTED, AckType.SAVED}),
        (AckType.DELIVERED, {AckType.ACCEPTED, AckType.DELIVERED}),
        (AckType.READ, {AckType.ACCEPTED, AckType.DELIVERED, AckType.READ}),
    ]
)
def test_receipt_includes_those_it_implies(receipt: AckType, known: set[AckType]) -> None:
    one = sent()
    assert one.add_receipt(receipt)
    assert one.receipts == known
    assert not one.add_receipt(receipt)


async def test_cancelled_waiter_does_not_disturb_another() -> None:
    one = sent()
    first, second = (asyncio.ensure_future(one.wait_for(AckType.SAVED)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    one.add_receipt(AckType.SAVED)
    await second


async def test_earlier_receipts_stay_when_saving_fails() -> None:
    one = sent()
    one.add_receipt(AckType.ACCEPTED)
    one.end(SendFailed("save_failed", "no"))
    one.end(ChatClosed())
    await one.accepted
    with pytest.raises(SendFailed):
        await one.saved
    assert one.failed == "save_failed"
    assert "save_failed" in repr(one)


def test_closed_chat_is_not_a_failure_of_its_messages() -> None:
    calls: list[Sent] = []
    one = Sent(1, "c1", 2, "hi", "TEXT", calls.append)
    one.end(ChatClosed())
    assert (one.failed, calls) == (None, [])


def message(id: int) -> Message:
    return Message(2, 1, "hi", "TEXT", f"c{id}", id, None, 0)


async def test_each_message_is_read_once() -> None:
    inbox = Inbox()
    assert inbox.put(message(1)) is Put.NEW
    assert inbox.put(message(1)) is Put.UNREAD_DUPLICATE
    assert await inbox.get() == message(1)
    assert inbox.put(message(1)) is Put.READ_DUPLICATE
    assert len(inbox) == 0


async def test_full_inbox_accepts_nothing_until_the_next_connection() -> None:
    inbox = Inbox(max_unread=2)
    assert [inbox.put(message(id)) for id in (1, 2, 3)] == [Put.NEW, Put.NEW, Put.NO_ROOM]
    states = [inbox.should_reconnect]
    await inbox.get()
    assert inbox.put(message(4)) is Put.NO_ROOM  # or it would overtake 3
    assert [*states, inbox.should_reconnect] == [False, True]
    inbox.reconnected()
    assert inbox.put(message(3)) is Put.NEW


async def test_memory_of_duplicates_is_bounded() -> None:
    inbox = Inbox(max_unread=10, remember=10)
    for id in range(1, 13):
        inbox.put(message(id))
        await inbox.get()
    assert inbox.put(message(12)) is Put.READ_DUPLICATE
    assert inbox.put(message(1)) is Put.NEW


async def test_error_is_raised_after_the_last_message() -> None:
    inbox = Inbox()
    inbox.put(message(1))
    inbox.end(ValueError("over"))
    inbox.end()
    assert await inbox.get() == message(1)
    with pytest.raises(ValueError, match="over"):
        await inbox.get()


async def test_end_without_error_returns_none() -> None:
    inbox = Inbox()
    inbox.end()
    assert await inbox.get() is None


def answer(data: Any, code: int = 0, message: str = "ok") -> web.Response:
    told = {"ok": code == 0, "code": code, "message": message, "data": data, "ts": 1}
    return web.json_response(told, status=200 if code == 0 else code // 100)


@asynccontextmanager
async def serving(**routes: Any) -> AsyncIterator[str]:
    app = web.Application()
    for name, handler in routes.items():
        app.router.add_route("*", "/" + name.replace("__", "/").replace("_", "-"), handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_login_gives_an_account_with_a_token() -> None:
    async def logged_in(request: web.Request) -> web.Response:
        assert await request.json() == {"username": "alice", "password": "secret"}
        return answer({"userId": "7", "accessToken": "a", "refreshToken": "r", "accessTokenExpiresInSeconds": 3600})

    async with serving(auth__login=logged_in) as url:
        account = await login(url, "alice", "secret")
    assert account.user_id == 7
    assert await account.token() == "a"


@pytest.mark.parametrize(
    ("code", "error"), [(40100, AccessDenied), (42900, AccessDenied), (40000, ChatError), (50000, ChatError)]
)
async def test_a_refusal_says_why(code: int, error: type[ChatError]) -> None:
    async def refused(request: web.Request) -> web.Response:
        return answer(None, code, "wrong password")

    async with serving(auth__login=refused) as url:
        with pytest.raises(error, match="wrong password"):
            await login(url, "alice", "secret")


async def test_a_token_about_to_expire_is_replaced() -> None:
    async def refreshed(request: web.Request) -> web.Response:
        assert await request.json() == {"refreshToken": "r"}
        return answer({"userId": "7", "accessToken": "b", "accessTokenExpiresInSeconds": 3600})

    async with serving(auth__refresh=refreshed) as url:
        account = Account(url, 7, "a", "r", lasts_s=0)
        assert [await account.token(), await account.token()] == ["b", "b"]


async def test_history_is_read_with_the_token() -> None:
    async def page(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer a"
        assert request.query["peerUserId"] == "2"
        row = {
            "id": "9", "chatType": "SINGLE", "singleChatId": "1", "fromUserId": "2", "toUserId": "7", "msgType": "TEXT",
            "status": 1, "msgSeq": 3, "clientMsgId": "c", "serverMsgId": "9", "createdAt": 5, "updatedAt": 5,
            "content": "hi",
        }  # fmt: skip
        return answer([row])

    async with serving(single_chat__message__cursor=page) as url:
        (said,) = await Account(url, 7, "a").history(2)
    assert (said.from_user, said.body, said.server_msg_id, said.seq) == (2, "hi", 9, 3)


async def test_missing_server_and_other_server_are_reported() -> None:
    with pytest.raises(Unreachable, match="no chat server answers"):
        await login("http://127.0.0.1:1", "alice", "secret")

    async def other(request: web.Request) -> web.Response:
        return web.json_response({"error": "not found"}, status=404)

    async with serving(auth__login=other) as url:
        with pytest.raises(Unreachable, match="is not a chat server"):
            await login(url, "alice", "secret")


class Steady(Random):
    """Every pause is as long as it may be."""

    def uniform(self, a: float, b: float) -> float:
        return b


def outbox(in_flight: int = 1, resend_s: float = 20.0) -> Outbox:
    return Outbox(Backoff(1.0, 4.0, 5.0, Steady()), in_flight, resend_s)


def add(box: Outbox, *numbers: int) -> list[Sent]:
    sents = [Sent(number, f"c{number}", 2, "hi", "TEXT") for number in numbers]
    for sent in sents:
        box.add(sent)
    return sents


def sent_now(box: Outbox, now: float = 0.0) -> list[int]:
    numbers = []
    while (sent := box.next(now)) is not None:
        numbers.append(sent.number)
    return numbers


def test_one_is_said_at_a_time() -> None:
    box = outbox()
    add(box, 1, 2)
    assert sent_now(box) == [1]
    box.accepted("c1")
    assert sent_now(box) == [2]
    assert len(box) == 2


def test_finished_message_leaves_the_outbox() -> None:
    box = outbox()
    (sent,) = add(box, 1)
    sent_now(box)
    assert box.done("c1") is sent
    assert box.done("c1") is None
    assert (len(box), box.due_at()) == (0, None)


def test_a_refused_one_is_said_again_after_pauses_that_grow() -> None:
    box = outbox()
    add(box, 1, 2)
    now, pauses = 0.0, []
    for _ in range(4):
        assert sent_now(box, now) == [1]
        assert box.busy("c1", now)
        assert sent_now(box, now) == []
        due_at = box.due_at()
        assert due_at is not None
        pauses.append(due_at - now)
        now = due_at
    assert pauses == [1, 2, 4, 4]


def test_an_answer_makes_pauses_short_again() -> None:
    box = outbox()
    add(box, 1, 2)
    sent_now(box)
    box.busy("c1", 0.0)
    sent_now(box, 10.0)
    box.accepted("c1")
    sent_now(box, 10.0)
    box.busy("c2", 10.0)
    assert sent_now(box, 11.0) == [2]


def test_with_several_in_flight_a_refused_one_goes_first_again() -> None:
    box = outbox(in_flight=3)
    add(box, 1, 2, 3, 4)
    assert sent_now(box) == [1, 2, 3]
    box.busy("c1", 0.0)
    box.accepted("c2")
    assert sent_now(box, 1.0) == [1, 4]


def test_a_lost_connection_brings_everything_back_in_order() -> None:
    box = outbox()
    add(box, 1, 2, 3)
    sent_now(box)
    box.accepted("c1")
    sent_now(box)
    box.lost()
    assert sent_now(box) == [1]
    box.accepted("c1")
    assert sent_now(box) == [2]


def test_message_is_resent_after_its_timeout() -> None:
    box = outbox(resend_s=20)
    add(box, 1)
    sent_now(box, 0.0)
    box.accepted("c1")
    assert box.due_at() == 20
    assert sent_now(box, 19.9) == []
    assert sent_now(box, 20.0) == [1]
    assert box.due_at() == 40


def test_message_saved_meanwhile_is_not_resent() -> None:
    box = outbox()
    add(box, 1, 2)
    box.lost()
    box.done("c1")
    assert sent_now(box) == [2]


def test_an_answer_to_something_else_is_none_of_ours() -> None:
    box = outbox()
    assert box.accepted("x") is None
    assert not box.busy("x", 0.0)


DELIVERED, READ = AckType.DELIVERED, AckType.READ
ALICE, BOB = 1, 2


def all_of(pending: PendingReceipts) -> list[bytes]:
    return [frame for _ in range(len(pending)) if (frame := pending.next()) is not None]


def test_pending_receipts_are_sent_once_oldest_first() -> None:
    pending = PendingReceipts()
    pending.add(DELIVERED, 10, ALICE)
    pending.add(READ, 10, ALICE)
    assert all_of(pending) == [receipt(DELIVERED, 10, ALICE), receipt(READ, 10, ALICE)]
    assert pending.next() is None


def test_highest_read_of_each_sender_is_resent_after_a_lost_connection() -> None:
    pending = PendingReceipts()
    for id, sender in ((11, ALICE), (10, ALICE), (12, BOB)):
        pending.add(DELIVERED, id, sender)
        pending.add(READ, id, sender)
    all_of(pending)
    pending.lost()
    assert all_of(pending) == [receipt(READ, 11, ALICE), receipt(READ, 12, BOB)]


def test_pending_receipt_is_not_added_twice() -> None:
    pending = PendingReceipts()
    pending.add(READ, 10, ALICE)
    pending.lost()
    pending.lost()
    assert all_of(pending) == [receipt(READ, 10, ALICE)]


def test_pending_receipts_are_bounded() -> None:
    pending = PendingReceipts(max_pending=3, remember=1)
    for id in range(10, 14):
        pending.add(DELIVERED, id, ALICE)
    assert all_of(pending) == [receipt(DELIVERED, id, ALICE) for id in (11, 12, 13)]
    for id, sender in ((20, ALICE), (21, BOB), (22, ALICE)):
        pending.add(READ, id, sender)
    all_of(pending)
    pending.lost()
    assert all_of(pending) == [receipt(READ, 22, ALICE)]


def known(receipts: SentReceipts, *ids: int, to: int = 2) -> list[Sent]:
    sents = [Sent(id, f"c{id}", to, "hi", "TEXT") for id in ids]
    for sent in sents:
        receipts.identify(sent, sent.number)
    return sents


def test_receipt_covers_earlier_messages_to_the_same_receiver() -> None:
    receipts = SentReceipts()
    first, second, third = known(receipts, 1, 2, 4)
    (elsewhere,) = known(receipts, 3, to=9)
    receipts.receive(DELIVERED, 2, 2)
    assert [bool(one.delivered) for one in (first, second, third, elsewhere)] == [True, True, False, False]
    receipts.receive(READ, 2, 4)
    assert [bool(one.read) for one in (first, second, third, elsewhere)] == [True, True, True, False]
    assert receipts.all() == [elsewhere]


def test_receipt_that_arrives_before_the_id_is_kept() -> None:
    receipts = SentReceipts()
    receipts.receive(READ, 2, 1)
    receipts.receive(DELIVERED, 2, 1)
    (sent,) = known(receipts, 1)
    assert sent.read


def test_receipt_of_another_user_is_ignored() -> None:
    receipts = SentReceipts()
    (sent,) = known(receipts, 1)
    receipts.receive(DELIVERED, 3, 1)
    assert not sent.delivered


async def test_old_messages_get_no_more_receipts() -> None:
    receipts = SentReceipts(remember=1)
    old, _ = known(receipts, 1, 2)
    with pytest.raises(ChatClosed, match="forgotten"):
        await old.delivered


def test_message_with_a_new_id_is_known_by_it() -> None:
    receipts = SentReceipts()
    (sent,) = known(receipts, 1)
    receipts.identify(sent, 7)
    receipts.receive(DELIVERED, 2, 7)
    assert sent.delivered
    assert receipts.all() == [sent]
