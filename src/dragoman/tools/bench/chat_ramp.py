"""`dragoman bench chat --ramp`: the highest rate that is sustained, and what happens from half of it to three times it.

The rate rises by a quarter until one is not sustained: a message is refused, unsaved, or saved long after the last one
was sent. The rate below it is the *capacity*. Then each load of LOADS has a run of three phases, CALM_SHARE of the
capacity before and after it. Every message must be saved or refused with `server_busy`, what was accepted must be
saved, no user is disconnected, and no message arrives twice or out of order.

The time in which a message is accepted, or refused, counts from when it was due. The overload is over with the last
second after it in which a message was refused, or whose accepted p99 was above twice that of the seconds before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.process import raise_file_limit
from dragoman.tools.bench.chat import SPARE_FILES, ChatEnvironment, MessagePath, Setup, chat_environment
from dragoman.tools.bench.environment import Backend, backend
from dragoman.tools.bench.measure import Quantities
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import OnStep, Report, described, number, table, write

GROWTH = 1.25
MAX_STEPS = 12
STEP_S, STEP_WARMUP_S = 5.0, 1.0
LATE_S = 1.0  # how long after the last message was due everything must be saved
DRAIN_S = 90.0
SMALL_BACKLOG = 2000
LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
QUICK_LOADS = (0.5, 3.0)
CALM_SHARE = 0.25
CALM_S = 3
NORMAL = 2.0  # times the accepted p99 of the seconds before
LEAST_NORMAL_MS = 20.0  # what a scheduler does to a p99 of some milliseconds is no overload


@dataclass(frozen=True, slots=True)
class Settings:
    rate: float = 1000.0  # from which it rises
    seconds: float = 10.0
    after_s: int = 15
    clients: int = 200
    pings: bool = False
    mode: MessagePath = "save_first"
    loads: tuple[float, ...] = LOADS
    max_steps: int = MAX_STEPS
    svg: Path | None = None


def steps(settings: Settings) -> int:
    return settings.max_steps + len(settings.loads)


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    if not raise_file_limit(settings.clients + SPARE_FILES):
        raise CannotRun(f"{settings.clients:,} clients take more open files than the system allows (ulimit -Hn).")
    report = Report(described(settings, redis=str(binary)) | {"svg": str(settings.svg or "")})
    with backend(binary) as servers:
        uvloop.run(_run(report, servers, settings, on_step))
    return report


async def _run(report: Report, servers: Backend, settings: Settings, on_step: OnStep) -> None:
    setup = Setup(mode=settings.mode, clients=settings.clients, pings=settings.pings)
    async with chat_environment(servers, setup) as chat:
        capacity, beyond = await climb(chat, settings.rate, min(settings.seconds, STEP_S), on_step, settings.max_steps)
    if not capacity:
        raise CannotRun(f"{beyond:,.0f} messages a second are not sustained; begin with fewer (--rate).")
    report.figures["max_per_s"] = capacity
    found: dict[float, Quantities] = {}
    for load in settings.loads:
        on_step(f"{capacity * load:,.0f} messages a second, {load:g} × the capacity")
        async with chat_environment(servers, setup) as chat:
            found[load] = await under(chat, capacity, load, settings)
        report.figures |= {f"load_{load:g}_{name}": value for name, value in found[load].items()}
    report.tables.append(ramp_table(capacity, found))
    report.notes.append(verdict(capacity, found))
    if settings.svg is not None:
        write(plot(capacity, found).encode(), settings.svg)


async def climb(
    chat: ChatEnvironment, rate: float, seconds: float, on_step: OnStep, max_steps: int = MAX_STEPS
) -> tuple[float, float]:
    """The highest sustained rate, 0 if none was, and the next, which was not."""
    sustained = 0.0
    for _ in range(max_steps):
        on_step(f"{rate:,.0f} messages a second")
        if not is_sustained(await chat.run(rate, STEP_WARMUP_S, seconds, DRAIN_S), seconds):
            break
        sustained = rate
        rate *= GROWTH
    return sustained, rate


def is_sustained(found: dict[str, Any], seconds: float) -> bool:
    complete = found["saved_count"] == found["sent"] and not found["errors"] and not found["failures"]
    return complete and found["took_s"] <= seconds + LATE_S


async def under(chat: ChatEnvironment, capacity: float, load: float, settings: Settings) -> Quantities:
    """Calm, the load, calm; what became of all messages, and when it was over."""
    users, calm = chat.environment.loads["chat"], capacity * CALM_SHARE
    phases = [(calm, float(CALM_S)), (capacity * load, settings.seconds), (calm, float(settings.after_s))]
    await users.call("pace", phases=phases, name=f"m{uuid4().hex[:6]}")
    lasts_s = sum(seconds for _, seconds in phases)
    accepts = settings.mode != "off"
    asked = {"warmup_s": 0.0, "wait_s": DRAIN_S, "expects_accepted": accepts}
    counts = await users.call("result", lasts_s + 2 * DRAIN_S, **asked)
    seconds = (await users.call("seconds"))["seconds"]
    return quantities(counts, seconds, int(settings.seconds), accepts=accepts)


def quantities(
    counts: Mapping[str, Any], seconds: Sequence[Mapping[str, Any]], loaded_s: int, *, accepts: bool = True
) -> Quantities:
    """`worse` counts every message that is neither saved nor refused as promised; it should be 0."""
    strange = sum(counts["errors"].values()) - counts["errors"].get("server_busy", 0)
    unanswered = max(counts["sent"] - counts["saved_count"] - counts["server_busy"], 0)
    lost = max(counts["accepted_count"] - counts["saved_count"], 0) if accepts else 0
    disorder = counts["duplicates"] + counts["reorderByFrom"] + counts["reorderByServerMsgId"]
    before, during, after = seconds[:CALM_S], seconds[CALM_S : CALM_S + loaded_s], seconds[CALM_S + loaded_s :]
    normal_ms = max(max(_worst(before, "accepted"), LEAST_NORMAL_MS / NORMAL) * NORMAL, LEAST_NORMAL_MS)
    disturbed = [at + 1 for at, one in enumerate(after) if one["refused"] or one["accepted_p99_ms"] > normal_ms]
    offered = sum(one["sent"] for one in during)
    return {
        "offered_per_s": offered / loaded_s,
        "accepted_per_s": sum(one["accepted"] for one in during) / loaded_s,
        "refused_share": sum(one["refused"] for one in during) / max(offered, 1),
        "before_p99_ms": _worst(before, "accepted"),
        "accepted_p99_ms": _worst(during, "accepted"),
        "refused_p99_ms": _worst(during, "refused"),
        "recovery_s": float(max(disturbed, default=0)),
        "worse": float(strange + unanswered + lost + disorder + len(counts["failures"])),
    }


def _worst(seconds: Sequence[Mapping[str, Any]], what: str) -> float:
    """The p99 of the worst second; 0 if there was none."""
    return max((one[f"{what}_p99_ms"] for one in seconds if not isnan(one[f"{what}_p99_ms"])), default=0.0)


# -- the results -----------------------------------------------------------------------------------

COLUMNS = ("offered_per_s", "accepted_per_s", "accepted_p99_ms", "refused_p99_ms", "recovery_s", "worse")


def ramp_table(capacity: float, found: Mapping[float, Quantities]) -> Table:
    rows = [
        [f"{load:g} ×", f"{one['refused_share']:.1%}", *(number(one[name]) for name in COLUMNS)]
        for load, one in found.items()
    ]
    columns = ["load", "refused", "offered/s", "accepted/s", "accepted p99 ms", "refused p99 ms", "recovery s", "worse"]
    return table(f"capacity {capacity:,.0f} messages a second; p99 is that of the worst second", columns, rows)


def verdict(capacity: float, found: Mapping[float, Quantities]) -> str:
    worse = sum(one["worse"] for one in found.values())
    slowest = max(found.values(), key=lambda one: one["recovery_s"])
    return (
        f"{capacity:,.0f} messages a second are sustained. Above, messages are accepted, or refused with server_busy: "
        f"{worse:,.0f} were neither. The longest recovery took {slowest['recovery_s']:g} s."
    )


WIDTH, HEIGHT, LEFT, TOP, GAP = 640, 220, 60, 30, 60
LINES = {
    "messages a second": {"offered_per_s": "#888888", "accepted_per_s": "#1a7f37"},
    "p99 of the worst second, ms": {"accepted_p99_ms": "#1a7f37", "refused_p99_ms": "#cf222e"},
}


def plot(capacity: float, found: Mapping[float, Quantities]) -> str:
    """Two panels: how many messages are accepted, and how long senders wait, by the load in capacities."""
    total = 2 * (HEIGHT + GAP) + TOP
    most = max(found)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 20} {total}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH + LEFT + 20}" height="{total}" fill="white"/>',
    ]
    for panel, (title, lines) in enumerate(LINES.items()):
        top = TOP + panel * (HEIGHT + GAP)
        high = max(max(one[name] for one in found.values()) for name in lines) or 1.0
        out.append(f'<text x="{LEFT}" y="{top - 10}" font-weight="bold">{title}</text>')
        out.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#cccccc"/>')
        out += [
            f'<text x="{LEFT - 6}" y="{top + HEIGHT * (1 - share) + 4}" text-anchor="end">{high * share:,.0f}</text>'
            for share in (0.0, 0.5, 1.0)
        ]
        for load in found:
            x = LEFT + WIDTH * load / most
            out.append(f'<text x="{x:.0f}" y="{top + HEIGHT + 16}" text-anchor="middle">{load:g} ×</text>')
        for at, (name, colour) in enumerate(lines.items()):
            points = [
                (LEFT + WIDTH * load / most, top + HEIGHT * (1 - one[name] / high)) for load, one in found.items()
            ]
            drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            words = name.rpartition("_p99")[0] or name.removesuffix("_per_s")
            out.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
            out.append(f'<text x="{LEFT + 10}" y="{top + 18 + 16 * at}" fill="{colour}">{words}</text>')
    words = f"load, as a multiple of {capacity:,.0f} messages a second"
    return "\n".join([*out, f'<text x="{LEFT}" y="{total - 8}">{words}</text>', "</svg>", ""])
