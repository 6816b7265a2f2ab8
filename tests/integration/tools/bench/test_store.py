"""Tiny runs of the whole bench: that it works and writes what it promises. No figure is judged here."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run
from dragoman.tools.bench import redis_clients
from support.waiting import Descendants, alive, wait_for

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


@pytest.mark.long
def test_a_peer_that_cannot_run_is_named_and_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(redis_clients, "HIREDIS_AVAILABLE", False)
    found = measured(tmp_path, "--only", "single")
    assert set(found["figures"]) == {name for name in names("single") if "redis_py" not in name}
    assert found["settings"]["modes"] == ["single"]
    assert set(found["settings"]["left_out"].values()) == {
        "redis-py: redis-py does not find hiredis, and without it there is no comparison."
    }
    assert not [name for name in found["ratios"] if "redis_py" in name]
    shown = capsys.readouterr().out
    assert "without it there is no comparison." in shown
    assert "There is nothing to compare: redis-py was left out." in shown


def test_an_interrupt_ends_it_and_leaves_neither_servers_nor_files(folder: Path) -> None:
    below = Descendants()
    command = [sys.executable, "-c", "from dragoman.cli.main import main; main()", "bench", "store", "--only", "single"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            wait_for(lambda: list(folder.glob("*/data/redis.sock")), "the server")
            servers = wait_for(lambda: below.of(started.pid), "its process")
            started.send_signal(signal.SIGINT)
            out, errors = started.communicate(timeout=30)
        finally:
            started.kill()
            below.kill()
    assert (started.returncode, out, errors) == (130, "", "")
    assert not any(alive(pid) for pid in servers)


@pytest.mark.parametrize("place", ["", "no/such/folder/out.json"])
def test_unwritable_output_file_is_reported_before_the_measurement(
    place: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "store", "--json", str(tmp_path / place)]) == 2
    told = capsys.readouterr()
    assert told == ("", f"dragoman: --json names {tmp_path / place}, which cannot be written.\n")


def test_unreachable_server_is_reported_in_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAGOMAN_EMBEDDED__REDIS_SERVER", "/nowhere/redis-server")
    assert run(["bench", "store", *TINY]) == 1
    assert capsys.readouterr().err == (
        "dragoman: embedded.redis_server names /nowhere/redis-server, which does not exist: "
        "name a redis-server or valkey-server.\n"
    )
