import pytest

from dragoman.store.reservations import Reserved, Taken


@pytest.mark.parametrize(
    ("reply", "reserved"),
    [
        (b"OK", Reserved(Taken.OK)),
        (b"HELD", Reserved(Taken.HELD)),
        (b"FULL 1500", Reserved(Taken.FULL, 1500)),
        (b"FULL 0", Reserved(Taken.FULL, 0)),
    ],
)
def test_a_verdict_is_a_word_and_the_time_until_a_slot_can_expire(reply: bytes, reserved: Reserved) -> None:
    assert Reserved.parse(reply) == reserved


def test_a_word_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError):
        Reserved.parse(b"MAYBE")
