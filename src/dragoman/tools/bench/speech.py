"""`dragoman bench speech`: complete jobs per second of one instance, beside the no-op tasks of task queues.

    job     sent by a client, cut, placed, dispatched, acknowledged, started, answered, released, and counted when
            the client has its `translation_result`: real sockets, clients and nodes in processes of their own
    task    taken from its queue, run (it does nothing), its result stored: see `task_queues`

All on one Redis, in turns. On request it also measures:

    growth      the same paced load at every size: a job among thousands of nodes, or of mostly idle sessions, should
                cost the instances what it costs among ten
    scale-out   as many jobs as possible, on one instance and on two
    idle        the memory of an idle session

Everything an instance does meanwhile is counted with its jobs, heartbeats and renewals included.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.process import raise_file_limit
from dragoman.tools.bench import task_queues
from dragoman.tools.bench.environment import Bench, Environment, Servers, environment, running
from dragoman.tools.bench.measure import Case, Quantities, in_turns
from dragoman.tools.bench.task_queues import CONCURRENCY, DISTRIBUTIONS, release
from dragoman.tools.processes import CannotRun, LoadProcess
from dragoman.tools.report import OnStep, Report, described, number, table

PROBED_JOBS = 50
SPARE_FILES = 1000


@dataclass(frozen=True, slots=True)
class Span:
    warmup_s: float
    seconds: float


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


def steps(settings: Settings) -> int:
    return len(cases(settings)) * settings.rounds + 1


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    if not raise_file_limit(settings.open_files):
        raise CannotRun(f"This takes {settings.open_files:,} open files, more than the system allows (ulimit -Hn).")
    peers = {name: release(name) for name in DISTRIBUTIONS}
    report = Report(described(settings, redis=str(binary), concurrency=CONCURRENCY, peers=peers))
    with running("single", binary) as servers:
        uvloop.run(_run(report, Bench(servers, settings), on_step))
    return report


async def _run(report: Report, bench: Bench[Settings], on_step: OnStep) -> None:
    on_step("round trips of one job")
    report.figures["round_trips_before_assign"] = await _round_trips(bench.servers)
    findings = await in_turns(cases(bench.settings), bench, bench.settings.rounds, on_step)
    report.figures |= findings.figures
    conclude(report, findings.left_out)


async def _round_trips(servers: Servers) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder,
        LoadProcess("dragoman.tools.bench.job_life", Path(folder) / "round_trips.log") as probe,
    ):
        found = await probe.call("measure", redis_url=servers.urls[0], jobs=PROBED_JOBS)
    return float(found["before_assign"])


# -- the cases ---------------------------------------------------------------------------------


def cases(settings: Settings) -> list[Case[Bench[Settings]]]:
    """Compared cases stand side by side."""
    return [
        Case("jobs", "jobs of Dragoman", _jobs),
        *(Case(name, f"tasks of {name}", _tasks(name), name) for name in DISTRIBUTIONS if settings.queues),
        *(_grown(f"nodes_{count}", f"{count:,} nodes", nodes=count) for count in settings.growth_nodes),
        *(_grown(f"sessions_{count}", f"{count:,} sessions", sessions=count) for count in settings.growth_sessions),
        *(_spread(count) for count in (1, 2) if settings.scale_out),
        *(Case("idle", f"{count:,} idle sessions", _idle) for count in (settings.idle_sessions,) if count),
    ]


async def _jobs(bench: Bench[Settings]) -> Quantities:
    settings = bench.settings
    async with environment(bench.servers) as speech:
        await speech.add_nodes(settings.nodes)
        await speech.add_sessions(settings.sessions)
        await speech.loads["speakers"].call("loop")
        await asyncio.sleep(settings.warmup_s)
        used = await speech.measure(settings.seconds)
        await speech.finish_speech()
    return {"per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job, "redis_cpu_ms": used.redis_cpu_ms_per_job}


def _tasks(name: str) -> Callable[[Bench[Settings]], Awaitable[Quantities]]:
    async def run(bench: Bench[Settings]) -> Quantities:
        return await task_queues.measure(name, bench.servers, bench.settings.warmup_s, bench.settings.seconds)

    return run


def _grown(name: str, title: str, **size: int) -> Case[Bench[Settings]]:
    async def run(bench: Bench[Settings]) -> Quantities:
        return await at_size(bench.servers, bench.settings.span, bench.settings.growth_per_s, **size)

    return Case(name, title, run)


def _spread(instances: int) -> Case[Bench[Settings]]:
    async def run(bench: Bench[Settings]) -> Quantities:
        return await spread(bench.servers, bench.settings.span, instances)

    return Case(f"instances_{instances}", "one instance" if instances == 1 else "two instances", run)


async def _idle(bench: Bench[Settings]) -> Quantities:
    return await idle(bench.servers, bench.settings.idle_sessions)


NODES, SESSIONS = 20, 200  # of what does not grow
LANGUAGES = ("es", "de")
SETTLE_S = 1.0


async def at_size(
    servers: Servers, span: Span, per_s: float, *, nodes: int = NODES, sessions: int = SESSIONS
) -> Quantities:
    async with environment(servers) as speech:
        await speech.add_nodes(nodes)
        await speech.add_sessions(sessions)
        await speech.loads["speakers"].call("pace", per_s=per_s)
        return await _cost(speech, span)


async def spread(servers: Servers, span: Span, instances: int) -> Quantities:
    """On one instance or two. Each language has its nodes at one of them and half of its sessions at either."""
    async with environment(servers, instances) as speech:
        await speech.add_nodes(NODES, LANGUAGES)
        await speech.add_sessions(SESSIONS, LANGUAGES)
        await speech.loads["speakers"].call("loop")
        return await _cost(speech, span)


async def idle(servers: Servers, sessions: int) -> Quantities:
    """Memory of the instance for each of so many open sessions."""
    async with environment(servers) as speech:
        await speech.add_nodes(1)
        await speech.add_sessions(1)  # the cost of only the first one is not counted
        before = speech.rss_bytes()
        await speech.add_sessions(sessions)
        await asyncio.sleep(SETTLE_S)
        return {"session_kb": (speech.rss_bytes() - before) / sessions / 1024}


async def _cost(speech: Environment, span: Span) -> Quantities:
    await asyncio.sleep(span.warmup_s)
    used = await speech.measure(span.seconds)
    await speech.finish_speech()
    return {"per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job}


Figures = Mapping[str, float]

NAMES = {"jobs_cpu_ms": "cpu_ms_per_job", "jobs_redis_cpu_ms": "redis_cpu_ms_per_job"}
BEST = "vs_best_queue"


def conclude(report: Report, left_out: Mapping[str, str]) -> None:
    report.settings["left_out"] = dict(left_out)
    report.figures = {NAMES.get(name, name): value for name, value in report.figures.items()}
    figures = report.figures
    report.ratios = ratios(figures)
    report.tables.append(throughput_table(figures, report.ratios))
    for what in ("nodes", "sessions", "instances"):
        if sizes(figures, what):
            report.tables.append(growth_table(figures, report.ratios, what))
    report.notes += [
        *notes(figures),
        *(f"Left out: {why.rstrip('.')}." for why in left_out.values()),
        verdict(report.ratios),
    ]


def ratios(figures: Figures) -> dict[str, float]:
    """Our jobs over a peer's tasks; the cost of a job at each size over that at the smallest."""
    found = {f"vs_{name}": figures["jobs_per_s"] / figures[f"{name}_per_s"] for name in measured(figures)}
    if found:
        found[BEST] = min(found.values())
    for what in ("nodes", "sessions", "instances"):
        first, *others = sizes(figures, what) or [0]
        for size in others:
            cost, least = (figures[f"{what}_{each}_cpu_ms"] for each in (size, first))
            found[f"{what}_{size}_vs_{first}"] = cost / least
    return found


