"""`dragoman bench dispatch`: from the cut of an utterance to its `job_assign` at the node, at a steady pace.

    same     session and node at one instance
    across   the session at one instance, the node at another: every job goes through an inbox

Beside it, at the same time and as often, PING by a bare blocking socket: what a latency of ours is beyond a few of
those, we added. After it, under the same load, PING back to back (`rapid`), which never lets Redis or itself fall
asleep. The moment of the cut is in the turn id (`stamped_instance`), that of saying it in the trace id.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Literal

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.store.link import Address
from dragoman.tools.bench.harness import Harness, harness
from dragoman.tools.bench.instance_process import STAMPED
from dragoman.tools.bench.load_process import LoadProcess
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.report import Report, number, table
from dragoman.tools.bench.rounds import Case, Quantities, in_turns
from dragoman.tools.bench.servers import Servers, running

Where = Literal["same", "across"]
WHERE: tuple[Where, ...] = ("same", "across")
SHARES = ("p50", "p99")
BACK_TO_BACK = 1e9  # a second: the next is due before the last is answered
RAPID_SHARE = 0.2  # of the time of a measurement: not while jobs are timed, it would be a load of its own


@dataclass(frozen=True, slots=True)
class Settings:
    seconds: float = 20.0
    warmup_s: float = 5.0
    rounds: int = 3
    per_s: float = 200.0
    sessions: int = 200
    nodes: int = 20


@dataclass(frozen=True, slots=True)
class Bench:
    """What the cases are measured on."""

    servers: Servers
    settings: Settings


def steps(settings: Settings) -> int:
    return len(WHERE) * settings.rounds


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    shown: dict[str, object] = {name: getattr(settings, name) for name in settings.__slots__}
    report = Report(shown | {"redis": str(binary)})
    with running("single", binary) as servers:
        cases = [_case(where) for where in WHERE]
        findings = uvloop.run(in_turns(cases, Bench(servers, settings), settings.rounds, on_step))
    report.figures = findings.figures
    report.ratios = ratios(report.figures)
    report.tables = [latency_table(report.figures, report.ratios, settings)]
    return report


def _case(where: Where) -> Case[Bench]:
    async def run(bench: Bench) -> Quantities:
        settings = bench.settings
        async with harness(bench.servers, 1 if where == "same" else 2, STAMPED) as cast:
            await cast.add_nodes(settings.nodes, at=cast.instances[-1:])
            await cast.add_sessions(settings.sessions, at=cast.instances[:1])
            return await _timed(cast, settings)

    return Case(where, f"{where}: cut to assigned", run)


async def _timed(cast: Harness, settings: Settings) -> Quantities:
    at = Address.parse(cast.servers.urls[0])
    with TemporaryFile() as log, await LoadProcess.start("dragoman.tools.bench.ping_load", log) as pinger:
        await cast.pace(settings.per_s)
        await asyncio.sleep(settings.warmup_s)
        await pinger.act("time", host=at.host, port=at.port, per_s=settings.per_s)
        await cast.fleet.act("time")
        used = await cast.measure(settings.seconds)
        jobs, pings = await cast.fleet.act("times"), await pinger.act("times")
        await pinger.act("time", host=at.host, port=at.port, per_s=BACK_TO_BACK)
        await asyncio.sleep(settings.seconds * RAPID_SHARE)
        rapid = await pinger.act("times")
        await cast.rest()
    found = {"per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job}
    timed = {"cut": jobs["cut"], "said": jobs["said"], "ping": pings["ping"], "rapid_ping": rapid["ping"]}
    for name, times in timed.items():
        found |= {f"{name}_{share}": value for share, value in times.items()}
    return found


# -- what is concluded ---------------------------------------------------------------------------


def ratios(figures: Mapping[str, float]) -> dict[str, float]:
    """From the cut, over PING under the same load."""
    return {
        f"{where}_{share}_vs_{ping}": figures[f"{where}_cut_{share}_us"] / figures[f"{where}_{ping}_{share}_us"]
        for ping in ("ping", "rapid_ping")
        for where in WHERE
        for share in SHARES
    }


def latency_table(figures: Mapping[str, float], found: Mapping[str, float], settings: Settings) -> Table:
    rows = [
        [
            f"{where}, {share}",
            number(figures[f"{where}_cut_{share}_us"]),
            number(figures[f"{where}_ping_{share}_us"]),
            number(found[f"{where}_{share}_vs_ping"], " ×"),
            number(figures[f"{where}_rapid_ping_{share}_us"]),
            number(found[f"{where}_{share}_vs_rapid_ping"], " ×"),
            number(figures[f"{where}_said_{share}_us"]),
        ]
        for where in WHERE
        for share in SHARES
    ]
    columns = ["", "from the cut µs", "PING µs", "ratio", "PING back to back", "ratio", "from the client µs"]
    return table(f"job_assign at the node, at {settings.per_s:g} jobs a second", columns, rows)
