"""Pieces of audio are told apart on the other side, however they were cut and joined."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocol import audio
from dragoman.tools.verify import pieces

NUMBERS = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(NUMBERS, unique=True))
def test_what_was_said_is_heard(numbers: list[int]) -> None:
    assert pieces.heard(pieces.sound(numbers)) == numbers


@given(st.lists(NUMBERS, unique=True), st.lists(NUMBERS, unique=True))
def test_pieces_joined_are_a_longer_run(some: list[int], more: list[int]) -> None:
    joined = pieces.sound(some) + pieces.sound(more)
    assert audio.duration_ms(audio.OPUS, joined, 16_000) == pieces.PIECE_MS * (len(some) + len(more))
    assert pieces.heard(joined) == some + more


def test_a_piece_twice_is_heard_twice() -> None:
    assert pieces.heard(pieces.sound([1, 2, 2, 3])) == [1, 2, 2, 3]


@given(st.lists(st.integers(-50, 50)))
def test_numbers_are_written_and_read(numbers: list[int]) -> None:
    assert pieces.of_text(pieces.text(numbers)) == numbers


def test_runs_are_written_short() -> None:
    assert pieces.text([3, 4, 5, 9]) == "3-5 9"


def test_silence_is_written_piece_by_piece() -> None:
    assert pieces.text([-3, -2, 4]) == "-3 -2 4"
