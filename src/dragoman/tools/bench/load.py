"""`dragoman bench load`: the most of everything, alone and together, and what happens beyond that.

    sockets, messages, jobs   the most of each alone
    half                      half of each together, for minutes             `mixed_load`
    target                    10,000 sockets, 2,000 messages/s, 200 jobs/s   `mixed_load`
    storm                     10,000 sockets closed at once, and back        `overload`
    above                     far more than the most, then less again        `overload`

Every client counts what it asked for and the outcome. The parts run one after the other, each on instances of its own;
a part that needs the result of another uses it, or a usual value if the other was left out.
"""

import asyncio
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.process import raise_file_limit
from dragoman.tools.bench import overload
from dragoman.tools.bench.chat import Setup, chat_environment
from dragoman.tools.bench.chat_ramp import climb
from dragoman.tools.bench.environment import Backend, backend, environment
from dragoman.tools.bench.measure import Quantities
from dragoman.tools.bench.mixed_load import WRONG, Mix, Part, Settings, load_environment, run_mix, sampling
from dragoman.tools.bench.overload import STORMS, storm
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import OnStep, Report, described, number, table

SPARE_FILES = 300  # of a process with many sockets, for everything else


async def max_sockets(servers: Backend, settings: Settings, on_step: OnStep) -> Quantities:
    """As many as the files of one process allow, or as were asked for; first of speech, then of chat."""
    found: Quantities = {}
    for kind in ("speech", "chat"):
        on_step(f"{settings.max_sockets:,} idle sockets of {kind}")
        async with load_environment(servers, 1) as running:
            await running.add_idle(*_of(kind, 1))  # the cost of only the first one is not counted
            before = running.rss_bytes()
            await running.add_idle(*_of(kind, settings.max_sockets))
            async with sampling(running) as samples:
                await asyncio.sleep(settings.hold_s)
            counts = await running.loads["idle"].call("count")
            found |= {
                f"{kind}_held": counts["open"],
                f"{kind}_kb": (samples.rss[-1][1] - before) / max(counts["open"], 1) / 1024,
                f"{kind}_refused": sum(counts["refused"].values()),
                f"{kind}_closed": sum(counts["closed"].values()),
                f"{kind}_lag_p99_ms": samples.lag_p99_ms,
                f"{kind}_cpu_share": samples.cpu_share,
            }
    return found


def _of(kind: str, count: int) -> tuple[int, int]:
    return (count, 0) if kind == "speech" else (0, count)


async def max_messages(servers: Backend, settings: Settings, on_step: OnStep) -> Quantities:
    """Rates rise by a quarter until one is not sustained, as in `bench chat --ramp`."""
    async with chat_environment(servers, Setup(clients=settings.users)) as chat:
        sustained, beyond = await climb(chat, settings.first_rate, settings.seconds / 2, on_step, settings.max_steps)
    if not sustained:
        raise CannotRun(f"{beyond:,.0f} messages a second are not sustained; see --first-rate.")
    return {"max_per_s": sustained, "beyond_per_s": beyond}


