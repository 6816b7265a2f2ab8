import asyncio

import pytest

from dragoman.client.chat.messages import ChatClosed, SendFailed, Sent
from dragoman.protocol.chat import AckType


def sent() -> Sent:
    return Sent(1, "c1", 2, "hi", "TEXT")


@pytest.mark.parametrize(
    ("receipt", "known"),
    [
        (AckType.ACCEPTED, {AckType.ACCEPTED}),
        (AckType.SAVED, {AckType.ACCEPTED, AckType.SAVED}),
        (AckType.DELIVERED, {AckType.ACCEPTED, AckType.DELIVERED}),
        (AckType.READ, {AckType.ACCEPTED, AckType.DELIVERED, AckType.READ}),
    ],
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
