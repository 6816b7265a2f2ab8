import io

import pytest
from rich.console import Console

from dragoman.tools.bench.report import Report
from dragoman.tools.bench.store_tables import conclude, missing, ratios, verdict

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


@pytest.mark.parametrize("gone", [f"{case}_{who}_per_s" for case in COMPARED for who in ("dragoman", "redis_py")])
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


def test_a_reason_is_told_once_with_all_it_kept_out() -> None:
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


def test_what_was_not_measured_is_a_dash_in_the_tables() -> None:
    report = Report({}, figures={"single_command_1_dragoman_per_s": 5000.0, "single_round_trips_before_assign": 2.0})
    conclude(report, ["single"], {"single_command_1_redis_py": "redis-py: gone"})
    shown = io.StringIO()
    report.show(Console(file=shown, width=140))
    lines = shown.getvalue().splitlines()
    assert next(line for line in lines if "command, 1" in line).split()[2:] == ["5,000", "–", "–", "–", "–", "–", "–"]
    assert any("2.00 round trips before it is assigned and – in all" in line for line in lines)
    assert report.settings["left_out"] == {"single_command_1_redis_py": "redis-py: gone"}