async def max_jobs(servers: Backend, settings: Settings, on_step: OnStep) -> Quantities:
    """Every session sends an utterance as soon as the last is answered."""
    on_step("as many jobs as possible")
    async with environment(servers.servers, settings.instances) as speech:
        await speech.add_nodes(settings.nodes)
        await speech.add_sessions(settings.sessions)
        await speech.loads["speakers"].call("loop")
        await asyncio.sleep(settings.warmup_s)
        used = await speech.measure(settings.seconds)
        await speech.finish_speech()
    return {"max_per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job}


TARGET_SECONDS = 2.5  # measurements long
_STEPS: dict[Part, int] = {
    "sockets": 2,
    "messages": 0,  # as many as it takes
    "jobs": 1,
    "half": 1,
    "target": 1,
    "storm": 1,  # and each of the storms
    "above": 3,
}


def steps(settings: Settings) -> int:
    rates = settings.max_steps if "messages" in settings.parts else 0
    storms = settings.storms * len(STORMS) if "storm" in settings.parts else 0
    return sum(_STEPS[part] for part in settings.parts) + rates + storms


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    raise_file_limit(settings.max_sockets)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    settings, notes = fitting(settings, files if files != resource.RLIM_INFINITY else settings.max_sockets * 2)
    report = Report(described(settings, redis=str(binary), open_files=files), notes=notes)
    with backend(binary) as servers:
        uvloop.run(_run(report, servers, settings, on_step))
    return report


def fitting(settings: Settings, files: int) -> tuple[Settings, list[str]]:
    """What the files of one process allow, and a word for each part that gets less than it asked for, or nothing."""
    room = files - SPARE_FILES
    notes, parts = list[str](), list[Part]()
    for part in settings.parts:
        wanted = {"target": settings.target_sockets, "storm": settings.storm_sockets}.get(part, 0)
        if wanted <= room:
            parts.append(part)
        else:
            notes.append(f"Left out: {part}, {wanted:,} sockets are more than {files:,} open files allow (ulimit -Hn).")
    if "sockets" in parts and settings.max_sockets > room:
        notes.append(f"Sockets: {files:,} open files a process (ulimit -Hn) allow no more than {room:,}.")
    if not parts:
        raise CannotRun(notes[0])
    return replace(settings, parts=tuple(parts), max_sockets=min(settings.max_sockets, room)), notes


async def _run(report: Report, servers: Backend, settings: Settings, on_step: OnStep) -> None:
    for part in settings.parts:
        found = await _part(part, servers, settings, report.figures, on_step)
        report.figures |= {f"{part}_{name}": float(value) for name, value in found.items()}
    conclude(report, settings.parts)


async def _part(
    part: Part, servers: Backend, settings: Settings, known: dict[str, float], on_step: OnStep
) -> Quantities:
    sockets = known.get("sockets_speech_held", settings.usual_sockets)
    messages = known.get("messages_max_per_s", settings.usual_messages_per_s)
    jobs = known.get("jobs_max_per_s", settings.usual_jobs_per_s)
    match part:
        case "sockets":
            return await max_sockets(servers, settings, on_step)
        case "messages":
            return await max_messages(servers, settings, on_step)
        case "jobs":
            return await max_jobs(servers, settings, on_step)
        case "half":
            share = settings.share
            return await _mixed(servers, settings, Mix(int(sockets * share), messages * share, jobs * share), on_step)
        case "target":
            wanted = Mix(settings.target_sockets, settings.target_messages_per_s, settings.target_jobs_per_s)
            return await _mixed(servers, settings, wanted, on_step, settings.seconds * TARGET_SECONDS)
        case "storm":
            return await storm(servers, settings, on_step)
        case "above":
            return await _above(servers, settings, messages, jobs, on_step)


async def _mixed(
    servers: Backend, settings: Settings, mix: Mix, on_step: OnStep, seconds: float | None = None
) -> Quantities:
    on_step(str(mix))
    asked = {"sockets": mix.sockets, "messages_per_s": mix.messages_per_s, "jobs_per_s": mix.jobs_per_s}
    return asked | await run_mix(servers, settings, mix, seconds or settings.minutes * 60)


async def _above(servers: Backend, settings: Settings, messages: float, jobs: float, on_step: OnStep) -> Quantities:
    found: Quantities = {}
    chat = await overload.chat(servers, settings, messages, on_step)
    speech = await overload.speech(servers, settings, jobs, on_step)
    fleet = await overload.fleet(servers, settings, on_step)
    for name, quantities in (("chat", chat), ("speech", speech), ("fleet", fleet)):
        found |= {f"{name}_{what}": value for what, value in quantities.items()}
    return found


# -- load tables -----------------------------------------------------------------------------------
#
# The conclusions of `bench load`: tables, ratios, and one sentence a part that says whether it is as it should be.


Figures = Mapping[str, float]

STORM_AIM = 5.0  # dispatch p99 in a storm, over that before it
OVERLOADS = ("chat", "speech", "fleet")


def conclude(report: Report, parts: Sequence[Part]) -> None:
    figures = report.figures
    report.ratios = ratios(figures)
    makers: dict[Part, Callable[[Figures], Table]] = {
        "sockets": sockets_table,
        "half": lambda all: mixed_table(all, "half"),
        "target": lambda all: mixed_table(all, "target"),
        "storm": lambda all: storm_table(all, report.ratios),
        "above": above_table,
    }
    report.tables += [makers[part](figures) for part in parts if part in makers]
    report.notes += [note for part in parts for note in notes(part, figures, report.ratios)]


def ratios(figures: Figures) -> dict[str, float]:
    """The wait of a job in a storm over that before it: from the cut, and from when it was sent."""
    found = {}
    for name in STORMS:
        for what in ("dispatch", "said"):
            during, before = (figures.get(f"storm_{name}_{when}{what}_p99_ms") for when in ("", "before_"))
            if during is not None and before:
                found[f"storm_{name}_{what}_p99"] = during / before
    return found


def wrong(figures: Figures, prefix: str) -> dict[str, float]:
    """What happened and must not."""
    return {what: figures[f"{prefix}{what}"] for what in WRONG if figures.get(f"{prefix}{what}")}


def notes(part: Part, figures: Figures, found: Mapping[str, float]) -> Iterator[str]:
    match part:
        case "messages":
            yield f"{figures['messages_max_per_s']:,.0f} messages a second are sustained."
        case "jobs":
            yield f"{figures['jobs_max_per_s']:,.0f} jobs a second are managed."
        case "half" | "target":
            yield f"{part.capitalize()}: {_verdict(wrong(figures, f'{part}_'))}"
        case "storm":
            for name in STORMS:
                ratio = found.get(f"storm_{name}_dispatch_p99")
                met = "" if ratio is None or ratio <= STORM_AIM else f", which is more than {STORM_AIM:g} ×"
                missing = figures[f"storm_{name}_missing"]
                yield (
                    f"Storm, {name.replace('_', ' ')}: dispatch p99 {number(ratio, ' ×')} of before{met}; all back in "
                    f"{number(figures[f'storm_{name}_back_s'])} s."
                    if not missing
                    else f"Storm, {name.replace('_', ' ')}: {missing:,.0f} were not back in time; dispatch p99 "
                    f"{number(ratio, ' ×')} of before."
                )
            yield f"Storm: {_verdict(wrong(figures, 'storm_'))}"
        case "above":
            for name in OVERLOADS:
                back = figures[f"above_{name}_recovery_s"]
                soon = f"as before {number(back)} s after it" if back >= 0 else "not as before within the timeout"
                yield f"Above, {name}: {_verdict(wrong(figures, f'above_{name}_'))} {soon.capitalize()}."


def _verdict(met: Mapping[str, float]) -> str:
    if not met:
        return "nothing lost, nothing duplicated, no client closed."
    return "wrong: " + ", ".join(f"{what} {count:,.0f}" for what, count in met.items()) + "."


def sockets_table(figures: Figures) -> Table:
    rows = [
        [
            kind,
            number(figures[f"sockets_{kind}_held"]),
            number(figures[f"sockets_{kind}_kb"]),
            number(figures[f"sockets_{kind}_lag_p99_ms"]),
            number(figures[f"sockets_{kind}_cpu_share"] * 100),
            number(figures[f"sockets_{kind}_closed"]),
        ]
        for kind in ("speech", "chat")
    ]
    columns = ["", "held", "KB each", "loop lag p99 ≤ ms", "CPU %", "closed"]
    return table("Idle sockets of one instance", columns, rows)


def mixed_table(figures: Figures, part: str) -> Table:
    def value(name: str) -> str:
        return number(figures.get(f"{part}_{name}"))

    rows = [
        ["asked for", value("jobs_per_s"), value("messages_per_s"), value("sockets")],
        ["sent in all", value("jobs_said"), value("messages_sent"), "–"],
        ["due, but not sent by the clients", "–", value("messages_unsent"), "–"],
        ["answered, saved, closed", value("jobs_answered"), value("messages_saved"), value("sockets_closed")],
        ["refused for now", value("backpressure"), value("server_busy"), "–"],
        ["failed, refused otherwise", value("jobs_failed"), value("messages_refused_otherwise"), "–"],
        ["lost", value("jobs_lost"), value("messages_lost"), "–"],
        ["doubled", value("jobs_doubled"), value("messages_doubled"), "–"],
        ["dispatch, accepted p99 ms", value("dispatch_p99_ms"), value("accepted_p99_ms"), "–"],
    ]
    about = (
        f"{part.capitalize()}: loop lag p99 ≤ {value('lag_p99_ms')} ms, {value('rss_mb')} MB, "
        f"{figures[f'{part}_rss_growth_kb_per_min']:+,.0f} KB a minute, {value('blocks')} memory blocks, "
        f"{figures[f'{part}_blocks_growth_per_min']:+,.0f} a minute, {figures[f'{part}_cpu_share']:.0%} of a core"
    )
    return table(about, ["", "jobs", "messages", "sockets"], rows)


def storm_table(figures: Figures, found: Mapping[str, float]) -> Table:
    rows = []
    for name in STORMS:
        of = f"storm_{name}_"
        rows.append(
            [
                name.replace("_", " "),
                number(figures.get(f"{of}before_dispatch_p99_ms")),
                number(figures.get(f"{of}dispatch_p99_ms")),
                number(found.get(f"storm_{name}_dispatch_p99"), " ×"),
                number(found.get(f"storm_{name}_said_p99"), " ×"),
                number(figures[f"{of}back_s"]),
                number(figures[f"{of}refused"]),
                number(figures[f"{of}missing"]),
            ]
        )
    columns = ["storm", "dispatch p99 before ms", "during", "ratio", "sent ratio", "back s", "refusals", "missing"]
    return table("Sockets that are gone at once and come back", columns, rows)


def above_table(figures: Figures) -> Table:
    def row(title: str, *names: str) -> list[str]:
        cells = []
        for kind in OVERLOADS:
            values = [figures[key] for name in names if (key := f"above_{kind}_{name}") in figures]
            cells.append(number(sum(values)) if values else "–")
        return [title, *cells]

    rows = [
        row("sent", "messages_sent", "jobs_said"),
        row("saved, answered", "messages_saved", "jobs_answered"),
        row("server_busy, backpressure", "server_busy", "backpressure"),
        row("failed for want of a node", "jobs_failed"),
        row("lost", "messages_lost", "messages_silent", "jobs_lost"),
        row("doubled", "messages_doubled", "jobs_doubled"),
        row("clients closed", "users_closed", "speakers_closed", "sockets_closed"),
        row("accepted, dispatch p99 ms", "accepted_p99_ms", "dispatch_p99_ms"),
        row("memory grown MB", "rss_grown_mb"),
        row("as before after s", "recovery_s"),
    ]
    return table("More than there is room for", ["", *OVERLOADS], rows)
