"""`dragoman bench rooms`, in short runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run
from dragoman.tools.bench import rooms_peers
from dragoman.tools.processes import CannotRun

TINY = ("--quick", "--seconds", "1", "--readers", "32")


def measured(tmp_path: Path, *options: str) -> dict[str, Any]:
    assert run(["bench", "rooms", *TINY, *options, "--json", str(tmp_path / "out.json")]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["commit", "machine", "settings", "figures", "ratios"]
    return found


@pytest.mark.parametrize("text", [("--text",), ()], ids=["written", "spoken"])
def test_every_reader_gets_every_caption_and_the_promised_figures_are_written(
    text: tuple[str, ...], tmp_path: Path
) -> None:
    found = measured(tmp_path, "--no-peers", "--no-max", *text)
    figures = found["figures"]
    assert figures["deliveries"] == 2 * 2 * 32  # original and translation, two captions
    assert figures["cpu_us_per_delivery"] > 0
    assert figures["redis_commands_per_caption"] > figures["redis_calls_per_caption"] > 0
    assert figures["assign_p50_ms"] < figures["translation_p50_ms"]
    assert figures.get("recognize_jobs_per_utterance") == (None if text else 1.0)
    assert found["ratios"] == {}


def test_peer_that_cannot_be_installed_is_reported_as_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> Path:
        raise CannotRun("npm is not installed")

    for name in rooms_peers.INSTALLERS:
        monkeypatch.setitem(rooms_peers.INSTALLERS, name, refuse)
    found = measured(tmp_path, "--text", "--no-max")
    assert found["settings"]["not_measured"] == {"socketio": "npm is not installed", "nats": "npm is not installed"}
    assert "socket.io: not measured; npm is not installed." in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.timeout(900)  # npm and go install the peers
def test_peers_and_the_highest_rate_stand_beside_ours(tmp_path: Path) -> None:
    found = measured(tmp_path, "--text")
    for name in rooms_peers.INSTALLERS:
        if name not in found["settings"]["not_measured"]:
            assert found["figures"][f"{name}_deliveries"] == found["figures"]["deliveries"]
            # The CPU time of a short run may be below the clock tick of the kernel: then there is no ratio.
            assert (f"cpu_vs_{name}" in found["ratios"]) == (found["figures"][f"{name}_cpu_us_per_delivery"] > 0)
    assert found["figures"]["max_captions_per_s"] >= 0  # 0 on a machine that is too busy for the first rate
