from dragoman.services.metric_types import Histogram

BOUNDS = (0.001, 0.01, 0.1, 1.0)


def histogram(*values: float) -> Histogram:
    made = Histogram(BOUNDS)
    for value in values:
        made.observe(value)
    return made


def test_quantiles_of_several_instances_are_those_of_all_observations_together() -> None:
    """The mean of the two medians would be 500.5 ms."""
    busy, idle = histogram(*[0.001] * 99), histogram(1.0)
    whole = busy.merged([idle.buckets])
    assert (busy.quantile(0.5), idle.quantile(0.5)) == (1, 1000)
    assert (whole.quantile(0.5), whole.quantile(0.99), whole.quantile(1.0)) == (1, 1, 1000)
    assert sum(busy.buckets) == 99, "it is not changed"


def test_buckets_of_an_instance_with_other_bounds_or_none_are_left_out() -> None:
    assert histogram(0.01).merged([(), (1, 2)]).buckets == histogram(0.01).buckets
