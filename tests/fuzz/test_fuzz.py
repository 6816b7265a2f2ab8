"""The decoders under inputs nobody would send by mistake, for some seconds; `make fuzz` does the same for longer."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom

import pytest

from dragoman.protocol import codec
from dragoman.protocol.codes import ProtocolError
from fuzz.mutate import Case
from fuzz.refusal import is_good_refusal
from fuzz.search import Found, Target, known, search
from fuzz.targets import TARGETS

SECONDS = 6.0 / len(TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_decoder_accepts_or_refuses_every_generated_input(target: Target) -> None:
    seed = SystemRandom().randrange(10**9)
    tally = search(target, seed, SECONDS)
    print(f"{target.name}: {tally.cases} cases of seed {seed}, {tally.taken} taken")
    assert tally.cases > 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_generated_cases_are_valid_and_invalid_and_depend_only_on_the_seed(target: Target) -> None:
    made = [target.make(Random(f"1/{number}")) for number in range(100)]
    assert made == [target.make(Random(f"1/{number}")) for number in range(100)]
    assert len({target.check(case) for case in made}) == 2, "all of them are taken, or none is"


# -- the search finds what is there to be found -------------------------------------------------------


def crashes_on_a_number(case: Case) -> bool:
    try:
        seq = json.loads(case.data).get("seq", 0)
    except (ValueError, RecursionError, AttributeError):
        return False
    return bool(seq + 1)  # a TypeError where it is no number


def forgets_to_name_the_field(case: Case) -> bool:
    try:
        codec.decode_client(case.data)
    except ProtocolError:
        is_good_refusal("Something is wrong.", case.field)
    return True


def quotes_what_it_was_told(case: Case) -> bool:
    try:
        codec.decode_client(case.data)
    except ProtocolError:
        is_good_refusal(f"Not this: {case.data[-100:].decode(errors='replace')}", "")
    return True


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (crashes_on_a_number, "TypeError"),
        (forgets_to_name_the_field, "does not name it"),
        (quotes_what_it_was_told, "quotes what it must not"),
    ],
)
def test_faulty_decoder_is_found_and_its_input_is_stored(
    check: Callable[[Case], bool], why: str, tmp_path: Path
) -> None:
    with pytest.raises(Found, match=why) as found:
        search(Target("broken", TARGETS[0].make, check), 1, 30.0, tmp_path)
    (kept,) = tmp_path.iterdir()
    assert str(kept) in str(found.value)
    with pytest.raises((TypeError, AssertionError)):
        check(Case(kept.read_bytes(), kept.suffix.removeprefix(".")))


def test_stored_inputs_are_tried_in_every_run() -> None:
    assert sum(len(list(known(target))) for target in TARGETS) > 0
    folders = {path.name for path in (Path(__file__).parent / "corpus").iterdir()}
    assert folders <= {target.name for target in TARGETS}
