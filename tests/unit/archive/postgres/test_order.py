import pytest

from dragoman.archive import NewMessage
from dragoman.archive.postgres.order import Behind


def _said(sender: int, to: int) -> NewMessage:
    return NewMessage(1, "c", sender, to, "TEXT", "hello", 5)


@pytest.mark.parametrize(("sender", "to"), [(1, 2), (2, 1), (1, 3)])
def test_behind_a_message_is_what_is_in_its_conversation_or_by_its_sender(sender: int, to: int) -> None:
    assert _said(sender, to) in Behind([_said(1, 2)])


@pytest.mark.parametrize(("sender", "to"), [(3, 4), (3, 1), (3, 2), (2, 3)])
def test_what_only_goes_to_one_of_the_two_or_is_by_the_other_is_not(sender: int, to: int) -> None:
    assert _said(sender, to) not in Behind([_said(1, 2)])


def test_behind_nothing_is_nothing() -> None:
    assert _said(1, 2) not in Behind()
