from random import Random

from dragoman.client.backoff import Backoff


def test_waits_double_up_to_the_longest_and_are_jittered() -> None:
    waits = [[Backoff(1, 8, rng=Random(seed)) for seed in range(200)][seed] for seed in range(200)]
    rounds = [[backoff.delay_s() for backoff in waits] for _ in range(6)]
    for ceiling, delays in zip((1, 2, 4, 8, 8, 8), rounds, strict=True):
        assert max(delays) <= ceiling
        assert max(delays) > ceiling * 0.9
        assert min(delays) < ceiling * 0.1


def test_only_a_connection_that_lasted_begins_anew() -> None:
    backoff = Backoff(1, 64, steady_s=5, rng=Random(1))
    for _ in range(5):
        backoff.delay_s()
    backoff.lasted(4.9)
    assert max(backoff.delay_s() for _ in range(20)) > 1
    backoff.lasted(5)
    assert backoff.delay_s() <= 1
