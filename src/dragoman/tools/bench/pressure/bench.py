"""The parts of `bench load` one after the other, and what they are given of each other's findings."""

import resource
from dataclasses import replace
from typing import Any

import uvloop

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.open_files import raise_file_limit
from dragoman.tools.bench.chat_stage import Ground, ground
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.pressure import above, alone
from dragoman.tools.bench.pressure.settings import Part, Settings
from dragoman.tools.bench.pressure.storm import STORMS, storm
from dragoman.tools.bench.pressure.tables import conclude
from dragoman.tools.bench.pressure.together import Mix, together
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.report import Report
from dragoman.tools.bench.rounds import Quantities

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
    rates = settings.most_steps if "messages" in settings.parts else 0
    storms = settings.storms * len(STORMS) if "storm" in settings.parts else 0
    return sum(_STEPS[part] for part in settings.parts) + rates + storms


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    raise_file_limit(settings.most_sockets)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    settings, notes = fitting(settings, files if files != resource.RLIM_INFINITY else settings.most_sockets * 2)
    shown: dict[str, Any] = {name: getattr(settings, name) for name in settings.__slots__}
    report = Report(shown | {"redis": str(binary), "open_files": files}, notes=notes)
    with ground(binary) as below:
        uvloop.run(_run(report, below, settings, on_step))
    return report


def fitting(settings: Settings, files: int) -> tuple[Settings, list[str]]:
    """What the files of one process allow, and a word for each part that gets less than it asked for, or nothing."""
    room = files - alone.SPARE_FILES
    notes, parts = list[str](), list[Part]()
    for part in settings.parts:
        wanted = {"target": settings.target_sockets, "storm": settings.storm_sockets}.get(part, 0)
        if wanted <= room:
            parts.append(part)
        else:
            notes.append(f"Left out: {part}, {wanted:,} sockets are more than {files:,} open files allow (ulimit -Hn).")
    if "sockets" in parts and settings.most_sockets > room:
        notes.append(f"Sockets: {files:,} open files a process (ulimit -Hn) allow no more than {room:,}.")
    if not parts:
        raise BenchError(notes[0])
    return replace(settings, parts=tuple(parts), most_sockets=min(settings.most_sockets, room)), notes


async def _run(report: Report, below: Ground, settings: Settings, on_step: OnStep) -> None:
    for part in settings.parts:
        found = await _part(part, below, settings, report.figures, on_step)
        report.figures |= {f"{part}_{name}": float(value) for name, value in found.items()}
    conclude(report, settings.parts)


async def _part(part: Part, below: Ground, settings: Settings, known: dict[str, float], on_step: OnStep) -> Quantities:
    sockets = known.get("sockets_speech_held", settings.usual_sockets)
    messages = known.get("messages_max_per_s", settings.usual_messages_per_s)
    jobs = known.get("jobs_max_per_s", settings.usual_jobs_per_s)
    match part:
        case "sockets":
            return await alone.sockets(below, settings, on_step)
        case "messages":
            return await alone.messages(below, settings, on_step)
        case "jobs":
            return await alone.jobs(below, settings, on_step)
        case "half":
            share = settings.share
            return await _mixed(below, settings, Mix(int(sockets * share), messages * share, jobs * share), on_step)
        case "target":
            wanted = Mix(settings.target_sockets, settings.target_messages_per_s, settings.target_jobs_per_s)
            return await _mixed(below, settings, wanted, on_step, settings.seconds * TARGET_SECONDS)
        case "storm":
            return await storm(below, settings, on_step)
        case "above":
            return await _above(below, settings, messages, jobs, on_step)


async def _mixed(
    below: Ground, settings: Settings, mix: Mix, on_step: OnStep, seconds: float | None = None
) -> Quantities:
    on_step(str(mix))
    asked = {"sockets": mix.sockets, "messages_per_s": mix.messages_per_s, "jobs_per_s": mix.jobs_per_s}
    return asked | await together(below, settings, mix, seconds or settings.minutes * 60)


async def _above(below: Ground, settings: Settings, messages: float, jobs: float, on_step: OnStep) -> Quantities:
    found: Quantities = {}
    chat = await above.chat(below, settings, messages, on_step)
    speech = await above.speech(below, settings, jobs, on_step)
    fleet = await above.fleet(below, settings, on_step)
    for name, quantities in (("chat", chat), ("speech", speech), ("fleet", fleet)):
        found |= {f"{name}_{what}": value for what, value in quantities.items()}
    return found
