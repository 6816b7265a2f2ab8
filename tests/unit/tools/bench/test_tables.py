"""The tables and the report of the benches."""

import io
from collections import Counter
from io import StringIO

import pytest
from rich.console import Console

from dragoman.tools.bench.load import fitting, steps, wrong
from dragoman.tools.bench.load import ratios as pressure_ratios
from dragoman.tools.bench.mixed_load import PARTS, Settings, buckets, quantile, slope
from dragoman.tools.bench.overload import combined
from dragoman.tools.bench.rooms import ratios as rooms_ratios
from dragoman.tools.bench.rooms import verdict as rooms_verdict
from dragoman.tools.bench.speech import conclude as conclude_speech
from dragoman.tools.bench.speech import ratios as speech_ratios
from dragoman.tools.bench.speech import verdict as speech_verdict
from dragoman.tools.bench.store import conclude, missing, ratios, verdict
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import Report, progress_bar
from support.tables import for_each

OURS = {"jobs_per_s": 1200.0, "jobs_cpu_ms": 0.6, "jobs_redis_cpu_ms": 0.15, "round_trips_before_assign": 2.0}


def tasks(name: str, per_s: float, least_waiting: float = 900.0) -> dict[str, float]:
    found = {"per_s": per_s, "cpu_ms": 0.9, "redis_cpu_ms": 0.1, "least_waiting": least_waiting}
    return {f"{name}_{quantity}": value for quantity, value in found.items()}


def shown(report: Report) -> str:
    out = StringIO()
    report.show(Console(file=out, width=120))
    return out.getvalue()


def test_the_best_queue_is_the_one_we_are_least_ahead_of() -> None:
    found = speech_ratios(OURS | tasks("taskiq", 1000.0) | tasks("saq", 600.0))
    assert found == {"vs_taskiq": 1.2, "vs_saq": 2.0, "vs_best_queue": 1.2}
    assert speech_verdict(found) == "1.20 × the best of the queues, which is taskiq."


def test_without_a_queue_there_is_nothing_to_be_ahead_of() -> None:
    assert speech_ratios(OURS) == {}
    assert speech_verdict({}) == "There is no queue to compare with."


def test_growth_is_counted_from_the_smallest_size() -> None:
    sizes = {"nodes_10_cpu_ms": 0.5, "nodes_1000_cpu_ms": 0.55, "nodes_100_cpu_ms": 0.5, "sessions_10_cpu_ms": 0.4}
    found = speech_ratios(OURS | sizes | {"instances_1_cpu_ms": 0.5, "instances_2_cpu_ms": 0.6})
    assert found == pytest.approx({"nodes_100_vs_10": 1.0, "nodes_1000_vs_10": 1.1, "instances_2_vs_1": 1.2})


def test_report_has_stable_names_and_lists_skipped_systems() -> None:
    report = Report({}, figures=OURS | tasks("taskiq", 800.0))
    conclude_speech(report, {"saq": "saq: it is not installed."})
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
    conclude_speech(report, {})
    text = shown(report)
    assert "nodes: what a job costs" in text
    assert "1.20 ×" in text
    assert "An idle session takes 17.2 KB of the instance." in text


def test_queue_with_a_slow_producer_is_reported() -> None:
    report = Report({}, figures=OURS | tasks("streaq", 800.0, least_waiting=0))
    conclude_speech(report, {})
    assert "streaq ran out of tasks at times" in shown(report)


COMPARED = {
    "single_command_1000": 20.0,
    "single_script_1000": 15.0,
    "cluster_command_1000": 12.0,
    "cluster_script_1000": 8.0,
}


def figures() -> dict[str, float]:
    """Ours at the given multiples of a peer's 1,000 a second."""
    made = dict[str, float]()
    for case, times in COMPARED.items():
        made[f"{case}_dragoman_per_s"] = times * 1000
        made[f"{case}_redis_py_per_s"] = 1000
    return made


def test_the_smallest_of_all_four_is_named() -> None:
    assert ratios(figures()) == {
        **{f"{case}_vs_redis_py": times for case, times in COMPARED.items()},
        "vs_redis_py_1000": 8.0,
    }


def test_a_larger_script_and_fewer_callers_have_ratios_but_do_not_decide() -> None:
    more = {
        f"single_{case}_{who}_per_s": 10.0 for case in ("reserve_1000", "script_1") for who in ("dragoman", "redis_py")
    }
    found = ratios(figures() | more)
    assert found["single_reserve_1000_vs_redis_py"] == found["single_script_1_vs_redis_py"] == 1.0
    assert found["vs_redis_py_1000"] == 8.0


@for_each([f"{case}_{who}_per_s" for case in COMPARED for who in ("dragoman", "redis_py")])
def test_the_smallest_of_some_is_not_called_the_smallest_of_all(gone: str) -> None:
    found = figures()
    del found[gone]
    assert "vs_redis_py_1000" not in ratios(found)
    assert len(ratios(found)) == 3


def test_cpu_time_is_compared_the_other_way_round_because_less_is_better() -> None:
    found = ratios({"single_script_1_dragoman_client_us": 8.0, "single_script_1_redis_py_client_us": 120.0})
    assert found == {"single_script_1_client_cpu_vs_redis_py": 15.0}


