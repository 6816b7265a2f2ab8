import pytest

from dragoman.client.chat.inbox import Inbox, Put
from dragoman.client.chat.messages import Message


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
