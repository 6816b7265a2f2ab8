import pytest

from dragoman.client.chat.errors import ChatOver
from dragoman.client.chat.receipts import Receipts
from dragoman.client.chat.sent import Sent
from dragoman.protocol.chat import AckType

DELIVERED, READ = AckType.DELIVERED, AckType.READ


def known(receipts: Receipts, *ids: int, to: int = 2) -> list[Sent]:
    sents = [Sent(id, f"c{id}", to, "hi", "TEXT") for id in ids]
    for sent in sents:
        receipts.know(sent, sent.number)
    return sents


def test_a_receipt_counts_for_what_was_sent_before_it_to_the_same_receiver() -> None:
    receipts = Receipts()
    first, second, third = known(receipts, 1, 2, 4)
    (elsewhere,) = known(receipts, 3, to=9)
    receipts.told(DELIVERED, 2, 2)
    assert [bool(one.delivered) for one in (first, second, third, elsewhere)] == [True, True, False, False]
    receipts.told(READ, 2, 4)
    assert [bool(one.read) for one in (first, second, third, elsewhere)] == [True, True, True, False]
    assert receipts.all() == [elsewhere]


def test_a_receipt_that_comes_before_the_id_is_known_is_kept_for_it() -> None:
    receipts = Receipts()
    receipts.told(READ, 2, 1)
    receipts.told(DELIVERED, 2, 1)
    (sent,) = known(receipts, 1)
    assert sent.read


def test_a_receipt_of_somebody_else_says_nothing() -> None:
    receipts = Receipts()
    (sent,) = known(receipts, 1)
    receipts.told(DELIVERED, 3, 1)
    assert not sent.delivered


async def test_of_old_messages_nothing_more_is_told() -> None:
    receipts = Receipts(remember=1)
    old, _ = known(receipts, 1, 2)
    with pytest.raises(ChatOver, match="forgotten"):
        await old.delivered


def test_a_message_that_got_another_id_is_known_by_the_new_one() -> None:
    receipts = Receipts()
    (sent,) = known(receipts, 1)
    receipts.know(sent, 7)
    receipts.told(DELIVERED, 2, 7)
    assert sent.delivered
    assert receipts.all() == [sent]
