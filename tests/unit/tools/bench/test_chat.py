from typing import Any

import pytest

from dragoman.tools.bench.chat import Settings, cases, quantities, steps
from dragoman.tools.bench.chat_stage import MODES, Setup, refuse
from dragoman.tools.bench.errors import BenchError

FOUND: dict[str, Any] = {
    "sent": 10, "saved_count": 9, "arrived_count": 9, "took_s": 3.0, "saved_p99_ms": 5.0, "cpu_ms_per_1000": 1,
    "redis_cpu_ms_per_1000": 1, "backlog_max": 3, "backlog_end": 0, "duplicates": 0, "inversions": 4,
    "reorderByServerMsgId": 1, "reorderByFrom": 2, "server_busy": 1, "errors": {}, "failures": [],
}  # fmt: skip


def test_the_plain_run_is_one_case() -> None:
    assert [case.name for case in cases(Settings())] == ["sqlite_save_first"]
    assert steps(Settings(rounds=3)) == 3


def test_modes_databases_and_slow_commits_multiply() -> None:
    settings = Settings(modes=MODES, databases=("sqlite", "postgres"), slow=True)
    names = [case.name for case in cases(settings)]
    assert len(names) == 12
    assert names[:4] == ["sqlite_off", "sqlite_save_first", "sqlite_deliver_first", "sqlite_slow_off"]
    # One that cannot be started here is left out by name.
    assert {case.peer for case in cases(settings) if case.name.startswith("postgres")} == {"PostgreSQL"}


def test_shares_and_reorders_are_of_what_was_sent() -> None:
    told = quantities(FOUND)
    assert (told["saved_share"], told["saved_per_s"], told["reorders"]) == (0.9, 3.0, 2.0)


def test_nothing_saved_is_no_figure() -> None:
    with pytest.raises(BenchError, match="No message got as far as saved"):
        quantities(FOUND | {"saved_p99_ms": float("nan")})


def test_what_should_not_come_ends_the_bench_but_busy_is_a_figure() -> None:
    refuse(FOUND | {"errors": {"server_busy": 3}}, Setup())
    with pytest.raises(BenchError, match="told internal_error"):
        refuse(FOUND | {"errors": {"internal_error": 1}}, Setup())
    with pytest.raises(BenchError, match="a connection was closed"):
        refuse(FOUND | {"failures": ["a connection was closed"]}, Setup())
    refuse(FOUND | {"failures": ["a connection was closed"]}, Setup(mode="off", slow=True))
