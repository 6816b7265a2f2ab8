"""Tiny runs of every part of `bench load`: that they work, count, and write what they promise. No time is judged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cli.main import run
from dragoman.embedded.binary import find_server
from dragoman.tools.bench import load
from dragoman.tools.bench.load import OVERLOADS
from dragoman.tools.bench.mixed_load import QUICK, WRONG, Part, Settings
from dragoman.tools.report import Report

TINY = replace(
    QUICK,
    instances=1,
    seconds=0.8,
    warmup_s=0.3,
    minutes=0.02,
    hold_s=0.2,
    max_sockets=20,
    first_rate=20.0,
    max_steps=1,
    sessions=4,
    nodes=2,
    users=6,
    target_sockets=20,
    target_messages_per_s=20.0,
    target_jobs_per_s=10.0,
    storm_sockets=40,
    storms=1,
    storm_jobs_per_s=20.0,
    healthy_clients=4,
    recovery_timeout_s=0.0,
    usual_sockets=40,
    usual_messages_per_s=40.0,
    usual_jobs_per_s=40.0,
)


def measured(*parts: Part, settings: Settings = TINY) -> Report:
    steps: list[str] = []
    report = load.run(replace(settings, parts=parts), find_server(""), steps.append)
    assert len(steps) == load.steps(replace(settings, parts=parts))
    return report


@pytest.mark.long
def test_the_most_of_each_is_found_and_half_of_it_is_held_together() -> None:
    figures = measured("sockets", "messages", "jobs", "half").figures
    assert (figures["sockets_speech_held"], figures["sockets_chat_held"]) == (21, 21)
    assert figures["messages_max_per_s"] == 20
    assert figures["jobs_max_per_s"] > 0
    assert (figures["half_sockets"], figures["half_messages_per_s"]) == (10, 10)
    assert figures["half_jobs_said"] == figures["half_jobs_answered"] > 0
    assert figures["half_messages_sent"] == figures["half_messages_saved"] > 0
    assert {what: figures[f"half_{what}"] for what in WRONG} == dict.fromkeys(WRONG, 0)


@pytest.mark.long
def test_sockets_that_are_cut_off_come_back_with_and_without_jitter() -> None:
    report = measured("storm")
    for name in ("jitter", "in_step"):
        assert report.figures[f"storm_{name}_missing"] == 0
        assert report.figures[f"storm_{name}_resumed"] == 20
        assert report.ratios[f"storm_{name}_dispatch_p99"] > 0
    assert (report.figures["storm_jobs_lost"], report.figures["storm_jobs_doubled"]) == (0, 0)


@pytest.mark.long
def test_above_capacity_everything_is_answered_in_one_way_or_another() -> None:
    figures = measured("above").figures
    for name in OVERLOADS:
        met = {what: figures.get(f"above_{name}_{what}", 0) for what in WRONG}
        assert met == dict.fromkeys(WRONG, 0)
    fleet = {what: figures[f"above_fleet_jobs_{what}"] for what in ("said", "answered", "failed")}
    assert fleet["said"] == fleet["answered"] + fleet["failed"]


def test_the_command_runs_the_named_parts_and_writes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dragoman.tools.bench.mixed_load.QUICK", TINY)
    assert run(["bench", "load", "--quick", "--only", "target", "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["commit", "machine", "settings", "figures", "ratios"]
    assert found["settings"]["parts"] == ["target"]
    assert "Target: nothing lost, nothing duplicated, no client closed." in capsys.readouterr().out


def test_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "load", "--only", "sockets,ducks"]) != 0
    assert "'ducks'" in capsys.readouterr().err
