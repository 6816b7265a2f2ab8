"""Measurements in turns, closed-loop load, and percentiles.

Every round measures each case once, and the median of the rounds counts. Compared cases stand side by side, and every
second round goes backwards, so that other load of the machine falls on all of them alike. A peer that fails is left out
of the case in which it failed, by name and with the reason; if one of our own cases fails, the bench has failed.

A closed loop has so many callers, each of which calls again as soon as it has the answer. A caller is a coroutine that
makes at least one call, goes on while `going.on`, and returns how many it made: the loop is its own, so that nothing of
ours stands between the measured call and the clock. Calls under way when the time is over are waited for and counted.
"""

import asyncio
import gc
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any, Generic, TypeVar

Quantities = dict[str, float]
"""The values of one measurement, by name with its unit."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Case(Generic[C]):
    """One measurement on a context `C`; its figures are `<name>_<quantity>`. `peer`: the name of the peer it is of."""

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


DRAIN_TIMEOUT_S = 30.0  # for the calls under way when the time is over


class Going:
    """Whether to call once more."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True

    def stop(self) -> None:
        self.on = False


Body = Callable[[int, Going], Coroutine[Any, Any, int]]
"""One caller: it gets its number, calls at least once and while `going.on`, and returns how many calls it made."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    calls: int
    seconds: float
    client_cpu_s: float

    @property
    def per_s(self) -> float:
        return self.calls / self.seconds

    def us_each(self, cpu_s: float) -> float:
        return cpu_s / self.calls * 1e6


async def drive(body: Body, callers: int, seconds: float) -> LoadResult:
    """Run the load. The first caller that fails ends it, with its error."""
    going = Going()
    # The garbage of the previous measurement is not charged to this one.
    gc.collect()
    started, cpu = perf_counter(), process_time()
    timer = asyncio.get_running_loop().call_later(seconds, going.stop)
    try:
        async with asyncio.timeout(seconds + DRAIN_TIMEOUT_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(body(caller, going)) for caller in range(callers)]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        timer.cancel()
    return LoadResult(sum(task.result() for task in tasks), perf_counter() - started, process_time() - cpu)


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that is not below a share of `share` of all values."""
    if not sorted_values:
        raise ValueError("no values, no percentile")
    return sorted_values[max(math.ceil(share * len(sorted_values)), 1) - 1]


def latency(taken_s: list[float]) -> Quantities:
    """p50 and p99 in microseconds; sorts the list."""
    taken_s.sort()
    return {"p50_us": percentile(taken_s, 0.50) * 1e6, "p99_us": percentile(taken_s, 0.99) * 1e6}