def measured(figures: Figures) -> list[str]:
    return [name for name in DISTRIBUTIONS if f"{name}_per_s" in figures]


def sizes(figures: Figures, what: str) -> list[int]:
    parts = (name.split("_") for name in figures if name.startswith(f"{what}_") and name.endswith("_cpu_ms"))
    return sorted(int(size) for _, size, *_ in parts)


def throughput_table(figures: Figures, found: Figures) -> Table:
    trips = number(figures.get("round_trips_before_assign"))
    rows = [
        [
            "Dragoman, whole jobs",
            number(figures["jobs_per_s"]),
            "",
            number(figures["cpu_ms_per_job"]),
            number(figures["redis_cpu_ms_per_job"]),
        ]
    ]
    rows += [
        [
            f"{name}, no-op tasks",
            number(figures[f"{name}_per_s"]),
            number(found[f"vs_{name}"], " ×"),
            number(figures[f"{name}_cpu_ms"]),
            number(figures[f"{name}_redis_cpu_ms"]),
        ]
        for name in measured(figures)
    ]
    title = f"one process each; a job waits for Redis {trips} times before it is assigned"
    return table(title, ["", "per second", "we are", "its CPU ms each", "Redis CPU ms each"], rows)


def growth_table(figures: Figures, found: Figures, what: str) -> Table:
    first, *_ = sizes(figures, what)
    rows = [
        [
            f"{size:,}",
            number(figures[f"{what}_{size}_cpu_ms"]),
            number(found.get(f"{what}_{size}_vs_{first}"), " ×") if size != first else "",
            number(figures[f"{what}_{size}_per_s"]),
        ]
        for size in sizes(figures, what)
    ]
    crossing = ", half the jobs crossing" if what == "instances" else ""
    return table(f"{what}{crossing}: what a job costs", [what, "CPU ms a job", "", "jobs/s"], rows)


def notes(figures: Figures) -> Iterator[str]:
    if (idle := figures.get("idle_session_kb")) is not None:
        yield f"An idle session takes {idle:.1f} KB of the instance."
    for name in measured(figures):
        if figures[f"{name}_least_waiting"] <= 0:
            yield f"{name} ran out of tasks at times: its producer, not its worker, set the pace."


def verdict(found: Figures) -> str:
    if BEST not in found:
        return "There is no queue to compare with."
    best = min(measured_ratios(found), key=found.__getitem__)
    return f"{found[BEST]:.2f} × the best of the queues, which is {best.removeprefix('vs_')}."


def measured_ratios(found: Figures) -> list[str]:
    return [f"vs_{name}" for name in DISTRIBUTIONS if f"vs_{name}" in found]
