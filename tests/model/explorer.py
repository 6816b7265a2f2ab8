"""Explores a model exhaustively: every state that can be reached from the first, breadth first.

A model is three functions over states that can be compared and hashed:

- `steps(state)`: what may happen next, each as the words of a sentence, the state after it, and whether it is `fair`:
  happens by itself sooner or later. A crash, a new message or a lapse may happen, and may not.
- `broken(state)`: what must never be so and is, as a sentence; '' when all is well.
- `settled(state)`: whether nothing is left to be done.

Found are a state that is broken, and one from which fair steps alone cannot lead to a settled state: something would
wait there for ever. Breadth first, so that the way to it, told as a list of sentences, is a shortest one.

A model must be finite: what the world may do is counted in its states, and used up.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple, Generic[S]):
    words: tuple[object, ...]  # put together only for a way that somebody reads
    after: S
    fair: bool = True

    def __str__(self) -> str:
        return sentence(self.words)


def sentence(words: Iterable[object]) -> str:
    return " ".join(" and ".join(map(str, word)) if type(word) is tuple else str(word) for word in words)


@dataclass(frozen=True, slots=True)
class Model(Generic[S]):
    first: S
    steps: Callable[[S], Iterable[Step[S]]]
    broken: Callable[[S], str]
    settled: Callable[[S], bool]


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong, and a shortest way there; without a fault `wrong` is ''."""

    wrong: str
    way: tuple[str, ...]
    states: int
    deepest: int

    def __str__(self) -> str:
        return "\n".join([self.wrong, *(f"{number:3}. {step}" for number, step in enumerate(self.way, 1))])


def explore(model: Model[S], at_most: int = 5_000_000) -> Found:
    """Everything there is to reach; `at_most` states, for a model that should be finite and is not."""
    numbers = {model.first: 0}
    came_by: list[tuple[int, tuple[object, ...]]] = [(0, ())]  # from which state, by which step
    depth = [0]
    fair_into: list[list[int]] = [[]]  # from which states fair steps lead here
    waiting = deque([model.first])
    settled = list[int]()

    def way_to(number: int) -> tuple[str, ...]:
        way = list[str]()
        while number:
            number, words = came_by[number]
            way.append(sentence(words))
        return tuple(reversed(way))

    while waiting:
        state = waiting.popleft()
        here = numbers[state]
        if wrong := model.broken(state):
            return Found(wrong, way_to(here), len(numbers), depth[here])
        if model.settled(state):
            settled.append(here)
        for words, after, fair in model.steps(state):
            there = numbers.get(after)
            if there is None:
                there = numbers[after] = len(came_by)
                assert there < at_most, "the model does not seem to end"
                came_by.append((here, words))
                depth.append(depth[here] + 1)
                fair_into.append([])
                waiting.append(after)
            if fair:
                fair_into[there].append(here)
    stuck = _first_that_never_settles(settled, fair_into)
    if stuck is not None:
        return Found("something waits here for ever", way_to(stuck), len(numbers), depth[stuck])
    return Found("", (), len(numbers), depth[-1])


def _first_that_never_settles(settled: list[int], fair_into: list[list[int]]) -> int | None:
    """Backwards from where nothing is left to be done; states are numbered in the order of their distance."""
    settles = bytearray(len(fair_into))
    for number in settled:
        settles[number] = 1
    while settled:
        for before in fair_into[settled.pop()]:
            if not settles[before]:
                settles[before] = 1
                settled.append(before)
    return stuck if (stuck := settles.find(0)) >= 0 else None
