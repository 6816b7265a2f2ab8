from random import Random

from dragoman.node.backoff import Backoff


class Ceiling(Random):
    """Always draws the highest."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_waiting_doubles_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.25, longest_s=2, rng=Ceiling())
    assert [backoff.delay() for _ in range(6)] == [0.25, 0.5, 1, 2, 2, 2]


def test_a_connection_that_lasted_starts_over() -> None:
    backoff = Backoff(first_s=0.25, longest_s=2, steady_s=5, rng=Ceiling())
    backoff.delay()
    backoff.delay()
    backoff.lasted(4.9)
    assert backoff.delay() == 1
    backoff.lasted(5)
    assert backoff.delay() == 0.25


def test_no_two_nodes_wait_the_same() -> None:
    delays = {Backoff(rng=Random(seed)).delay() for seed in range(100)}
    assert len(delays) == 100
    assert all(0 <= delay <= 0.25 for delay in delays)


def test_years_of_failures_do_not_overflow() -> None:
    backoff = Backoff(rng=Ceiling())
    assert [backoff.delay() for _ in range(5000)][-1] == 10
