"""How many messages a second two instances take for good, and what they say to more.

Rates rise by a quarter until one is not kept up with: a message refused, unsaved, or saved long after the last one was
sent. The rate below it counts. Then twice that rate, on a backlog that is full within seconds: of everything that is
sent, what is not saved must have been refused with `server_busy`, and what was accepted must be saved; nobody is
disconnected, nothing arrives twice or out of order.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dragoman.tools.bench.chat_stage import Ground, Setup, Stage, stage
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.rounds import Quantities

if TYPE_CHECKING:
    from dragoman.tools.bench.chat import Settings

GROWTH = 1.25
MOST_STEPS = 12
STEP_WARMUP_S = 1.0
LATE_S = 1.0  # how long after the last message was due everything must be saved
OVERLOAD = 2.0
SMALL_BACKLOG = 2000
DRAIN_PATIENCE_S = 60.0


def steps(settings: "Settings") -> int:
    return MOST_STEPS + 1


async def find(below: Ground, settings: "Settings", on_step: OnStep) -> Quantities:
    seconds = min(settings.seconds, 5.0)
    setup = Setup(users=settings.users)
    async with stage(below, setup) as on:
        sustained, rate = await climb(on, settings.rate, seconds, on_step)
    if not sustained:
        raise BenchError(f"{settings.rate:,.0f} messages a second are more than is kept up with; begin with fewer.")
    on_step(f"{rate * OVERLOAD:,.0f} messages a second, which is too many")
    async with stage(below, replace(setup, max_backlog=SMALL_BACKLOG)) as on:
        over = await on.run(rate * OVERLOAD, STEP_WARMUP_S, seconds, DRAIN_PATIENCE_S)
    return {"max_per_s": sustained, **overloaded(over, rate * OVERLOAD)}


async def climb(on: Stage, rate: float, seconds: float, on_step: OnStep, most: int = MOST_STEPS) -> tuple[float, float]:
    """The highest rate that was kept up with, 0 if none was, and the next, which was not."""
    sustained = 0.0
    for _ in range(most):
        on_step(f"{rate:,.0f} messages a second")
        if not kept_up(await on.run(rate, STEP_WARMUP_S, seconds, DRAIN_PATIENCE_S), seconds):
            break
        sustained = rate
        rate *= GROWTH
    return sustained, rate


def kept_up(found: dict[str, Any], seconds: float) -> bool:
    whole = found["saved_count"] == found["sent"] and not found["errors"] and not found["failures"]
    return whole and found["took_s"] <= seconds + LATE_S


def overloaded(found: dict[str, Any], rate: float) -> Quantities:
    """`overload_worse` counts everything that is neither saved nor refused in good order; it should be 0."""
    strange = sum(found["errors"].values()) - found["errors"].get("server_busy", 0)
    silent = max(found["sent"] - found["saved_count"] - found["server_busy"], 0)
    lost = max(found["accepted_count"] - found["saved_count"], 0)
    disorder = found["duplicates"] + found["reorderByFrom"] + found["reorderByServerMsgId"]
    return {
        "overload_per_s": rate,
        "overload_server_busy": float(found["server_busy"]),
        "overload_saved": float(found["saved_count"]),
        "overload_accepted_p99_ms": float(found["accepted_p99_ms"]),
        "overload_worse": float(strange + silent + lost + disorder + len(found["failures"])),
    }
