"""More than usual, on purpose: a storm of reconnects, and far more load than the instances can take.

In a storm ten thousand sockets are closed at once and come back as the SDK does, with and without its jitter. Half are
speech sessions, which resume, half are chat users. Other clients speak at a steady pace, and their jobs should not slow
down. A p99 of a few seconds is of a dozen jobs, so there are several storms of each kind, each after some calm seconds,
and their medians count; of what should not happen at all, the maximum counts.

Above the most:

    chat     twice the sustained rate, on a backlog that is full within seconds: saved, or refused with `server_busy`
    speech   twice the jobs that the instances can take: answered late, or slowed down by `backpressure`
    fleet    twice what the slots of the nodes allow: `backpressure`, and failed if no slot is free in time

Idle healthy clients must not notice. *Before* is the worst of a few calm seconds. The overload is over in the first
second whose p50 and p99 are both within 1.5 times of that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

from dragoman.tools.bench.chat_ramp import SMALL_BACKLOG
from dragoman.tools.bench.environment import Backend, Environment
from dragoman.tools.bench.measure import Quantities, medians
from dragoman.tools.bench.mixed_load import Settings, load_environment, of_chat, of_speech, sampling
from dragoman.tools.report import OnStep

POLL_S = 0.1
CALM_S = 3.0
STORMS = {"jitter": True, "in_step": False}
NEVER = ("missing", "refused", "nodes_closed", "before_nodes_closed")


async def storm(servers: Backend, settings: Settings, on_step: OnStep) -> Quantities:
    count = settings.storm_sockets
    on_step(f"{count:,} sockets are opened")
    async with load_environment(servers, settings.instances) as running:
        await running.add_all_idle(count)
        await running.add_nodes(settings.nodes)
        await running.add_sessions(settings.sessions)
        await running.loads["speakers"].call("tolerate")
        await running.loads["speakers"].call("pace", per_s=settings.storm_jobs_per_s)
        await asyncio.sleep(settings.warmup_s)
        rounds: dict[str, list[Quantities]] = {name: [] for name in STORMS}
        for _ in range(settings.storms):
            for name, jitter in STORMS.items():
                on_step(f"{count:,} sockets go and come back, {'with' if jitter else 'without'} jitter")
                before = {f"before_{what}": value for what, value in (await _calm(running, settings.seconds)).items()}
                rounds[name].append(before | await _one(running, settings, jitter))
                await asyncio.sleep(CALM_S)
        found = {f"{name}_{what}": value for name in STORMS for what, value in combined(rounds[name]).items()}
        spoken = await running.loads["speakers"].call("rest")
    failed = sum(spoken["errors"].values())
    found |= {"jobs_failed": failed, "jobs_lost": spoken["sent"] - spoken["results"] - failed}
    return found | {"jobs_doubled": spoken["doubled"], "speakers_closed": spoken["failed"]}


def combined(rounds: Sequence[Quantities]) -> Quantities:
    return medians(rounds) | {what: max(one[what] for one in rounds) for what in NEVER if what in rounds[0]}


async def _calm(running: Environment, seconds: float) -> Quantities:
    await running.loads["nodes"].call("time")
    await asyncio.sleep(seconds)
    return await _dispatch(running)


async def _one(running: Environment, settings: Settings, jitter: bool) -> Quantities:
    """From the moment they are closed until all are back; those that are not back in time count as missing."""
    await running.loads["nodes"].call("time")
    async with sampling(running) as samples:
        until = monotonic() + settings.storm_timeout_s
        await running.loads["idle"].call("drop", jitter=jitter)
        counts = await running.loads["idle"].call("count")
        while counts["back_s"] is None and monotonic() < until:
            await asyncio.sleep(POLL_S)
            counts = await running.loads["idle"].call("count")
    return {
        **await _dispatch(running),
        "back_s": counts["back_s"] if counts["back_s"] is not None else settings.storm_timeout_s,
        "missing": counts["sockets"] - counts["open"],
        "refused": sum(counts["refused"].values()),
        "resumed": counts["resumed"],
        "lag_p99_ms": samples.lag_p99_ms,
        "cpu_share": samples.cpu_share,
    }


async def _dispatch(running: Environment) -> Quantities:
    """From the cut, and from the moment the client spoke, to the node."""
    counts = await running.loads["nodes"].call("times")
    found: Quantities = {"nodes_closed": sum(counts["closed"].values())}
    for start, name in (("cut", "dispatch"), ("sent", "said")):
        if start in counts:
            found |= {f"{name}_{share}_ms": counts[start][f"{share}_us"] / 1e3 for share in ("p50", "p99")}
    return found


OVERLOAD = 2.0
CALM_SHARE = 0.25  # of the most: how much there is before and after
WINDOW_S = 1.0
WINDOWS = 4  # before
AS_BEFORE = 1.5
DRAIN_S = 60.0
FLEET_NODES, FLEET_SLOTS, FLEET_WORK_S = 10, 2, 0.1  # 200 jobs a second, and no more

Latency = tuple[float, float]
Window = Callable[[], Awaitable[Latency]]


async def chat(servers: Backend, settings: Settings, most_per_s: float, on_step: OnStep) -> Quantities:
    on_step(f"{most_per_s * OVERLOAD:,.0f} messages a second, which is too many")
    async with load_environment(servers, settings.instances, SMALL_BACKLOG) as running:
        await _healthy_clients(running, settings)
        await running.add_users(settings.users)
        await asyncio.sleep(settings.warmup_s)

        async def said(per_s: float, seconds: float) -> dict[str, Any]:
            await running.loads["chat"].call("pace", phases=[(per_s, seconds)], name=f"m{uuid4().hex[:6]}")
            waits = {"timeout_s": 2 * DRAIN_S + seconds, "warmup_s": 0.0, "wait_s": DRAIN_S}
            return await running.loads["chat"].call("result", **waits, expects_accepted=True)

        async def window() -> Latency:
            counts = await said(most_per_s * CALM_SHARE, WINDOW_S)
            return counts["accepted_p50_ms"], counts["accepted_p99_ms"]

        before = await _before(window)
        async with sampling(running) as samples:
            began = monotonic()
            over = await said(most_per_s * OVERLOAD, settings.seconds)
        found = of_chat(over) | {"before_p99_ms": before[1]}
        found |= await _recovery(window, before, began + settings.seconds, settings)
        return found | await _rest(running, samples.lag_p99_ms, samples.rss[0][1])


async def speech(servers: Backend, settings: Settings, most_per_s: float, on_step: OnStep) -> Quantities:
    on_step(f"{most_per_s * OVERLOAD:,.0f} jobs a second, which is too many")
    return await _overload_speech(servers, settings, most_per_s, {"count": settings.nodes})


async def fleet(servers: Backend, settings: Settings, on_step: OnStep) -> Quantities:
    most_per_s = FLEET_NODES * FLEET_SLOTS / FLEET_WORK_S
    on_step(f"{most_per_s * OVERLOAD:,.0f} jobs a second, for which there are too few nodes")
    nodes = {"count": FLEET_NODES, "slots": FLEET_SLOTS, "work_s": FLEET_WORK_S}
    return await _overload_speech(servers, settings, most_per_s, nodes)


async def _overload_speech(
    servers: Backend, settings: Settings, most_per_s: float, nodes: dict[str, Any]
) -> Quantities:
    async with load_environment(servers, settings.instances) as running:
        await _healthy_clients(running, settings)
        await running.add_nodes(**nodes)
        await running.add_sessions(settings.sessions)
        await running.loads["speakers"].call("tolerate")

        async def window() -> Latency:
            await running.loads["speakers"].call("pace", per_s=most_per_s * CALM_SHARE)
            await running.loads["nodes"].call("time")
            await asyncio.sleep(WINDOW_S)
            said = (await running.loads["nodes"].call("times")).get(
                "sent", {"p50_us": float("inf"), "p99_us": float("inf")}
            )
            return said["p50_us"] / 1e3, said["p99_us"] / 1e3

        await window()
        before = await _before(window)
        async with sampling(running) as samples:
            await running.loads["nodes"].call("time")
            await running.loads["speakers"].call("pace", per_s=most_per_s * OVERLOAD)
            await asyncio.sleep(settings.seconds)
            ended, dispatch = monotonic(), await running.loads["nodes"].call("times")
            over = await running.loads["speakers"].call("rest", 2 * DRAIN_S, wait_s=DRAIN_S)
        found = of_speech(over, dispatch) | {"before_p99_ms": before[1]}
        found |= await _recovery(window, before, ended, settings)
        await running.loads["speakers"].call("rest")
        return found | await _rest(running, samples.lag_p99_ms, samples.rss[0][1])


async def _healthy_clients(running: Environment, settings: Settings) -> None:
    await running.add_all_idle(settings.healthy_clients)


async def _before(window: Window) -> Latency:
    seen = [await window() for _ in range(WINDOWS)]
    return max(p50 for p50, _ in seen), max(p99 for _, p99 in seen)


async def _recovery(window: Window, before: Latency, ended: float, settings: Settings) -> Quantities:
    """How long after the end of it the first second began that was as before; -1 when none was."""
    while (began := monotonic()) < ended + settings.recovery_timeout_s:
        p50, p99 = await window()
        if p50 <= before[0] * AS_BEFORE and p99 <= before[1] * AS_BEFORE:
            return {"recovery_s": max(began - ended, 0.0), "after_p99_ms": p99}
    return {"recovery_s": -1.0}


async def _rest(running: Environment, lag_p99_ms: float, rss_before: int) -> Quantities:
    idle = await running.loads["idle"].call("count")
    grown = (running.rss_bytes() - rss_before) / 2**20
    return {"sockets_closed": sum(idle["closed"].values()), "lag_p99_ms": lag_p99_ms, "rss_grown_mb": grown}
