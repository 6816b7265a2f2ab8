"""The decoders under inputs nobody would send by mistake, for about a minute; `make fuzz` does the same for longer."""

from pathlib import Path
from random import SystemRandom

import pytest

from fuzz.search import Target, known, search
from fuzz.targets import TARGETS

SECONDS = 55.0 / len(TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_decoder_accepts_or_refuses_every_generated_input(target: Target) -> None:
    seed = SystemRandom().randrange(10**9)
    tally = search(target, seed, SECONDS)
    print(f"{target.name}: {tally.cases} cases of seed {seed}, {tally.taken} taken")
    assert tally.cases > 0


def test_stored_inputs_are_tried_in_every_run() -> None:
    assert sum(len(list(known(target))) for target in TARGETS) > 0
    folders = {path.name for path in (Path(__file__).parent / "corpus").iterdir()}
    assert folders <= {target.name for target in TARGETS}
