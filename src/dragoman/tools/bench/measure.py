"""Measurements in turns, closed-loop load, percentiles, and PING by a bare socket to compare with.

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
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from threading import Event
from time import perf_counter, process_time, sleep
from typing import Any, Generic, TypeVar

from dragoman.tools.processes import CannotRun, serve

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
    samples: dict[str, list[Quantities]] = field(default_factory=dict)  # by case, one per round


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
    return Findings(figures, left_out, found)


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


# -- ping ------------------------------------------------------------------------------------------
#
# PING by a bare blocking socket: the shortest round trip to Redis that is possible here and now.
#
# There is no event loop, no parser and nothing to allocate; what a latency of ours has beyond this, we added. As a
# load process it pings so many times a second while another load runs, as often as there are jobs and not back to
# back: a socket that never sleeps would not meet what every job meets, and would be a load of its own.


_PING, _PONG = b"PING\r\n", b"+PONG\r\n"
_TIMEOUT_S = 10.0


def ping(host: str, port: int, seconds: float) -> Quantities:
    """p50 and p99 of as many PINGs as fit, in microseconds."""
    until = perf_counter() + seconds
    return latency(_ping(host, port, lambda: perf_counter() < until))


def _ping(host: str, port: int, goes_on: Callable[[], bool], every_s: float = 0.0) -> list[float]:
    """The seconds that each PING took; there is one at least."""
    taken: list[float] = []
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            due = perf_counter()
            while goes_on() or not taken:
                sent = perf_counter()
                line.sendall(_PING)
                answer = line.recv(64)
                taken.append(perf_counter() - sent)
                if answer != _PONG:
                    raise CannotRun(f"{host}:{port} answered PING with {answer!r}.")
                if every_s:
                    due += every_s
                    sleep(max(due - perf_counter(), 0))
    except OSError as error:
        raise CannotRun(f"PING to {host}:{port} failed: {error}.") from error
    return taken


class Pinger:
    """PINGs in a thread."""

    def __init__(self) -> None:
        self._stop = Event()
        self._pinging: asyncio.Future[list[float]] | None = None

    async def time(self, host: str, port: int, per_s: float) -> None:
        self._stop = stop = Event()
        loop = asyncio.get_running_loop()
        self._pinging = loop.run_in_executor(None, _ping, host, port, lambda: not stop.is_set(), 1 / per_s)

    async def times(self) -> dict[str, Any]:
        assert self._pinging is not None
        self._stop.set()
        taken = await self._pinging
        return {"pings": len(taken), "ping": latency(taken)}


def main() -> None:
    pinger = Pinger()
    serve({"time": pinger.time, "times": pinger.times})


if __name__ == "__main__":
    main()
