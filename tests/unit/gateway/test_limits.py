from dragoman.gateway.limits import Limits


def test_the_shortest_limit_sets_the_pace_of_the_sweep() -> None:
    assert Limits(head_timeout_s=0.5).shortest_s() == 0.5
    assert Limits(out_queue_age_s=0.25, head_timeout_s=0.5).shortest_s() == 0.25
