import asyncio

import pytest

from dragoman.client.events import Detected, Partial
from dragoman.client.mailbox import Mailbox


def partial(index: int) -> Partial:
    return Partial("s-1", index, "so far", False, f"job-{index}")


async def test_events_are_read_once_in_order_then_comes_the_end() -> None:
    box = Mailbox()
    box.put(partial(1))
    box.put(partial(2))
    box.end()
    box.put(partial(3))
    assert [await box.get(), await box.get(), await box.get(), await box.get()] == [partial(1), partial(2), None, None]


async def test_a_reader_waits_for_news() -> None:
    box = Mailbox()
    reading = asyncio.ensure_future(box.get())
    await asyncio.sleep(0)
    box.put(partial(1))
    assert await reading == partial(1)


async def test_several_readers_share_the_events_and_the_end() -> None:
    box = Mailbox()
    readers = [asyncio.ensure_future(box.get()) for _ in range(3)]
    await asyncio.sleep(0)
    box.put(partial(1))
    box.end()
    assert sorted(map(str, await asyncio.gather(*readers))) == sorted(map(str, [partial(1), None, None]))


async def test_what_ended_it_is_raised_after_what_was_there() -> None:
    box = Mailbox()
    box.put(partial(1))
    box.end(ValueError("that is why"))
    box.end()
    assert await box.get() == partial(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="that is why"):
            await box.get()


async def test_when_nobody_reads_partials_go_and_nothing_else() -> None:
    box = Mailbox(max_unread=3)
    for index in range(4):
        box.put(Detected("en", index))
    for index in range(5):
        box.put(partial(index))
    assert len(box) == 4
    assert [await box.get() for _ in range(4)] == [Detected("en", index) for index in range(4)]
