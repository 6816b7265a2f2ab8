"""The search itself: cases of a target by number, until the time is over; what fails is kept in the corpus.

Case `n` of a target depends on the seed and on `n` alone, so any of them can be made again, however far a run came.
What was found once lies in `corpus/<target>/` and is tried first, in every run.
"""

import hashlib
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz.mutate import Case

CORPUS = Path(__file__).parent / "corpus"
CPU_S = 2.0  # of one input, none of which is larger than a frame: what takes longer does not grow with its size alone
GROWTH_BYTES = 256 << 20


class Found(AssertionError):
    """An input for which a property does not hold."""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    make: Callable[[Random], Case]
    check: Callable[[Case], bool]  # whether it was taken; an exception: a property does not hold

    @property
    def folder(self) -> Path:
        return CORPUS / self.name


@dataclass(slots=True)
class Tally:
    cases: int = 0
    taken: int = 0


def search(target: Target, seed: int, seconds: float, keep: Path | None = None) -> Tally:
    """Try what was found before, and then new cases for so long; `keep` is where a failing one is written."""
    tally, before = Tally(), _peak_bytes()
    for case in known(target):
        _try(target, case, "a known case", None)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        case = target.make(Random(f"{seed}/{target.name}/{tally.cases}"))
        tally.taken += _try(target, case, f"case {tally.cases} of seed {seed}", keep or target.folder)
        tally.cases += 1
    grown = _peak_bytes() - before
    if grown > GROWTH_BYTES:
        raise Found(f"{target.name}: memory grew by {grown >> 20} MiB over {tally.cases} cases of seed {seed}")
    return tally


def known(target: Target) -> Iterator[Case]:
    for path in sorted(target.folder.glob("*")):
        yield Case(path.read_bytes(), path.suffix.removeprefix("."))


def _try(target: Target, case: Case, what: str, keep: Path | None) -> bool:
    began = time.process_time()
    try:
        taken = target.check(case)
        spent = time.process_time() - began
        assert spent < CPU_S, f"it took {spent:.1f} s of CPU"
    except Exception as error:
        kept = "" if keep is None else f", kept as {_keep(case, keep)}"
        shown = f"{case.data[:300]!r}{'…' if len(case.data) > 300 else ''}"
        raise Found(f"{target.name}, {what}{kept}: {type(error).__name__}: {error}\n  {shown}") from error
    return taken


def _keep(case: Case, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(case.data).hexdigest()[:12]
    path = folder / (f"{name}.{case.field}" if case.field.isidentifier() else name)
    path.write_bytes(case.data)
    return path


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
