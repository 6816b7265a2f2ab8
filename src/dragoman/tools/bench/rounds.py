"""Cases measured in turns: every round runs each of them once, and the median of the rounds counts.

Who is compared stands side by side, and every second round goes backwards: what the machine does meanwhile then falls
on all of them alike. A peer that fails is left out of the case it failed in, by name and with the reason; when one of
our own fails, the bench has failed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

Quantities = dict[str, float]
"""What one measurement found, by name with its unit."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Case(Generic[C]):
    """One thing to measure on a context `C`; figures are called `<name>_<quantity>`. `peer` names whose it is."""

    name: str
    title: str
    run: Callable[[C], Awaitable[Quantities]]
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    figures: dict[str, float]
    left_out: dict[str, str]  # case: why


async def in_turns(
    cases: Sequence[Case[C]], context: C, rounds: int, on_case: Callable[[str], None] = lambda title: None
) -> Findings:
    found: dict[str, list[Quantities]] = {case.name: [] for case in cases}
    left_out: dict[str, str] = {}
    for number in range(rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            on_case(case.title)
            if case.name in left_out:
                continue
            try:
                found[case.name].append(await case.run(context))
            except Exception as error:
                if not case.peer:
                    raise
                left_out[case.name] = f"{case.peer}: {str(error) or type(error).__name__}"
    figures: dict[str, float] = {}
    for name, samples in found.items():
        if samples and name not in left_out:
            figures |= {f"{name}_{quantity}": value for quantity, value in medians(samples).items()}
    return Findings(figures, left_out)


def medians(samples: Sequence[Mapping[str, float]]) -> Quantities:
    """Quantity by quantity: the middle throughput and the middle CPU may be of different rounds."""
    return {quantity: median(sample[quantity] for sample in samples) for quantity in samples[0]}
