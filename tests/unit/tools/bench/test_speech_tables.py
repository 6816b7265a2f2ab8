from io import StringIO

import pytest
from rich.console import Console

from dragoman.tools.bench.report import Report
from dragoman.tools.bench.speech_tables import conclude, ratios, verdict

OURS = {"jobs_per_s": 1200.0, "jobs_cpu_ms": 0.6, "jobs_redis_cpu_ms": 0.15, "round_trips_before_assign": 2.0}


def tasks(name: str, per_s: float, least_waiting: float = 900.0) -> dict[str, float]:
    found = {"per_s": per_s, "cpu_ms": 0.9, "redis_cpu_ms": 0.1, "least_waiting": least_waiting}
    return {f"{name}_{quantity}": value for quantity, value in found.items()}


def shown(report: Report) -> str:
    out = StringIO()
    report.show(Console(file=out, width=120))
    return out.getvalue()


def test_the_best_queue_is_the_one_we_are_least_ahead_of() -> None:
    found = ratios(OURS | tasks("taskiq", 1000.0) | tasks("saq", 600.0))
    assert found == {"vs_taskiq": 1.2, "vs_saq": 2.0, "vs_best_queue": 1.2}
    assert verdict(found) == "1.20 × the best of the queues, which is taskiq."


def test_without_a_queue_there_is_nothing_to_be_ahead_of() -> None:
    assert ratios(OURS) == {}
    assert verdict({}) == "There is no queue to compare with."


def test_growth_is_counted_from_the_smallest_size() -> None:
    sizes = {"nodes_10_cpu_ms": 0.5, "nodes_1000_cpu_ms": 0.55, "nodes_100_cpu_ms": 0.5, "sessions_10_cpu_ms": 0.4}
    found = ratios(OURS | sizes | {"instances_1_cpu_ms": 0.5, "instances_2_cpu_ms": 0.6})
    assert found == pytest.approx({"nodes_100_vs_10": 1.0, "nodes_1000_vs_10": 1.1, "instances_2_vs_1": 1.2})


def test_a_report_has_the_names_that_stay_and_says_who_was_left_out() -> None:
    report = Report({}, figures=OURS | tasks("taskiq", 800.0))
    conclude(report, {"saq": "saq: it is not installed."})
    assert report.figures["cpu_ms_per_job"] == 0.6
    assert report.figures["redis_cpu_ms_per_job"] == 0.15
    assert report.ratios["vs_best_queue"] == 1.5
    assert report.settings["left_out"] == {"saq": "saq: it is not installed."}
    text = shown(report)
    assert "a job waits for Redis 2.00 times before it is assigned" in text
    assert "Left out: saq: it is not installed.\n" in text


def test_every_size_and_the_idle_session_are_shown() -> None:
    grown = {"nodes_10_cpu_ms": 0.5, "nodes_10_per_s": 400.0, "nodes_1000_cpu_ms": 0.6, "nodes_1000_per_s": 399.0}
    report = Report({}, figures=OURS | grown | {"idle_session_kb": 17.25})
    conclude(report, {})
    text = shown(report)
    assert "nodes: what a job costs" in text
    assert "1.20 ×" in text
    assert "An idle session takes 17.2 KB of the instance." in text


def test_a_queue_whose_producer_was_too_slow_is_told() -> None:
    report = Report({}, figures=OURS | tasks("streaq", 800.0, least_waiting=0))
    conclude(report, {})
    assert "streaq ran out of tasks at times" in shown(report)
