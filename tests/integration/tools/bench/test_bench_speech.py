"""Tiny runs of `bench speech` and `bench dispatch`: that they work and write what they promise. No figure is judged."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run
from dragoman.embedded.binary import find_server
from dragoman.tools.bench import speech, task_queues
from dragoman.tools.report import Report
from support.waiting import Descendants, alive, wait_for

TINY = ("--quick", "--seconds", "1", "--warmup", "0.5")
SETTINGS = speech.Settings(seconds=1.0, warmup_s=0.5, rounds=1, sessions=3, nodes=2, queues=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only place for temporary files, empty when the test is over; its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="b-") as made:
        monkeypatch.setenv("TMPDIR", made)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)
        assert list(Path(made).iterdir()) == []


def measured(tmp_path: Path, *command: str) -> dict[str, Any]:
    assert run(["bench", *command, *TINY, "--json", str(tmp_path / "out.json")]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["commit", "machine", "settings", "figures", "ratios"]
    return found


@pytest.mark.long
def test_jobs_are_counted_beside_the_tasks_of_every_queue(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(tmp_path, "speech", "--sessions", "20", "--nodes", "3")
    figures, ratios = found["figures"], found["ratios"]
    # One that gets no turn in so short a run, on a machine busy with others, is named and left out.
    peers = task_queues.DISTRIBUTIONS.keys() - found["settings"]["left_out"].keys()
    tasks = {f"{name}_{each}" for name in peers for each in ("per_s", "cpu_ms", "redis_cpu_ms", "least_waiting")}
    jobs = {"jobs_per_s", "cpu_ms_per_job", "redis_cpu_ms_per_job", "round_trips_before_assign"}
    assert set(figures) == jobs | tasks
    assert figures["jobs_per_s"] > 0
    assert figures["round_trips_before_assign"] <= 2
    assert peers
    assert ratios["vs_best_queue"] == min(ratios[f"vs_{name}"] for name in peers)
    assert "the best of the queues, which is" in capsys.readouterr().out


@pytest.mark.long
def test_growth_scale_out_and_idle_sessions_have_their_figures(folder: Path) -> None:
    settings = replace(SETTINGS, growth_nodes=(3,), scale_out=True, idle_sessions=5, growth_per_s=100.0)
    steps: list[str] = []
    report: Report = speech.run(settings, find_server(""), steps.append)
    assert len(steps) == speech.steps(settings)
    sizes = ("nodes_3", "instances_1", "instances_2")
    assert set(report.figures) >= {f"{size}_{each}" for size in sizes for each in ("per_s", "cpu_ms")}
    assert "idle_session_kb" in report.figures


@pytest.mark.long
def test_dispatch_is_timed_here_and_across_beside_ping(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(tmp_path, "dispatch")
    named = {f"{where}_{share}" for where in ("same", "across") for share in ("p50", "p99")}
    assert set(found["ratios"]) == {f"{name}_vs_{ping}" for name in named for ping in ("ping", "rapid_ping")}
    for where in ("same", "across"):
        figures = {name.removeprefix(f"{where}_"): us for name, us in found["figures"].items()}
        assert 0 < figures["cut_p50_us"] < figures["said_p50_us"]
        assert 0 < figures["ping_p50_us"] <= figures["ping_p99_us"]
    assert "job_assign at the node, at 200 jobs a second" in capsys.readouterr().out


def test_an_interrupt_ends_it_and_leaves_no_process_and_no_file(folder: Path) -> None:
    below = Descendants()
    command = [sys.executable, "-c", "from dragoman.cli.main import main; main()", "bench", "speech", "--no-queues"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            # Redis, an instance, its nodes and its clients.
            wait_for(lambda: len(below.of(started.pid)) == 4, "the harness", timeout_s=30)
            processes = below.of(started.pid)
            started.send_signal(signal.SIGINT)
            out, errors = started.communicate(timeout=30)
        finally:
            started.kill()
            below.kill()
    assert (started.returncode, out, errors) == (130, "", "")
    assert not any(alive(pid) for pid in processes)
