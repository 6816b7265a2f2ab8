"""`dragoman bench speech`: whole job lives per second of one instance, beside the no-op tasks of task queues.

    job     said by a client, cut, placed, dispatched, acknowledged, started, answered, released, and counted where
            the client has its `translation_result`: real sockets, clients and nodes in processes of their own
    task    taken from its queue, run (it does nothing), its result kept: see `peers`

All on one Redis, in turns. Growth, scale-out and idle sessions (see `growth`) are measured when asked for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from tempfile import TemporaryFile

import uvloop

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.open_files import raise_file_limit
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.growth import Span, at_size, idle, spread
from dragoman.tools.bench.harness import harness
from dragoman.tools.bench.load_process import LoadProcess
from dragoman.tools.bench.peers.queue import CONCURRENCY, PEERS, release
from dragoman.tools.bench.peers.race import race
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.report import Report
from dragoman.tools.bench.rounds import Case, Quantities, in_turns
from dragoman.tools.bench.servers import Servers, running
from dragoman.tools.bench.speech_tables import conclude

PROBED_JOBS = 50
SPARE_FILES = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    seconds: float = 20.0
    warmup_s: float = 5.0
    rounds: int = 3
    sessions: int = 200
    nodes: int = 20
    queues: bool = True
    growth_nodes: tuple[int, ...] = ()
    growth_sessions: tuple[int, ...] = ()
    scale_out: bool = False
    idle_sessions: int = 0
    growth_per_s: float = 400.0

    @property
    def span(self) -> Span:
        return Span(self.warmup_s, self.seconds)

    @property
    def open_files(self) -> int:
        return max(self.sessions, self.idle_sessions, *self.growth_sessions, *self.growth_nodes) + SPARE_FILES


@dataclass(frozen=True, slots=True)
class Bench:
    """What the cases are measured on."""

    servers: Servers
    settings: Settings


def steps(settings: Settings) -> int:
    return len(cases(settings)) * settings.rounds + 1


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    if not raise_file_limit(settings.open_files):
        raise BenchError(f"This takes {settings.open_files:,} open files, more than the system allows (ulimit -Hn).")
    report = Report(_described(settings, binary))
    with running("single", binary) as servers:
        uvloop.run(_run(report, Bench(servers, settings), on_step))
    return report


async def _run(report: Report, bench: Bench, on_step: OnStep) -> None:
    on_step("round trips of one job")
    report.figures["round_trips_before_assign"] = await _round_trips(bench.servers)
    findings = await in_turns(cases(bench.settings), bench, bench.settings.rounds, on_step)
    report.figures |= findings.figures
    conclude(report, findings.left_out)


async def _round_trips(servers: Servers) -> float:
    with TemporaryFile() as log, await LoadProcess.start("dragoman.tools.bench.round_trips", log) as probe:
        found = await probe.act("measure", redis_url=servers.urls[0], jobs=PROBED_JOBS)
    return float(found["before_assign"])


def _described(settings: Settings, binary: ServerBinary) -> dict[str, object]:
    shown: dict[str, object] = {name: getattr(settings, name) for name in settings.__slots__}
    return shown | {"redis": str(binary), "concurrency": CONCURRENCY, "peers": {name: release(name) for name in PEERS}}


# -- the cases ---------------------------------------------------------------------------------


def cases(settings: Settings) -> list[Case[Bench]]:
    """Who is compared stands side by side."""
    return [
        Case("jobs", "jobs of Dragoman", _jobs),
        *(Case(name, f"tasks of {name}", _tasks(name), name) for name in PEERS if settings.queues),
        *(_grown(f"nodes_{count}", f"{count:,} nodes", nodes=count) for count in settings.growth_nodes),
        *(_grown(f"sessions_{count}", f"{count:,} sessions", sessions=count) for count in settings.growth_sessions),
        *(_spread(count) for count in (1, 2) if settings.scale_out),
        *(Case("idle", f"{count:,} idle sessions", _idle) for count in (settings.idle_sessions,) if count),
    ]


async def _jobs(bench: Bench) -> Quantities:
    settings = bench.settings
    async with harness(bench.servers) as cast:
        await cast.add_nodes(settings.nodes)
        await cast.add_sessions(settings.sessions)
        await cast.loop()
        await asyncio.sleep(settings.warmup_s)
        used = await cast.measure(settings.seconds)
        await cast.rest()
    return {"per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job, "redis_cpu_ms": used.redis_cpu_ms_per_job}


def _tasks(name: str) -> Callable[[Bench], Awaitable[Quantities]]:
    async def run(bench: Bench) -> Quantities:
        return await race(name, bench.servers, bench.settings.warmup_s, bench.settings.seconds)

    return run


def _grown(name: str, title: str, **size: int) -> Case[Bench]:
    async def run(bench: Bench) -> Quantities:
        return await at_size(bench.servers, bench.settings.span, bench.settings.growth_per_s, **size)

    return Case(name, title, run)


def _spread(instances: int) -> Case[Bench]:
    async def run(bench: Bench) -> Quantities:
        return await spread(bench.servers, bench.settings.span, instances)

    return Case(f"instances_{instances}", "one instance" if instances == 1 else "two instances", run)


async def _idle(bench: Bench) -> Quantities:
    return await idle(bench.servers, bench.settings.idle_sessions)
