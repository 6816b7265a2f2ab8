"""A hostile client on two running instances: every attack gets its answers, nothing of it is left, and no other client
loses anything. How much slower the others became is measured by the bench, and not judged here: machines differ.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run
from dragoman.tools.bench.abuse import accounts, connections, frames, messages, rooms
from dragoman.tools.bench.abuse.attack import Attack

WELL_KNOWN = {"commit", "machine", "settings", "figures", "ratios"}


def abused(tmp_path: Path, attacks: tuple[Attack, ...], *options: str) -> dict[str, Any]:
    only = [word for attack in attacks for word in ("--only", attack.name)]
    assert run(["bench", "abuse", *options, *only, "--json", str(tmp_path / "out.json")]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert found.keys() == WELL_KNOWN
    return found


def is_clean(found: dict[str, Any], attacks: tuple[Attack, ...]) -> None:
    figures, answers = found["figures"], found["settings"]["answers"]
    # What is left of an attack in Redis, in an instance or in its log, and what others were told wrongly.
    assert (found["settings"]["wrong"], figures["wrong"], figures["healthy_lost"]) == ([], 0, 0)
    assert answers.keys() == {attack.name for attack in attacks}
    for attack in attacks:
        assert figures[f"{attack.name}_rounds"] > 0
        assert attack.wrong(Counter(answers[attack.name])) == []
        # The others were served during the attack.
        assert figures[f"{attack.name}_speech_p99_ms"] > 0
        assert figures[f"{attack.name}_chat_p99_ms"] > 0
        assert figures[f"{attack.name}_room_p99_ms"] > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.__name__.rpartition(".")[2], marks=marks)
        for kinds, marks in (((messages, rooms), ()), ((frames, accounts, connections), pytest.mark.long))
        for kind in kinds
    ],
)
def test_attacks_get_their_answers_and_no_other_client_loses_anything(kind: Any, tmp_path: Path) -> None:
    is_clean(abused(tmp_path, kind.ATTACKS, "--quick"), kind.ATTACKS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_connections_and_a_million_frames_make_no_other_client_lose_anything(tmp_path: Path) -> None:
    names = ("strangers", "tiny_frames", "huge_pieces")
    large = tuple(attack for attack in (*connections.ATTACKS, *frames.ATTACKS) if attack.name in names)
    is_clean(abused(tmp_path, large, "--seconds", "1"), large)
