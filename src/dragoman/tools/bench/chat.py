"""`dragoman bench chat`: messages at a steady rate, timed from the moment each was due.

    accepted  at its sender: the message is in Redis                    (two-phase only)
    saved     at its sender: it is a row
    e2e       at its receiver, which acknowledges it

Two instances, users spread over both, senders in turn, receivers at random, so half of the messages cross. The plain
run is save-first on SQLite, and its figures carry the plain names; with further modes, databases and slowed commits
beside it, theirs are `<database>_<mode>_…` and `<database>_slow_<mode>_…`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import uvloop

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.open_files import raise_file_limit
from dragoman.tools.bench import chat_max
from dragoman.tools.bench.chat_stage import Database, Ground, Mode, Setup, ground, refuse, stage
from dragoman.tools.bench.chat_tables import conclude
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.report import Report
from dragoman.tools.bench.rounds import Case, Quantities, in_turns
from dragoman.tools.bench.slowed_instance import COMMIT_MS

SPARE_FILES = 500


@dataclass(frozen=True, slots=True)
class Settings:
    rate: float = 2000.0
    seconds: float = 20.0
    warmup_s: float = 5.0
    rounds: int = 3
    users: int = 200
    modes: tuple[Mode, ...] = ("save_first",)
    databases: tuple[Database, ...] = ("sqlite",)
    slow: bool = False
    max: bool = False


@dataclass(frozen=True, slots=True)
class Bench:
    """What the cases are measured on."""

    below: Ground
    settings: Settings
    backlogs: dict[str, list[int]] = field(default_factory=dict)


def steps(settings: Settings) -> int:
    return len(cases(settings)) * settings.rounds + (chat_max.steps(settings) if settings.max else 0)


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    if not raise_file_limit(settings.users + SPARE_FILES):
        raise BenchError(f"{settings.users:,} users take more open files than the system allows (ulimit -Hn).")
    shown: dict[str, object] = {name: getattr(settings, name) for name in settings.__slots__}
    report = Report(shown | {"redis": str(binary)})
    with ground(binary) as below:
        uvloop.run(_run(report, Bench(below, settings), on_step))
    return report


async def _run(report: Report, bench: Bench, on_step: OnStep) -> None:
    findings = await in_turns(cases(bench.settings), bench, bench.settings.rounds, on_step)
    report.figures = findings.figures
    if bench.settings.max:
        report.figures |= await chat_max.find(bench.below, bench.settings, on_step)
    # In time, every half second of the last round: what a maximum cannot show.
    report.settings["backlog_over_time"] = bench.backlogs
    conclude(report, bench.settings.rate, findings.left_out)


def cases(settings: Settings) -> list[Case[Bench]]:
    """Who is compared stands side by side."""
    return [
        _case(Setup(database, mode, slow, settings.users))
        for database in settings.databases
        for slow in ((False, True) if settings.slow else (False,))
        for mode in settings.modes
    ]


def _case(setup: Setup) -> Case[Bench]:
    name = f"{setup.database}{'_slow' if setup.slow else ''}_{setup.mode}"

    async def run(bench: Bench) -> Quantities:
        settings = bench.settings
        async with stage(bench.below, setup) as on:
            found = await on.run(settings.rate, settings.warmup_s, settings.seconds)
            bench.backlogs[name] = on.backlog
        refuse(found, setup)
        return quantities(found)

    title = f"{setup.database}, {setup.mode.replace('_', '-')}" + (f", {COMMIT_MS} ms a commit" if setup.slow else "")
    return Case(name, title, run, "PostgreSQL" if setup.database == "postgres" else "")


def quantities(found: Mapping[str, Any]) -> Quantities:
    """What the users found, as figures."""
    told = {name: float(value) for name, value in found.items() if name.endswith("_ms")}
    if missing := [name for name, value in told.items() if isnan(value)]:
        raise BenchError(f"No message got as far as {missing[0].rpartition('_p')[0]}.")
    sent = found["sent"]
    for what in ("cpu_ms_per_1000", "redis_cpu_ms_per_1000", "backlog_max", "backlog_end", "duplicates", "inversions"):
        told[what] = float(found[what])
    for what in ("reorderByServerMsgId", "reorderByFrom"):
        told[what] = float(found[what])
    told["reorders"] = max(told["reorderByServerMsgId"], told["reorderByFrom"])
    told["saved_share"] = found["saved_count"] / sent
    told["arrived_share"] = found["arrived_count"] / sent
    told["saved_per_s"] = found["saved_count"] / found["took_s"]
    told["server_busy"] = float(found["server_busy"])
    return told
