"""What `bench load` makes of what it was told."""

from collections import Counter

import pytest

from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.pressure.bench import fitting, steps
from dragoman.tools.bench.pressure.settings import PARTS, Settings
from dragoman.tools.bench.pressure.storm import together
from dragoman.tools.bench.pressure.tables import ratios, wrong
from dragoman.tools.bench.pressure.watch import buckets, quantile, slope


def test_cumulative_buckets_of_the_loop_lag_become_counts_of_their_own() -> None:
    name = "dragoman_loop_lag_seconds_bucket{le=%s}"
    metrics = {name % "0.001": 5.0, name % "+Inf": 9.0, name % "0.01": 8.0, "dragoman_loop_lag_seconds_sum": 1.0}
    assert buckets(metrics) == Counter({0.001: 5, 0.01: 3, float("inf"): 1})


def test_a_quantile_is_the_upper_bound_of_its_bucket() -> None:
    met = Counter({0.001: 98, 0.01: 1, 0.1: 1})
    assert [quantile(met, share) for share in (0.5, 0.98, 0.99, 1.0)] == [0.001, 0.001, 0.01, 0.1]
    assert quantile(Counter(), 0.99) == 0.0


def test_the_slope_of_memory_is_bytes_a_second() -> None:
    assert slope([(10.0, 100), (11.0, 107), (12.0, 114)]) == pytest.approx(7.0)
    assert slope([(10.0, 100), (11.0, 100), (12.0, 100)]) == 0.0
    assert slope([(10.0, 100)]) == 0.0


def test_a_part_that_needs_more_files_than_there_are_is_left_out_with_a_word() -> None:
    settings, notes = fitting(Settings(), files=4096)
    assert settings.parts == tuple(part for part in PARTS if part not in ("target", "storm"))
    assert settings.most_sockets < 4096
    assert [note.split(",")[0] for note in notes[:2]] == ["Left out: target", "Left out: storm"]
    assert "4,096 open files" in notes[2]


def test_with_files_enough_nothing_is_left_out() -> None:
    assert fitting(Settings(most_sockets=1000), files=20_000) == (Settings(most_sockets=1000), [])


def test_when_nothing_is_left_it_is_refused() -> None:
    with pytest.raises(BenchError, match="Left out: storm"):
        fitting(Settings(parts=("storm",)), files=4096)


def test_every_part_has_its_steps() -> None:
    assert all(steps(Settings(parts=(part,))) > 0 for part in PARTS)


def test_of_several_storms_the_middle_counts_and_of_what_should_not_be_the_most() -> None:
    waits = [{"dispatch_p99_ms": wait, "missing": float(missing)} for wait, missing in ((9.0, 0), (5.0, 2), (70.0, 0))]
    assert together(waits) == {"dispatch_p99_ms": 9.0, "missing": 2.0}


def test_a_storm_is_compared_with_the_calm_before_it() -> None:
    figures = {"storm_jitter_dispatch_p99_ms": 10.0, "storm_jitter_before_dispatch_p99_ms": 4.0}
    assert ratios(figures) == {"storm_jitter_dispatch_p99": 2.5}


def test_what_must_not_happen_is_named() -> None:
    figures = {"half_jobs_lost": 0.0, "half_messages_doubled": 2.0, "half_server_busy": 7.0, "target_jobs_lost": 1.0}
    assert wrong(figures, "half_") == {"messages_doubled": 2.0}
