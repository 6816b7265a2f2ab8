"""When each fault strikes, and whom: drawn from a seed, and from nothing else.

The draws of one fault do not depend on which others are chosen, so that a run of one alone repeats what happened to it
in a run of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

# Load before the first strike and after the last, so that every fault meets work under way and leaves some to do.
BEFORE_S = 0.7
AFTER_S = 0.5


@dataclass(frozen=True, slots=True)
class Strike:
    """`at_s` after the load began; `seed` draws the victim and whatever else the fault leaves open."""

    at_s: float
    seed: str


@dataclass(frozen=True, slots=True)
class Phase:
    fault: str
    strikes: tuple[Strike, ...]
    load_s: float


def phase(seed: int, fault: str, load_s: float, takes_s: float) -> Phase:
    """`takes_s`: from one strike until all is well again, about. There is one strike at least, 0 is none at all."""
    if takes_s <= 0:
        return Phase(fault, (), max(load_s, BEFORE_S + AFTER_S))
    room_s = load_s - BEFORE_S - AFTER_S
    count = max(1, int(room_s / takes_s))
    rng = Random(f"{seed}/{fault}")
    share_s = max(room_s / count, takes_s)
    strikes = [
        Strike(BEFORE_S + number * share_s + rng.uniform(0, share_s - takes_s), f"{seed}/{fault}/{number}")
        for number in range(count)
    ]
    return Phase(fault, tuple(strikes), max(load_s, BEFORE_S + count * takes_s + AFTER_S))


def phases(seed: int, faults: Sequence[tuple[str, float]], seconds: float) -> list[Phase]:
    """One phase for each (name, takes_s), with `seconds` of load shared out: first what each needs, then evenly."""
    least = [BEFORE_S + takes_s + AFTER_S for _, takes_s in faults]
    spare_s = max(0.0, seconds - sum(least)) / max(1, len(faults))
    return [phase(seed, name, need + spare_s, takes_s) for (name, takes_s), need in zip(faults, least, strict=True)]
