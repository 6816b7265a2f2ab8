"""`dragoman bench engines`, with the engines of the system alone."""

import json
import time
from pathlib import Path

import pytest

from dragoman.cli.main import run
from dragoman.tools.bench import engines
from dragoman.tools.bench.engines import Children
from support.engines import needs_local


@needs_local
def test_engines_bench_has_figures_of_what_is_there_and_none_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run(["bench", "engines", "--languages", "en", "--models", str(tmp_path), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    figures = found["figures"]
    assert {name.partition(",")[0] for name in figures} == {"espeak", "pocketsphinx", "apertium"}
    assert figures["pocketsphinx, en cpu_per_audio_s"] > 0.01  # of the program that recognises
    assert 0 < figures["pocketsphinx, en words_right"] <= 1
    assert figures["apertium, en → es ms"] > 0
    assert "not here" in capsys.readouterr().out


def test_engine_that_does_not_answer_in_time_is_reported_as_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "CHILD_S", 0.01)
    children = Children(tmp_path, time.monotonic() + 60)
    assert children.measure("speak", "espeak", "en").missing == "too slow"
    assert children.not_measured == {"espeak, en": "too slow"}


def test_engine_for_which_no_time_is_left_is_reported_as_not_measured(tmp_path: Path) -> None:
    children = Children(tmp_path, time.monotonic() - 1)
    assert children.measure("speak", "espeak", "en").missing == "no time left"
