"""The chat bench: its steps, its tables and its conclusions."""

import io
from typing import Any

import pytest
from rich.console import Console

from dragoman.tools.bench.chat import (
    PATHS,
    Settings,
    Setup,
    cases,
    conclude,
    measured,
    quantities,
    ratios,
    refuse,
    steps,
    title,
)
from dragoman.tools.bench.chat_delay import delay_ratios
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import Report
from support.tables import for_each

FOUND: dict[str, Any] = {
    "sent": 10, "saved_count": 9, "arrived_count": 9, "took_s": 3.0, "saved_p99_ms": 5.0, "cpu_ms_per_1000": 1,
    "cpu_share_max": 0.5,
    "redis_cpu_ms_per_1000": 1, "backlog_max": 3, "backlog_end": 0, "duplicates": 0, "inversions": 4,
    "aof_bytes_per_message": 900.0,
    "redis_commands_per_message": 9.0, "socket_writes_per_message": 4.0, "reorderByServerMsgId": 1,
    "reorderByFrom": 2, "server_busy": 1, "errors": {}, "failures": [],
}  # fmt: skip


def test_the_plain_run_is_one_case() -> None:
    assert [case.name for case in cases(Settings())] == ["sqlite_save_first"]
    assert steps(Settings(rounds=3)) == 3


def test_modes_databases_and_slow_commits_multiply() -> None:
    settings = Settings(modes=PATHS, databases=("sqlite", "postgres"), slow=True)
    names = [case.name for case in cases(settings)]
    assert len(names) == 12
    assert names[:4] == ["sqlite_off", "sqlite_save_first", "sqlite_deliver_first", "sqlite_slow_off"]
    # One that cannot be started here is left out by name.
    assert {case.peer for case in cases(settings) if case.name.startswith("postgres")} == {"PostgreSQL"}


def test_shares_and_reorders_are_of_what_was_sent() -> None:
    told = quantities(FOUND)
    assert (told["saved_share"], told["saved_per_s"], told["reorders"]) == (0.9, 3.0, 2.0)


def test_nothing_saved_is_no_figure() -> None:
    with pytest.raises(CannotRun, match="No message got as far as saved"):
        quantities(FOUND | {"saved_p99_ms": float("nan")})


def test_unexpected_reply_ends_the_bench_and_server_busy_is_counted() -> None:
    refuse(FOUND | {"errors": {"server_busy": 3}}, Setup())
    with pytest.raises(CannotRun, match="refused with internal_error"):
        refuse(FOUND | {"errors": {"internal_error": 1}}, Setup())
    with pytest.raises(CannotRun, match="a connection was closed"):
        refuse(FOUND | {"failures": ["a connection was closed"]}, Setup())
    refuse(FOUND | {"failures": ["a connection was closed"]}, Setup(mode="off", slow=True))


def found(name: str, accepted: float | None = 10.0, saved: float = 50.0, **others: float) -> dict[str, float]:
    told: dict[str, float] = {}
    kinds = {"saved": saved, "e2e": saved + 1} | ({"accepted": accepted, "save_lag": 40.0} if accepted else {})
    for kind, p99 in kinds.items():
        told |= {f"{kind}_p50_ms": p99 / 4, f"{kind}_p95_ms": p99 / 2, f"{kind}_p99_ms": p99}
    told |= dict.fromkeys(("duplicates", "reorders", "reorderByServerMsgId", "reorderByFrom", "server_busy"), 0.0)
    told |= {"saved_share": 1.0, "backlog_max": 7.0, "cpu_ms_per_1000": 300.0, "redis_cpu_ms_per_1000": 100.0}
    told |= {"cpu_share_max": 0.5, "ping_p50_ms": 0.1, "ping_p99_ms": 2.0} | others
    return {f"{name}_{what}": value for what, value in told.items()}


