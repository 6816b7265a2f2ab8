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


def test_read_counts_for_what_was_delivered_before_it() -> None:
    receipts = Receipts()
    delivered, undelivered, read, later = known(receipts, 1, 2, 3, 4)
    (elsewhere,) = known(receipts, 5, to=9)
    for id, acker in ((1, 2), (3, 2), (4, 2), (5, 9)):
        receipts.told(DELIVERED, acker, id)
    receipts.told(READ, 2, 3)
    assert [bool(one.read) for one in (delivered, undelivered, read, later, elsewhere)] == [
        True, False, True, False, False,
    ]  # fmt: skip
    assert not undelivered.delivered


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
