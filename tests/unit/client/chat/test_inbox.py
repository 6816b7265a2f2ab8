import pytest

from dragoman.client.chat.inbox import Inbox, Message, Taken


def message(id: int) -> Message:
    return Message(2, 1, "hi", "TEXT", f"c{id}", id, None, 0)


async def test_each_message_is_handed_out_once() -> None:
    inbox = Inbox()
    assert inbox.put(message(1)) is Taken.NEW
    assert inbox.put(message(1)) is Taken.WAITING
    assert await inbox.get() == message(1)
    assert inbox.put(message(1)) is Taken.HANDED_OUT
    assert len(inbox) == 0


async def test_without_room_nothing_more_is_taken_until_we_come_back() -> None:
    inbox = Inbox(most=2)
    assert [inbox.put(message(id)) for id in (1, 2, 3)] == [Taken.NEW, Taken.NEW, Taken.NO_ROOM]
    states = [inbox.caught_up]
    await inbox.get()
    assert inbox.put(message(4)) is Taken.NO_ROOM  # or it would overtake 3
    assert [*states, inbox.caught_up] == [False, True]
    inbox.behind = False
    assert inbox.put(message(3)) is Taken.NEW


async def test_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    inbox = Inbox(most=10, remember=10)
    for id in range(1, 13):
        inbox.put(message(id))
        await inbox.get()
    assert inbox.put(message(12)) is Taken.HANDED_OUT
    assert inbox.put(message(1)) is Taken.NEW


async def test_at_the_end_readers_get_what_is_there_then_the_error() -> None:
    inbox = Inbox()
    inbox.put(message(1))
    inbox.end(ValueError("over"))
    inbox.end()
    assert await inbox.get() == message(1)
    with pytest.raises(ValueError, match="over"):
        await inbox.get()


async def test_an_end_without_error_is_none() -> None:
    inbox = Inbox()
    inbox.end()
    assert await inbox.get() is None
