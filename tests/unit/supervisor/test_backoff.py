"""At once after a death, later in a crash loop, at once again after a good life."""

from dragoman.supervisor.backoff import GOOD_LIFE_S, LONGEST_S, Backoff


def test_the_first_restart_is_at_once_and_each_next_waits_longer_up_to_ten_seconds() -> None:
    backoff = Backoff()
    assert [backoff.after(0.1) for _ in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_good_life_forgets_the_deaths_before_it() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.after(0.1)
    assert backoff.after(GOOD_LIFE_S) == 0.0
    assert backoff.deaths == 1
    assert backoff.after(0.1) == 0.5


def test_a_crash_loop_that_goes_on_for_ever_stays_at_the_longest_wait() -> None:
    backoff = Backoff()
    assert {backoff.after(0.1) for _ in range(5000)} >= {LONGEST_S}
    assert backoff.after(0.1) == LONGEST_S
