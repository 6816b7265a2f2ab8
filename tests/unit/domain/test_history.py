from typing import Any

import pytest

from dragoman.domain.history import POINT_MS, SAMPLE_MS, Sample, points, quantile_ms

BOUNDS = (0.1, 1.0)
LATER_MS = 10 * POINT_MS


def sample(instance: str, seconds: float = 5.0, **fields: Any) -> Sample:
    given = {"counters": {}, "histograms": {}, "gauges": {}} | fields
    return Sample(instance, seconds, **given)


def merged(*samples: tuple[int, Sample], now_ms: int = LATER_MS) -> list[dict[str, float | None]]:
    return points(samples, BOUNDS, now_ms)


def test_rates_are_added_over_the_instances() -> None:
    first = (0, sample("a", 5, counters={"ended": 10}))
    second = (SAMPLE_MS, sample("a", 5, counters={"ended": 20}))
    (point,) = merged(first, second, (3, sample("b", 4, counters={"ended": 8})))
    assert (point["at"], point["instances"], point["ended"]) == (0, 2, 30 / 10 + 8 / 4)


def test_percentiles_are_of_the_histograms_of_all_instances_together() -> None:
    fast, slow = [99, 0, 0], [0, 1, 0]
    (point,) = merged((0, sample("a", histograms={"job_ms": fast})), (1, sample("b", histograms={"job_ms": slow})))
    assert (point["job_ms_p50"], point["job_ms_p95"], point["job_ms_p99"]) == (100, 100, 100)
    (point,) = merged((0, sample("a", histograms={"job_ms": fast})), (1, sample("b", histograms={"job_ms": [0, 9, 0]})))
    assert (point["job_ms_p50"], point["job_ms_p95"], point["job_ms_p99"]) == (100, 1000, 1000)


def test_a_percentile_of_nothing_is_nothing() -> None:
    (point,) = merged((0, sample("a", histograms={"job_ms": [0, 0, 0]})))
    assert point["job_ms_p50"] is None


def test_a_gauge_is_the_last_value_of_each_instance_added() -> None:
    earlier, last = sample("a", gauges={"sessions": 7}), sample("a", gauges={"sessions": 2})
    (point,) = merged((0, earlier), (SAMPLE_MS, last), (0, sample("b", gauges={"sessions": 5})))
    assert point["sessions"] == 7


def test_points_begin_at_whole_times_and_come_in_order() -> None:
    found = merged((POINT_MS + 1, sample("a")), (2 * POINT_MS - 1, sample("a")), (1, sample("a")))
    assert [point["at"] for point in found] == [0, POINT_MS]


@pytest.mark.parametrize(("after_ms", "shown"), [(POINT_MS + SAMPLE_MS - 1, 0), (POINT_MS + SAMPLE_MS, 1)])
def test_a_point_for_which_samples_may_still_come_is_not_shown(after_ms: int, shown: int) -> None:
    assert len(merged((0, sample("a")), now_ms=after_ms)) == shown


def test_a_histogram_with_other_buckets_is_left_out() -> None:
    (point,) = merged((0, sample("a", histograms={"job_ms": [1, 0, 0]})), (0, sample("b", histograms={"job_ms": [5]})))
    assert point["job_ms_p50"] == 100


def test_a_percentile_beyond_the_last_bound_is_that_bound() -> None:
    assert quantile_ms([0, 0, 3], BOUNDS, 0.5) == 1000
