"""Tiny runs of the whole bench: that it works and writes what it promises. No figure is judged here."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run

TINY = ("--quick", "--seconds", "0.01")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only place for temporary files, empty when the test is over; its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="b-") as made:
        monkeypatch.setenv("TMPDIR", made)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)
        assert list(Path(made).iterdir()) == []


def measured(tmp_path: Path, *options: str) -> dict[str, Any]:
    assert run(["bench", "store", *TINY, "--json", str(tmp_path / "out.json"), *options]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["commit", "machine", "settings", "figures", "ratios"]
    return found


def names(mode: str) -> set[str]:
    loads = [f"{calls}_{callers}" for calls in ("command", "script") for callers in (1, 100, 1000)] + ["reserve_1000"]
    cost = ("per_s", "client_us", "server_us")
    whole = (*cost, "writes", "assign_p50_us", "assign_p99_us")
    clients = ("dragoman", "redis_py")
    found = {f"{load}_{who}_{each}" for load in loads for who in clients for each in cost}
    calls = ("ping", *(f"call_{who}" for who in clients))
    found |= {f"{who}_{share}_us" for who in calls for share in ("p50", "p99")}
    found |= {f"job_{concurrent}_{each}" for concurrent in (1, 100, 1000) for each in whole}
    found |= {"round_trips_before_assign", "round_trips"}
    return {f"{mode}_{name}" for name in found}


@pytest.mark.long
@pytest.mark.cluster
def test_a_whole_run_names_the_smallest_ratio(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(tmp_path)
    figures, ratios = found["figures"], found["ratios"]
    assert set(figures) == names("single") | names("cluster")
    assert all(value > 0 for value in figures.values())
    assert figures["single_round_trips_before_assign"] == figures["cluster_round_trips_before_assign"] == 2
    four = [f"{mode}_{calls}_1000_vs_redis_py" for mode in ("single", "cluster") for calls in ("command", "script")]
    assert ratios["vs_redis_py_1000"] == min(ratios[name] for name in four)
    shown = capsys.readouterr().out
    assert "single: calls per second" in shown
    assert "cluster: a whole job" in shown
    assert "With 1,000 callers at least " in shown


@pytest.mark.parametrize("place", ["", "no/such/folder/out.json"])
def test_unwritable_output_file_is_reported_before_the_measurement(
    place: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "store", "--json", str(tmp_path / place)]) == 2
    told = capsys.readouterr()
    assert told == ("", f"dragoman: --json names {tmp_path / place}, which cannot be written.\n")