def test_latencies_are_compared_with_ping() -> None:
    found = ratios(
        {
            "single_ping_p50_us": 20.0,
            "single_ping_p99_us": 100.0,
            "single_call_dragoman_p50_us": 40.0,
            "single_call_dragoman_p99_us": 150.0,
            "single_call_redis_py_p50_us": 100.0,
        }
    )
    assert found == {"single_call_vs_ping_p50": 2.0, "single_call_vs_ping_p99": 1.5}


def test_each_skip_reason_is_printed_once_with_its_cases() -> None:
    assert missing({"a": "redis-py: no hiredis.", "b": "redis-py: no hiredis.", "c": "redis-py: pool is full"}) == [
        "Left out of a, b: redis-py: no hiredis.",
        "Left out of c: redis-py: pool is full.",
    ]


def test_the_verdict_says_how_much_was_compared() -> None:
    assert verdict(ratios(figures())) == (
        "With 1,000 callers at least 8.0 × redis-py (single command 20.0 ×, single script 15.0 ×, "
        "cluster command 12.0 ×, cluster script 8.0 ×)."
    )
    single = {name: value for name, value in figures().items() if name.startswith("single")}
    assert verdict(ratios(single)) == (
        "With 1,000 callers, beside redis-py: single command 20.0 ×, single script 15.0 ×; the rest was not measured."
    )
    assert verdict({}) == "There is nothing to compare: redis-py was left out."


def test_tables_show_a_dash_for_unmeasured_values() -> None:
    report = Report({}, figures={"single_command_1_dragoman_per_s": 5000.0, "single_round_trips_before_assign": 2.0})
    conclude(report, ["single"], {"single_command_1_redis_py": "redis-py: gone"})
    shown = io.StringIO()
    report.show(Console(file=shown, width=140))
    lines = shown.getvalue().splitlines()
    assert next(line for line in lines if "command, 1" in line).split()[2:] == ["5,000", "–", "–", "–", "–", "–", "–"]
    assert any("2.00 round trips before it is assigned and – in all" in line for line in lines)
    assert report.settings["left_out"] == {"single_command_1_redis_py": "redis-py: gone"}


def drawn(*, terminal: bool) -> str:
    shown = io.StringIO()
    with progress_bar(2, Console(file=shown, force_terminal=terminal, width=100)) as step:
        step("single: PING")
        step("single: command")
    return shown.getvalue()


def test_a_terminal_sees_how_far_it_is_and_what_is_measured() -> None:
    shown = drawn(terminal=True)
    assert "0/2" in shown
    assert "1/2" in shown
    assert "single: command" in shown


def test_a_file_sees_nothing() -> None:
    assert drawn(terminal=False).strip() == ""


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


def test_part_that_needs_more_open_files_is_skipped_with_a_reason() -> None:
    settings, notes = fitting(Settings(), files=4096)
    assert settings.parts == tuple(part for part in PARTS if part not in ("target", "storm"))
    assert settings.max_sockets < 4096
    assert [note.split(",")[0] for note in notes[:2]] == ["Left out: target", "Left out: storm"]
    assert "4,096 open files" in notes[2]


def test_with_files_enough_nothing_is_left_out() -> None:
    assert fitting(Settings(max_sockets=1000), files=20_000) == (Settings(max_sockets=1000), [])


def test_when_nothing_is_left_it_is_refused() -> None:
    with pytest.raises(CannotRun, match="Left out: storm"):
        fitting(Settings(parts=("storm",)), files=4096)


def test_every_part_has_its_steps() -> None:
    assert all(steps(Settings(parts=(part,))) > 0 for part in PARTS)


def test_of_several_storms_the_middle_counts_and_of_what_should_not_be_the_most() -> None:
    waits = [{"dispatch_p99_ms": wait, "missing": float(missing)} for wait, missing in ((9.0, 0), (5.0, 2), (70.0, 0))]
    assert combined(waits) == {"dispatch_p99_ms": 9.0, "missing": 2.0}


def test_a_storm_is_compared_with_the_calm_before_it() -> None:
    figures = {"storm_jitter_dispatch_p99_ms": 10.0, "storm_jitter_before_dispatch_p99_ms": 4.0}
    assert pressure_ratios(figures) == {"storm_jitter_dispatch_p99": 2.5}


def test_violations_are_named() -> None:
    figures = {"half_jobs_lost": 0.0, "half_messages_doubled": 2.0, "half_server_busy": 7.0, "target_jobs_lost": 1.0}
    assert wrong(figures, "half_") == {"messages_doubled": 2.0}


def test_rooms_are_compared_round_by_round() -> None:
    ours = [{"cpu_us_per_delivery": cpu, "last_reader_p99_ms": 10.0} for cpu in (10.0, 12.0, 30.0)]
    theirs = [{"cpu_us_per_delivery": cpu, "last_reader_p99_ms": 20.0} for cpu in (10.0, 10.0, 20.0)]
    found = rooms_ratios({"dragoman": ours, "nats": theirs})
    cpu = {"cpu_vs_nats": 1.2, "cpu_vs_nats_min": 1.0, "cpu_vs_nats_max": 1.5}
    last = {f"last_reader_p99_vs_nats{end}": 0.5 for end in ("", "_min", "_max")}
    assert found == pytest.approx(cpu | last)
    assert rooms_verdict(found) == "Targets, at most 1.00 ×: CPU of a delivery 1.20 × the better peer (missed)."
    assert rooms_verdict({}) == "There is no peer to compare with."
