"""A hostile client on two running instances: every attack gets its answer, nothing of it is left, and nobody who was
there meanwhile lost anything. Times are the bench's, and are not judged here."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.bench.abuse import crowds, doors, frames, messages
from dragoman.bench.abuse.attack import Attack
from dragoman.cli.main import run

WELL_KNOWN = {"commit", "machine", "settings", "figures", "ratios"}


def abused(tmp_path: Path, attacks: tuple[Attack, ...], *options: str) -> dict[str, Any]:
    only = [word for attack in attacks for word in ("--only", attack.name)]
    assert run(["bench", "abuse", *options, *only, "--json", str(tmp_path / "out.json")]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert found.keys() == WELL_KNOWN
    return found


def is_clean(found: dict[str, Any], attacks: tuple[Attack, ...]) -> None:
    figures = found["figures"]
    assert found["settings"]["wrong"] == []
    assert found["settings"]["answers"].keys() == {attack.name for attack in attacks}
    assert figures["bystander_lost"] == 0
    assert figures["bystander_utterances"] > 0
    for attack in attacks:
        assert figures[f"{attack.name}_rounds"] > 0
        assert found["ratios"][f"{attack.name}_chat_p99"] > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "of", [pytest.param(messages, id="messages"), pytest.param(frames, id="frames", marks=pytest.mark.long)]
)
def test_what_is_said_wrongly_is_answered_and_costs_nobody_anything(of: Any, tmp_path: Path) -> None:
    is_clean(abused(tmp_path, of.ATTACKS, "--quick"), of.ATTACKS)


@pytest.mark.timeout(300)
@pytest.mark.long
@pytest.mark.parametrize("of", [pytest.param(doors, id="doors"), pytest.param(crowds, id="crowds")])
def test_whoever_only_takes_up_room_is_shown_out_and_costs_nobody_anything(of: Any, tmp_path: Path) -> None:
    is_clean(abused(tmp_path, of.ATTACKS, "--quick"), of.ATTACKS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_strangers_and_a_million_frames_cost_nobody_anything(tmp_path: Path) -> None:
    large = (*crowds.ATTACKS, *(attack for attack in frames.ATTACKS if attack.name in ("tiny_frames", "huge_pieces")))
    is_clean(abused(tmp_path, large, "--seconds", "1"), large)
