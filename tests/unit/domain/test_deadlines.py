import pytest

from dragoman.domain.deadlines import (
    AckTimeout,
    AttemptTimeout,
    DeadlineSettings,
    JobClock,
    JobTimeout,
    SlotTimeout,
    attempt_limit_ms,
)
from support.tables import for_each

SETTINGS = DeadlineSettings()


def clock(may_park: bool = False) -> JobClock:
    return JobClock(SETTINGS, created_at=0.0, may_park=may_park)


def test_a_node_that_acknowledges_has_two_seconds_to_do_so() -> None:
    job = clock()
    job.dispatched(1.0, acks=True)
    assert job.next_deadline() == 3.0
    assert job.due(2.9) is None
    assert job.due(3.0) == AckTimeout(attempt=1)


def test_an_acknowledged_attempt_has_twelve_seconds() -> None:
    job = clock()
    job.dispatched(1.0, acks=True)
    job.acked()
    assert job.next_deadline() == 13.0
    assert job.due(13.0) == AttemptTimeout(attempt=1)


def test_an_old_node_is_not_asked_for_an_acknowledgement() -> None:
    job = clock()
    job.dispatched(1.0, acks=False)
    assert job.next_deadline() == 13.0


def test_the_job_deadline_cuts_a_late_attempt_short() -> None:
    job = clock()
    job.dispatched(55.0, acks=False)
    assert job.next_deadline() == 60.0
    assert job.due(70.0) == JobTimeout(attempt=1), "the gravest first"


def test_the_next_attempt_begins_with_fresh_deadlines() -> None:
    job = clock()
    job.dispatched(0.0, acks=True)
    job.acked()
    job.reassigned()
    assert job.attempt == 2
    assert job.next_deadline() == 60.0
    job.dispatched(12.5, acks=True)
    assert job.due(14.5) == AckTimeout(attempt=2)


def test_three_attempts_and_no_more() -> None:
    job = clock()
    assert job.may_retry(1.0)
    job.reassigned()
    assert job.may_retry(1.0)
    job.reassigned()
    assert not job.may_retry(1.0)


def test_no_attempt_begins_past_the_deadline_of_the_job() -> None:
    assert clock().may_retry(59.9)
    assert not clock().may_retry(60.0)


def test_a_max_duration_job_on_an_old_node_has_no_deadline_while_its_turn_is_open() -> None:
    job = clock(may_park=True)
    job.dispatched(0.0, acks=False)
    assert job.due(12.0) == SlotTimeout(attempt=1)
    assert job.next_deadline() is None
    assert job.due(3600.0) is None


def test_it_has_one_attempts_time_after_the_end_of_its_turn_and_is_not_moved() -> None:
    job = clock(may_park=True)
    job.dispatched(0.0, acks=False)
    job.due(12.0)
    job.turn_ended(100.0)
    job.turn_ended(105.0)
    assert job.next_deadline() == 112.0
    assert job.due(111.9) is None
    assert job.due(112.0) == JobTimeout(attempt=1)


def test_a_turn_that_ended_before_the_dispatch_leaves_the_whole_attempt() -> None:
    job = clock(may_park=True)
    job.turn_ended(1.0)
    job.dispatched(5.0, acks=False)
    assert job.due(16.9) is None
    assert job.due(17.0) == JobTimeout(attempt=1)


@pytest.mark.parametrize("may_park", [True, False])
def test_a_node_that_acknowledges_gets_no_exemption(may_park: bool) -> None:
    job = clock(may_park)
    job.dispatched(0.0, acks=True)
    job.acked()
    assert not job.parked
    assert job.due(12.0) == AttemptTimeout(attempt=1)


def test_a_parked_job_whose_node_died_is_an_ordinary_job_until_it_has_another() -> None:
    job = clock(may_park=True)
    job.dispatched(0.0, acks=False)
    job.reassigned()
    assert not job.parked
    assert job.next_deadline() == 60.0
    job.dispatched(20.0, acks=False)
    assert job.due(32.0) == SlotTimeout(attempt=2)


# -- how long an attempt may take


@for_each(
    [
        (3.6, None, 12_000),
        (3.6, 0.5, 12_000),
        (3.6, 2.0, 23_600),
        (3.6, 21 / 3.6, 36_000),
        (10.0, 5.0, 36_000),
        (0.0, 5.0, 12_000),
    ]
)
def test_an_attempt_gets_three_times_what_its_node_lately_took_within_bounds(
    audio_s: float, slowness: float | None, limit_ms: int
) -> None:
    assert attempt_limit_ms(SETTINGS, audio_s, slowness) == limit_ms


def test_an_attempt_gets_its_least_time_even_beyond_its_share_of_the_job() -> None:
    short = DeadlineSettings(attempt_timeout_ms=400, job_timeout_ms=400)
    assert attempt_limit_ms(short, 10.0, 5.0) == 400


def test_an_attempt_ends_at_the_limit_of_its_node_and_the_next_at_that_of_its_own() -> None:
    job = clock()
    job.attempt_limit_ms = 23_600
    assert job.attempt_ms(now=1.0) == 23_600
    job.dispatched(1.0, acks=False)
    assert job.due(24.5) is None
    assert job.due(24.6) == AttemptTimeout(attempt=1)
    job.reassigned()
    assert job.attempt_ms(now=24.6) == 12_000


def test_an_attempt_late_in_a_job_has_what_is_left() -> None:
    assert clock().attempt_ms(now=55.0) == 5_000


def test_the_work_of_a_node_is_timed_from_the_dispatch_unless_the_job_lies_in_its_buffer() -> None:
    job, parked = clock(), clock(may_park=True)
    assert job.work_s(1.0) is None
    for each in (job, parked):
        each.dispatched(1.0, acks=False)
    assert job.work_s(4.5) == 3.5
    assert parked.work_s(4.5) is None


def test_attempts_of_a_text_job_get_half_of_what_is_left_each() -> None:
    job = JobClock(DeadlineSettings(job_timeout_ms=4000), created_at=0.0)
    job.limit_attempt(job.half_left_ms(0.0))
    job.dispatched(0.0, acks=False)
    assert job.next_deadline() == 2.0
    job.reassigned()
    job.limit_attempt(job.half_left_ms(3.0))
    job.dispatched(3.0, acks=False)
    assert job.next_deadline() == 3.5
    assert job.half_left_ms(5.0) == 0