def concluded(figures: dict[str, float]) -> tuple[Report, str]:
    report = Report({}, figures, commit="c", machine={})
    conclude(report, 2000.0, {})
    out = io.StringIO()
    report.show(Console(file=out, width=200))
    return report, out.getvalue()


def test_the_plain_run_has_the_plain_names() -> None:
    report, shown = concluded(found("sqlite_save_first"))
    names = (
        "accepted_p99_ms saved_share save_lag_p99_ms duplicates reorders reorderByServerMsgId reorderByFrom ping_p99_ms"
    )
    for name in names.split():
        assert report.figures[name] == report.figures[f"sqlite_save_first_{name}"]
    assert report.ratios["accepted_p99_vs_ping"] == 5
    assert "Targets met: accepted p99 10.0 ms (target: 20.0); 100.00% saved" in shown


@for_each(
    [
        ({"accepted": 21.0}, "accepted p99 21.0 ms"),
        ({"saved_share": 0.999}, "99.90% saved"),
        ({"save_lag_p99_ms": 1001.0}, "save lag p99 1,001 ms"),
        ({"duplicates": 1.0}, "1 duplicates"),
        ({"reorders": 2.0}, "2 reorders"),
    ]
)
def test_missed_messages_are_reported(figures: dict[str, float], words: str) -> None:
    _, shown = concluded(found("sqlite_save_first", **figures))
    assert "Targets missed" in shown
    assert words in shown.partition("Targets missed")[2]


def test_a_slow_redis_of_the_run_makes_the_aim_wider() -> None:
    _, shown = concluded(found("sqlite_save_first", accepted=30.0, ping_p99_ms=4.0))
    assert "target: 40.0" in shown


def test_slow_databases_and_the_off_path_stand_beside_it() -> None:
    figures = (
        found("sqlite_off", None, 20.0)
        | found("sqlite_save_first")
        | found("sqlite_slow_off", None, 600.0)
        | found("sqlite_slow_save_first", 12.0)
    )
    told = ratios(figures)
    assert told["sqlite_slow_accepted_p99"] == pytest.approx(1.2)
    assert told["sqlite_off_vs_accepted_p99"] == 2
    assert told["sqlite_slow_off_vs_accepted_p99"] == 50
    _, shown = concluded(figures)
    assert "accepted p99 is 1.20 × that without" in shown
    assert "SQLite, slow, off" in shown


def test_cases_stand_in_the_order_of_comparison() -> None:
    figures = found("postgres_off", None) | found("sqlite_deliver_first") | found("sqlite_slow_save_first")
    assert measured(figures) == ["sqlite_deliver_first", "sqlite_slow_save_first", "postgres_off"]
    assert title("postgres_slow_deliver_first") == "PostgreSQL, slow, deliver-first"


def test_a_slow_database_is_measured_in_all_modes_beside_sqlite() -> None:
    names = [case.name for case in cases(Settings(db_delays_ms=(0, 20)))]
    assert names[:3] == ["sqlite_off", "sqlite_save_first", "sqlite_deliver_first"]
    assert names[3:] == [f"postgres_delay{ms}_{mode}" for ms in (0, 20) for mode in PATHS]


def test_ratios_of_a_slow_database_pair_the_rounds_and_have_an_interval() -> None:
    def rounds(*p50: float) -> list[dict[str, float]]:
        return [{"e2e_p50_ms": value, "e2e_p99_ms": 2 * value} for value in p50]

    samples = {
        "sqlite_off": rounds(10, 20, 10),
        "sqlite_deliver_first": rounds(10, 30, 30),
        "postgres_delay0_deliver_first": rounds(4, 4),
        "postgres_delay100_deliver_first": rounds(4, 6),
    }
    found = delay_ratios(samples, (0, 100))
    assert (found["deliver_first_vs_one_phase_p50"], found["deliver_first_vs_one_phase_p50_max"]) == (1.5, 3)
    assert (found["db_delay_100_vs_0_p50"], found["db_delay_100_vs_0_p50_min"]) == (1.25, 1)
