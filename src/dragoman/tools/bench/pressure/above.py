"""Far more than the most: who is told to wait, what else happens, and how soon all is as before.

    chat     twice what is kept up with, on a backlog that is full within seconds: saved, or told `server_busy`
    speech   twice the jobs that one instance after the other manages: answered late, or told to hold on
    fleet    twice what the slots of the nodes allow: `backpressure`, and failed when no slot came free in time

Healthy clients, idle all the time, must not notice. *Before* is the worst of a few quiet seconds. It is over in the
first second whose p50 and p99 are both within half as much again of that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any
from uuid import uuid4

from dragoman.tools.bench.chat_max import SMALL_BACKLOG
from dragoman.tools.bench.chat_stage import Ground
from dragoman.tools.bench.pressure.settings import Settings
from dragoman.tools.bench.pressure.stage import Stage, stage
from dragoman.tools.bench.pressure.together import of_chat, of_speech
from dragoman.tools.bench.pressure.watch import watching
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.rounds import Quantities

OVERLOAD = 2.0
CALM_SHARE = 0.25  # of the most: how much there is before and after
WINDOW_S = 1.0
WINDOWS = 4  # before
AS_BEFORE = 1.5
DRAIN_S = 60.0
FLEET_NODES, FLEET_SLOTS, FLEET_WORK_S = 10, 2, 0.1  # 200 jobs a second, and no more

Latency = tuple[float, float]
Window = Callable[[], Awaitable[Latency]]


async def chat(below: Ground, settings: Settings, most_per_s: float, on_step: OnStep) -> Quantities:
    on_step(f"{most_per_s * OVERLOAD:,.0f} messages a second, which is too many")
    async with stage(below, settings.instances, SMALL_BACKLOG) as on:
        await _healthy_clients(on, settings)
        await on.add_users(settings.users)
        await asyncio.sleep(settings.warmup_s)

        async def said(per_s: float, seconds: float) -> dict[str, Any]:
            await on.crowd.act("pace", per_s=per_s, seconds=seconds, name=f"m{uuid4().hex[:6]}")
            patience = {"patience_s": 2 * DRAIN_S + seconds, "warmup_s": 0.0, "wait_s": DRAIN_S}
            return await on.crowd.act("result", **patience, expects_accepted=True)

        async def window() -> Latency:
            told = await said(most_per_s * CALM_SHARE, WINDOW_S)
            return told["accepted_p50_ms"], told["accepted_p99_ms"]

        before = await _before(window)
        async with watching(on) as watched:
            began = monotonic()
            over = await said(most_per_s * OVERLOAD, settings.seconds)
        found = of_chat(over) | {"before_p99_ms": before[1]}
        found |= await _recovery(window, before, began + settings.seconds, settings)
        return found | await _rest(on, watched.lag_p99_ms, watched.rss[0][1])


async def speech(below: Ground, settings: Settings, most_per_s: float, on_step: OnStep) -> Quantities:
    on_step(f"{most_per_s * OVERLOAD:,.0f} jobs a second, which is too many")
    return await _spoken(below, settings, most_per_s, {"sessions": settings.sessions, "nodes": settings.nodes})


async def fleet(below: Ground, settings: Settings, on_step: OnStep) -> Quantities:
    most_per_s = FLEET_NODES * FLEET_SLOTS / FLEET_WORK_S
    on_step(f"{most_per_s * OVERLOAD:,.0f} jobs a second, for which there are too few nodes")
    nodes = {"nodes": FLEET_NODES, "slots": FLEET_SLOTS, "work_s": FLEET_WORK_S}
    return await _spoken(below, settings, most_per_s, {"sessions": settings.sessions, **nodes})


async def _spoken(below: Ground, settings: Settings, most_per_s: float, cast: dict[str, Any]) -> Quantities:
    async with stage(below, settings.instances) as on:
        await _healthy_clients(on, settings)
        await on.add_speakers(**cast)
        await on.speakers.act("tolerate")

        async def window() -> Latency:
            await on.speakers.act("pace", per_s=most_per_s * CALM_SHARE)
            await on.fleet.act("time")
            await asyncio.sleep(WINDOW_S)
            said = (await on.fleet.act("times")).get("said", {"p50_us": float("inf"), "p99_us": float("inf")})
            return said["p50_us"] / 1e3, said["p99_us"] / 1e3

        await window()
        before = await _before(window)
        async with watching(on) as watched:
            await on.fleet.act("time")
            await on.speakers.act("pace", per_s=most_per_s * OVERLOAD)
            await asyncio.sleep(settings.seconds)
            ended, dispatch = monotonic(), await on.fleet.act("times")
            over = await on.speakers.act("rest", 2 * DRAIN_S, wait_s=DRAIN_S)
        found = of_speech(over, dispatch) | {"before_p99_ms": before[1]}
        found |= await _recovery(window, before, ended, settings)
        await on.speakers.act("rest")
        return found | await _rest(on, watched.lag_p99_ms, watched.rss[0][1])


async def _healthy_clients(on: Stage, settings: Settings) -> None:
    await on.must_hold(settings.healthy_clients // 2, settings.healthy_clients - settings.healthy_clients // 2)


async def _before(window: Window) -> Latency:
    seen = [await window() for _ in range(WINDOWS)]
    return max(p50 for p50, _ in seen), max(p99 for _, p99 in seen)


async def _recovery(window: Window, before: Latency, ended: float, settings: Settings) -> Quantities:
    """How long after the end of it the first second began that was as before; -1 when none was."""
    while (began := monotonic()) < ended + settings.recovery_patience_s:
        p50, p99 = await window()
        if p50 <= before[0] * AS_BEFORE and p99 <= before[1] * AS_BEFORE:
            return {"recovery_s": max(began - ended, 0.0), "after_p99_ms": p99}
    return {"recovery_s": -1.0}


async def _rest(on: Stage, lag_p99_ms: float, rss_before: int) -> Quantities:
    idle = await on.idlers.act("count")
    grown = (on.rss_bytes() - rss_before) / 2**20
    return {"sockets_closed": sum(idle["closed"].values()), "lag_p99_ms": lag_p99_ms, "rss_grown_mb": grown}
