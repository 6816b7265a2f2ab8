import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.limits.frames import (
    MAX_ACK_CREDIT,
    TOLERATED_VIOLATIONS,
    VIOLATION_WINDOW_S,
    AckCredit,
    ChatFrameLimit,
    FrameBucket,
)


def test_refill_gives_what_has_accumulated_up_to_the_burst() -> None:
    bucket = FrameBucket(per_s=10, burst=5, now=100.0)
    assert [bucket.refill(now) for now in (100.2, 100.25, 200.0, 200.0)] == pytest.approx([2.0, 0.5, 5.0, 0.0])


def test_the_fourth_violation_within_ten_seconds_is_one_too_many() -> None:
    limit = ChatFrameLimit(1, 1)
    assert [limit.violate(now) for now in (0.0, 3.0, 6.0, 10.0)] == [False, False, False, True]


def test_violation_no_longer_counts_after_ten_seconds() -> None:
    limit = ChatFrameLimit(1, 1)
    assert not any(limit.violate(now) for now in (0.0, 5.0, 9.0, 10.1, 15.1, 19.1, 20.2))
    assert limit.violate(20.3)


@given(st.lists(st.floats(0, 8), max_size=40))
def test_violation_is_one_too_many_exactly_when_four_are_within_the_window(pauses: list[float]) -> None:
    limit, times, now = ChatFrameLimit(1, 1), [], 0.0
    for pause in pauses:
        now += pause
        times.append(now)
        recent = times[-TOLERATED_VIOLATIONS - 1 :]
        assert limit.violate(now) == (len(recent) > TOLERATED_VIOLATIONS and now - recent[0] <= VIOLATION_WINDOW_S)


def test_burst_is_admitted_and_then_the_rate_per_second() -> None:
    limit = ChatFrameLimit(per_s=10, burst=20)
    assert sum(limit.admit(100.0) for _ in range(50)) == 20
    assert sum(limit.admit(101.0) for _ in range(50)) == 10
    assert sum(limit.admit(200.0) for _ in range(50)) == 20


def test_steady_stream_at_the_rate_is_never_refused() -> None:
    limit = ChatFrameLimit(per_s=400, burst=1)
    assert all(limit.admit(5.0 + n / 400) for n in range(10_000))


@given(st.lists(st.floats(0, 1), max_size=100))
def test_no_more_than_burst_and_rate_together_are_admitted(pauses: list[float]) -> None:
    limit, now, taken = ChatFrameLimit(per_s=5, burst=10), 50.0, 0
    for pause in pauses:
        now += pause
        taken += limit.admit(now)
    assert taken <= 10 + 5 * (now - 50.0) + 1e-6


def test_frames_of_a_time_without_reading_come_on_top_of_the_burst() -> None:
    limit = ChatFrameLimit(per_s=10, burst=5)
    limit.add_unread(2.0)
    assert [limit.admit(100.0) for _ in range(26)] == [True] * 25 + [False]
    assert not limit.admit(100.0)
    assert limit.admit(100.1)


def test_two_receipts_are_free_for_each_pushed_message() -> None:
    credit = AckCredit()
    assert not credit.take()
    for _ in range(3):
        credit.pushed()
    assert [credit.take() for _ in range(7)] == [True] * 6 + [False]


def test_ack_credit_is_bounded() -> None:
    credit = AckCredit()
    for _ in range(MAX_ACK_CREDIT):
        credit.pushed()
    assert sum(credit.take() for _ in range(3 * MAX_ACK_CREDIT)) == MAX_ACK_CREDIT
