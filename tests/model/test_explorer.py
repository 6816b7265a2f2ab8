"""The explorer on models so small that one sees what it must find."""

from collections.abc import Callable, Iterator

import pytest

from model.explorer import Model, Step, explore


def counting(to: int, *, back: bool = False, broken_at: int = -1) -> Model[int]:
    """From 0 up by one or two; settled at the end."""

    def steps(state: int) -> Iterator[Step[int]]:
        for more in (1, 2):
            if state + more <= to:
                yield Step(("add", more), state + more)
        if back and state:
            yield Step(("start again",), 0, fair=False)

    return Model(0, steps, lambda state: "it is there" if state == broken_at else "", lambda state: state == to)


def test_every_state_is_visited_once() -> None:
    found = explore(counting(10, back=True))
    assert (found.wrong, found.states, found.deepest) == ("", 11, 5)


def test_violation_is_reported_with_a_shortest_path() -> None:
    found = explore(counting(10, broken_at=4))
    assert (found.wrong, found.way) == ("it is there", ("add 2", "add 2"))
    assert str(found) == "it is there\n  1. add 2\n  2. add 2"


def only_when_lucky(state: str) -> Iterator[Step[str]]:
    ways = {
        "begun": [Step(("works",), "half done"), Step(("dies",), "dead", fair=False)],
        "half done": [Step(("works",), "done")],
        "dead": [Step(("is revived",), "begun", fair=False)],
    }
    yield from ways.get(state, [])


def for_ever(state: str) -> Iterator[Step[str]]:
    yield Step(("turns round",), {"begun": "round", "round": "begun"}[state])


@pytest.mark.parametrize(("steps", "way"), [(only_when_lucky, ("dies",)), (for_ever, ())])
def test_state_that_may_never_settle_is_found(
    steps: Callable[[str], Iterator[Step[str]]], way: tuple[str, ...]
) -> None:
    found = explore(Model("begun", steps, lambda state: "", lambda state: state == "done"))
    assert (found.wrong, found.way) == ("something waits here for ever", way)


def test_infinite_model_is_detected() -> None:
    def more(state: int) -> Iterator[Step[int]]:
        yield Step(("add", 1), state + 1)

    with pytest.raises(AssertionError, match="does not seem to end"):
        explore(Model(0, more, lambda state: "", lambda state: True), at_most=1000)
