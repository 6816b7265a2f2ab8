"""Closed-loop load: so many callers, each asking again as soon as it was answered, for so many seconds.

A caller is a coroutine that makes at least one call, goes on while `going.on`, and returns how many it made. The loop
is its own, so that nothing of ours stands between the measured call and the clock. What is under way when the time is
up is waited for and counted: calls and seconds are those of the whole.
"""

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

# Past the time a load was to take; what is still unanswered then will not be answered.
PATIENCE_S = 30.0


class Going:
    """Whether to ask once more."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True

    def stop(self) -> None:
        self.on = False


Body = Callable[[int, Going], Coroutine[Any, Any, int]]
"""One caller: given its number, it calls while it goes on, once at least; returns its calls."""


@dataclass(frozen=True, slots=True)
class Load:
    calls: int
    seconds: float
    client_cpu_s: float

    @property
    def per_s(self) -> float:
        return self.calls / self.seconds

    def us_each(self, cpu_s: float) -> float:
        return cpu_s / self.calls * 1e6


async def drive(body: Body, callers: int, seconds: float) -> Load:
    """Run the load. The first caller that fails ends it, with its error."""
    going = Going()
    # Garbage of the measurement before is not charged to this one.
    gc.collect()
    started, cpu = perf_counter(), process_time()
    timer = asyncio.get_running_loop().call_later(seconds, going.stop)
    try:
        async with asyncio.timeout(seconds + PATIENCE_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(body(caller, going)) for caller in range(callers)]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        timer.cancel()
    return Load(sum(task.result() for task in tasks), perf_counter() - started, process_time() - cpu)


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above."""
    if not sorted_values:
        raise ValueError("no values, no percentile")
    return sorted_values[max(math.ceil(share * len(sorted_values)), 1) - 1]
