"""`dragoman bench dispatch`: from the cut of an utterance to its `job_assign` at the node, at a steady pace.

    same     session and node at one instance
    across   the session at one instance, the node at another: every job goes through an inbox

Beside it, at the same time and as often, PING by a bare blocking socket: what a latency of ours is beyond a few of
those, we added. After it, under the same load, PING back to back (`rapid`), which never lets Redis or itself
sleep. The moment of the cut is in the turn id (`instance_variants`), that of sending the utterance in the trace id.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.store.link import Address
from dragoman.tools.bench.environment import SPEECH, Bench, Environment, environment, running
from dragoman.tools.bench.instance_variants import STAMPED
from dragoman.tools.bench.measure import Case, Quantities, in_turns
from dragoman.tools.report import OnStep, Report, described, number, table

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


def steps(settings: Settings) -> int:
    return len(WHERE) * settings.rounds


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    report = Report(described(settings, redis=str(binary)))
    with running("single", binary) as servers:
        cases = [_case(where) for where in WHERE]
        findings = uvloop.run(in_turns(cases, Bench(servers, settings), settings.rounds, on_step))
    report.figures = findings.figures
    report.ratios = ratios(report.figures)
    report.tables = [latency_table(report.figures, report.ratios, settings)]
    return report


def _case(where: Where) -> Case[Bench[Settings]]:
    async def run(bench: Bench[Settings]) -> Quantities:
        settings = bench.settings
        instances = 1 if where == "same" else 2
        async with environment(bench.servers, instances, (*SPEECH, "ping"), module=STAMPED) as speech:
            await speech.add_nodes(settings.nodes, at=speech.instances[-1:])
            await speech.add_sessions(settings.sessions, at=speech.instances[:1])
            return await _timed(speech, settings)

    return Case(where, f"{where}: cut to assigned", run)


async def _timed(speech: Environment, settings: Settings) -> Quantities:
    redis, loads = Address.parse(speech.servers.urls[0]), speech.loads
    nodes, pinger = loads["nodes"], loads["ping"]
    await loads["speakers"].call("pace", per_s=settings.per_s)
    await asyncio.sleep(settings.warmup_s)
    await pinger.call("time", host=redis.host, port=redis.port, per_s=settings.per_s)
    await nodes.call("time")
    used = await speech.measure(settings.seconds)
    jobs, pings = await nodes.call("times"), await pinger.call("times")
    await pinger.call("time", host=redis.host, port=redis.port, per_s=BACK_TO_BACK)
    await asyncio.sleep(settings.seconds * RAPID_SHARE)
    rapid = await pinger.call("times")
    await speech.finish_speech()
    found = {"per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job}
    timed = {"cut": jobs["cut"], "said": jobs["sent"], "ping": pings["ping"], "rapid_ping": rapid["ping"]}
    for name, times in timed.items():
        found |= {f"{name}_{share}": value for share, value in times.items()}
    return found


# -- conclusions ---------------------------------------------------------------------------------


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
