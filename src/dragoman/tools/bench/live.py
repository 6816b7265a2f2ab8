"""`dragoman bench live`: what we add between a voice and the words on the listener's screen, without the nodes' time.

    same     the speakers, the listeners and the nodes at one instance
    across   the speakers at one instance, the listeners and the nodes at another

Each speaker is in a room with one listener, who reads another language. An utterance is recognised by one job and
translated by another; the time of both is measured in the nodes and subtracted.

    first partial   from the start of speech to the first words at the speaker; nodes answer a preview at once
    felt            from the end of speech to the translation at the listener, without `silence_ms`
    added           from the chunk with which the server can know that speech has ended, to the same

The difference of *felt* and *added* is the audio that is not there yet: the detector's frames, its own hesitation, and
the chunks of the client. PING by a bare blocking socket runs beside it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import uvloop
from rich.table import Table

from dragoman.config.schema_speech import Vad
from dragoman.embedded.binary import ServerBinary
from dragoman.store.link import Address
from dragoman.tools.bench.environment import (
    OPEN_TIMEOUT_S,
    UNLIMITED,
    Bench,
    Environment,
    LoadName,
    environment,
    running,
)
from dragoman.tools.bench.live_load import CHUNK_MS, CHUNK_S, PAUSE_MS
from dragoman.tools.bench.measure import Case, Quantities, in_turns, percentile
from dragoman.tools.processes import CannotRun, cpu_s
from dragoman.tools.report import OnStep, Report, described, number, table

Where = Literal["same", "across"]
WHERE: tuple[Where, ...] = ("same", "across")
LOADS: tuple[LoadName, ...] = ("listeners", "previewers", "ping")
NODES = 4
ASR_S, TEXT_S = 0.1, 0.05
PINGS_PER_S = 100.0
LONGER_S = 5.0  # that the speakers speak after the measurement: its CPU is that of a steady stream
TYPICAL = 50  # the headline figures are those of the case that is nearest to so many speakers
HEADLINES = {"added_p50_ms": "across", "first_partial_p50_ms": "across", "cpu_ms_per_audio_second": "same"}
MOST_PINGS, MOST_MS = 25, 50


@dataclass(frozen=True, slots=True)
class Settings:
    speakers: tuple[int, ...] = (1, 50, 200)
    seconds: float = 20.0
    warmup_s: float = 5.0
    rounds: int = 3


def steps(settings: Settings) -> int:
    return len(WHERE) * len(settings.speakers) * settings.rounds


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    about: dict[str, object] = {"silence_ms": Vad().silence_ms}
    about |= {
        "nodes": NODES,
        "asr_ms": ASR_S * 1e3,
        "text_ms": TEXT_S * 1e3,
        "chunk_ms": CHUNK_MS,
        "pause_ms": PAUSE_MS,
    }
    report = Report(described(settings, redis=str(binary), **about))
    with running("single", binary) as servers:
        cases = [_case(where, count) for count in settings.speakers for where in WHERE]
        findings = uvloop.run(in_turns(cases, Bench(servers, settings), settings.rounds, on_step))
    conclude(report, findings.figures, settings)
    return report


def _case(where: Where, speakers: int) -> Case[Bench[Settings]]:
    async def run(bench: Bench[Settings]) -> Quantities:
        limits = {**UNLIMITED, "rooms.captions_per_minute": 0, "rooms.opened_per_minute": 0}
        instances = 1 if where == "same" else 2
        async with environment(bench.servers, instances, LOADS, settings=limits) as live:
            first, last = live.instances[0], live.instances[-1]
            await live.loads["previewers"].call("open_nodes", url=last.url, count=NODES, asr_s=ASR_S, text_s=TEXT_S)
            for one in live.instances:
                await one.wait_for_nodes(NODES)
            opening = {"speakers_url": first.url, "listeners_url": last.url, "count": speakers}
            await live.loads["listeners"].call("open", OPEN_TIMEOUT_S, **opening)
            return await _measured(live, bench.settings)

    return Case(f"{where}_{speakers}", f"{where}: {speakers} speakers", run)


async def _measured(live: Environment, settings: Settings) -> Quantities:
    clients, pinger, redis = live.loads["listeners"], live.loads["ping"], Address.parse(live.servers.urls[0])
    silence_ms = Vad().silence_ms
    whole_s = 2 * settings.warmup_s + settings.seconds + LONGER_S
    await clients.call("stream", seconds=whole_s, spread_s=settings.warmup_s, silence_ms=silence_ms)
    await asyncio.sleep(settings.warmup_s)
    await pinger.call("time", host=redis.host, port=redis.port, per_s=PINGS_PER_S)
    before, cpu = await clients.call("sent"), _cpu_s(live)
    await asyncio.sleep(settings.seconds)
    after, cpu_after = await clients.call("sent"), _cpu_s(live)
    pings = await pinger.call("times")
    found = await clients.call("result", begin=before["now"], end=after["now"])
    spent = await live.loads["previewers"].call("spent")
    felt = [whole - silence_ms / 1e3 - spent[id] for id, (whole, _) in found["finals"].items()]
    added = [late - spent[id] for id, (_, late) in found["finals"].items()]
    if not found["partials"]:
        raise CannotRun("no words arrived while speaking")
    words, partial_added = zip(*found["partials"], strict=True)
    audio_s = (after["chunks"] - before["chunks"]) * CHUNK_S
    used = {name: (cpu_after[name] - cpu[name]) / audio_s * 1e3 for name in cpu}
    return {
        "utterances": float(len(felt)),
        "without_partial": float(len(felt) - len(words)),
        "node_p50_ms": percentile(sorted(spent[id] for id in found["finals"]), 0.5) * 1e3,
        "ping_p50_ms": pings["ping"]["p50_us"] / 1e3,
        "cpu_ms_per_audio_second": used["session"] + used["node"],
        **{f"{name}_cpu_ms_per_audio_second": ms for name, ms in used.items()},
        **_shares("felt", felt),
        **_shares("added", added),
        **_shares("first_partial", list(words)),
        **_shares("first_partial_added", list(partial_added)),
    }


def _cpu_s(live: Environment) -> dict[str, float]:
    """On one instance, that of the node is 0."""
    pids = [one.pid for one in live.instances]
    return {"session": cpu_s(pids[0]), "node": sum(map(cpu_s, pids[1:])), "redis": live.servers.cpu_s()}


def _shares(name: str, taken_s: list[float]) -> Quantities:
    taken_s.sort()
    return {f"{name}_p{share}_ms": percentile(taken_s, share / 100) * 1e3 for share in (50, 99)}


# -- conclusions -----------------------------------------------------------------------------------


def conclude(report: Report, figures: Mapping[str, float], settings: Settings) -> None:
    typical = min(settings.speakers, key=lambda count: abs(count - TYPICAL))
    report.figures = {name: figures[f"{where}_{typical}_{name}"] for name, where in HEADLINES.items()} | dict(figures)
    names = [f"{where}_{count}" for count in settings.speakers for where in WHERE]
    report.ratios = {
        f"{name}_added_vs_ping": figures[f"{name}_added_p50_ms"] / figures[f"{name}_ping_p50_ms"] for name in names
    }
    report.tables = [latency_table(figures, report.ratios, names), cpu_table(figures, names)]
    name = f"across_{typical}"
    ratio, felt = report.ratios[f"{name}_added_vs_ping"], figures[f"{name}_felt_p50_ms"]
    report.notes = [
        f"Subtracted: the time of the nodes, {number(figures[f'{name}_node_p50_ms'])} ms for an utterance; and from "
        f"what is felt, silence_ms ({report.settings['silence_ms']} ms).",
        f"Targets, {typical} speakers across: added p50 {ratio:.1f} × PING, at most {MOST_PINGS} "
        f"({_met(ratio <= MOST_PINGS)}); felt p50 {felt:.0f} ms, at most {MOST_MS} ({_met(felt <= MOST_MS)}).",
    ]


def _met(met: bool) -> str:
    return "met" if met else "missed"


def latency_table(figures: Mapping[str, float], ratios: Mapping[str, float], names: list[str]) -> Table:
    measured = ["utterances", "first_partial_p50_ms", "first_partial_p99_ms", "felt_p50_ms", "felt_p99_ms"]
    measured += ["added_p50_ms", "added_p99_ms", "ping_p50_ms"]
    rows = [
        [
            _title(name),
            *(number(figures[f"{name}_{what}"]) for what in measured),
            number(ratios[f"{name}_added_vs_ping"], " ×"),
        ]
        for name in names
    ]
    columns = ["ms", "utterances", "words p50", "p99", "felt p50", "p99", "added p50", "p99", "PING", "added/PING"]
    return table("First words after speech begins; translation at the listener after it ends", columns, rows)


def cpu_table(figures: Mapping[str, float], names: list[str]) -> Table:
    measured = ("session_cpu", "node_cpu", "redis_cpu")
    rows = [
        [_title(name), *(number(figures[f"{name}_{what}_ms_per_audio_second"]) for what in measured)] for name in names
    ]
    columns = ["", "session's instance", "node's instance", "Redis"]
    return table("CPU ms per second of streamed audio", columns, rows)


def _title(name: str) -> str:
    where, _, count = name.partition("_")
    return f"{where}, {count}"
