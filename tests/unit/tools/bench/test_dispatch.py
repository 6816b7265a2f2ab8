from io import StringIO

import pytest
from rich.console import Console

from dragoman.tools.bench.dispatch import Settings, latency_table, ratios

FIGURES = {
    f"{where}_{what}_{share}_us": us * (1 if share == "p50" else 3) * (1 if where == "same" else 2)
    for where in ("same", "across")
    for share in ("p50", "p99")
    for what, us in (("cut", 200.0), ("ping", 40.0), ("rapid_ping", 20.0), ("said", 260.0))
}


def test_a_latency_is_a_multiple_of_the_ping_of_the_same_case() -> None:
    cases = [f"{where}_{share}" for where in ("same", "across") for share in ("p50", "p99")]
    assert ratios(FIGURES) == pytest.approx(
        {f"{case}_vs_ping": 5.0 for case in cases} | {f"{case}_vs_rapid_ping": 10.0 for case in cases}
    )


def test_the_table_has_a_row_for_every_case_and_share() -> None:
    out = StringIO()
    Console(file=out, width=120).print(latency_table(FIGURES, ratios(FIGURES), Settings()))
    assert "job_assign at the node, at 200 jobs a second" in out.getvalue()
    assert [line.split()[:2] for line in out.getvalue().splitlines() if "×" in line] == [
        ["same,", "p50"],
        ["same,", "p99"],
        ["across,", "p50"],
        ["across,", "p99"],
    ]
