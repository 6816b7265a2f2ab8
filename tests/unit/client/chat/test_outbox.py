from random import Random

import pytest

from dragoman.client.chat.messages import ChatClosed, Sent
from dragoman.client.chat.outbox import Outbox, PendingReceipts, SentReceipts
from dragoman.connection import Backoff
from dragoman.protocol.chat import AckType, receipt


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


def test_what_is_done_is_gone() -> None:
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


def test_without_a_word_for_too_long_it_is_said_again() -> None:
    box = outbox(resend_s=20)
    add(box, 1)
    sent_now(box, 0.0)
    box.accepted("c1")
    assert box.due_at() == 20
    assert sent_now(box, 19.9) == []
    assert sent_now(box, 20.0) == [1]
    assert box.due_at() == 40


def test_what_was_saved_meanwhile_is_not_said_again() -> None:
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
