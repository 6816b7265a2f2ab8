"""Ten thousand sockets cut off in the same moment, and back as the SDK comes back; and without its jitter.

Half of them are speech sessions, which resume, half are chat users. Meanwhile others speak at a steady pace, and what
is asked is whether their jobs notice. A p99 of a few seconds is of a dozen jobs, so there are several storms of each
kind, each with the calm before it, and their medians count; of what should not be at all the most counts.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic

from dragoman.tools.bench.chat_stage import Ground
from dragoman.tools.bench.pressure.settings import Settings
from dragoman.tools.bench.pressure.stage import Stage, stage
from dragoman.tools.bench.pressure.watch import watching
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.rounds import Quantities, medians

LOOK_S = 0.1
CALM_S = 3.0
STORMS = {"jitter": True, "in_step": False}
NEVER = ("missing", "refused", "nodes_closed", "before_nodes_closed")


async def storm(below: Ground, settings: Settings, on_step: OnStep) -> Quantities:
    count = settings.storm_sockets
    on_step(f"{count:,} sockets are opened")
    async with stage(below, settings.instances) as on:
        await on.must_hold(count // 2, count - count // 2)
        await on.add_speakers(settings.sessions, settings.nodes)
        await on.speakers.act("tolerate")
        await on.speakers.act("pace", per_s=settings.storm_jobs_per_s)
        await asyncio.sleep(settings.warmup_s)
        rounds: dict[str, list[Quantities]] = {name: [] for name in STORMS}
        for _ in range(settings.storms):
            for name, jitter in STORMS.items():
                on_step(f"{count:,} sockets go and come back, {'with' if jitter else 'without'} jitter")
                before = {f"before_{what}": value for what, value in (await _calm(on, settings.seconds)).items()}
                rounds[name].append(before | await _one(on, settings, jitter))
                await asyncio.sleep(CALM_S)
        found = {f"{name}_{what}": value for name in STORMS for what, value in together(rounds[name]).items()}
        spoken = await on.speakers.act("rest")
    failed = sum(spoken["errors"].values())
    found |= {"jobs_failed": failed, "jobs_lost": spoken["said"] - spoken["results"] - failed}
    return found | {"jobs_doubled": spoken["doubled"], "speakers_closed": spoken["failed"]}


def together(rounds: Sequence[Quantities]) -> Quantities:
    return medians(rounds) | {what: max(one[what] for one in rounds) for what in NEVER if what in rounds[0]}


async def _calm(on: Stage, seconds: float) -> Quantities:
    await on.fleet.act("time")
    await asyncio.sleep(seconds)
    return await _dispatch(on)


async def _one(on: Stage, settings: Settings, jitter: bool) -> Quantities:
    """From the moment they are gone until all are back; those who are not after a while are counted as missing."""
    await on.fleet.act("time")
    async with watching(on) as watched:
        until = monotonic() + settings.storm_patience_s
        await on.idlers.act("drop", jitter=jitter)
        told = await on.idlers.act("count")
        while told["back_s"] is None and monotonic() < until:
            await asyncio.sleep(LOOK_S)
            told = await on.idlers.act("count")
    return {
        **await _dispatch(on),
        "back_s": told["back_s"] if told["back_s"] is not None else settings.storm_patience_s,
        "missing": told["sockets"] - told["open"],
        "refused": sum(told["refused"].values()),
        "resumed": told["resumed"],
        "lag_p99_ms": watched.lag_p99_ms,
        "cpu_share": watched.cpu_share,
    }


async def _dispatch(on: Stage) -> Quantities:
    """From the cut, and from the moment the client spoke, to the node."""
    told = await on.fleet.act("times")
    found: Quantities = {"nodes_closed": sum(told["closed"].values())}
    for start, name in (("cut", "dispatch"), ("said", "said")):
        if start in told:
            found |= {f"{name}_{share}_ms": told[start][f"{share}_us"] / 1e3 for share in ("p50", "p99")}
    return found
