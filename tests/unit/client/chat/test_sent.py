import asyncio

import pytest

from dragoman.client.chat.errors import ChatOver, SendFailed
from dragoman.client.chat.sent import Sent
from dragoman.protocol.chat import AckType


def sent() -> Sent:
    return Sent(1, "c1", 2, "hi", "TEXT")


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (AckType.ACCEPTED, {AckType.ACCEPTED}),
        (AckType.SAVED, {AckType.ACCEPTED, AckType.SAVED}),
        (AckType.DELIVERED, {AckType.ACCEPTED, AckType.DELIVERED}),
        (AckType.READ, {AckType.ACCEPTED, AckType.DELIVERED, AckType.READ}),
    ],
)
def test_a_receipt_tells_what_it_implies(told: AckType, known: set[AckType]) -> None:
    one = sent()
    assert one.reach(told)
    assert one.receipts == known
    assert not one.reach(told)


async def test_one_who_stops_waiting_does_not_disturb_another() -> None:
    one = sent()
    first, second = (asyncio.ensure_future(one.until(AckType.SAVED)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    one.reach(AckType.SAVED)
    await second


async def test_what_was_reached_stays_so_when_the_rest_fails() -> None:
    one = sent()
    one.reach(AckType.ACCEPTED)
    one.end(SendFailed("save_failed", "no"))
    one.end(ChatOver())
    await one.accepted
    with pytest.raises(SendFailed):
        await one.saved
    assert one.failed == "save_failed"
    assert "save_failed" in repr(one)


def test_not_knowing_is_no_failure() -> None:
    calls: list[Sent] = []
    one = Sent(1, "c1", 2, "hi", "TEXT", calls.append)
    one.end(ChatOver())
    assert (one.failed, calls) == (None, [])
