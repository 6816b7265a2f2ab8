"""The most of each alone: sockets of one instance, messages a second, jobs a second."""

import asyncio

from dragoman.tools.bench import chat_max, chat_stage
from dragoman.tools.bench.chat_stage import Ground, Setup
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.harness import harness
from dragoman.tools.bench.pressure.settings import Settings
from dragoman.tools.bench.pressure.stage import stage
from dragoman.tools.bench.pressure.watch import watching
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.rounds import Quantities

SPARE_FILES = 300  # of a process with many sockets, for everything else


async def sockets(below: Ground, settings: Settings, on_step: OnStep) -> Quantities:
    """As many as the files of one process allow, or as were asked for; first of speech, then of chat."""
    found: Quantities = {}
    for kind in ("speech", "chat"):
        on_step(f"{settings.most_sockets:,} idle sockets of {kind}")
        async with stage(below, 1) as on:
            await on.add_idle(*_of(kind, 1))  # whatever only the first one costs
            before = on.rss_bytes()
            told = await on.add_idle(*_of(kind, settings.most_sockets))
            async with watching(on) as watched:
                await asyncio.sleep(settings.hold_s)
            told = await on.idlers.act("count")
            found |= {
                f"{kind}_held": told["open"],
                f"{kind}_kb": (watched.rss[-1][1] - before) / max(told["open"], 1) / 1024,
                f"{kind}_refused": sum(told["refused"].values()),
                f"{kind}_closed": sum(told["closed"].values()),
                f"{kind}_lag_p99_ms": watched.lag_p99_ms,
                f"{kind}_cpu_share": watched.cpu_share,
            }
    return found


def _of(kind: str, count: int) -> tuple[int, int]:
    return (count, 0) if kind == "speech" else (0, count)


async def messages(below: Ground, settings: Settings, on_step: OnStep) -> Quantities:
    """Rates rise by a quarter until one is not kept up with, as `bench chat --max` has it."""
    async with chat_stage.stage(below, Setup(users=settings.users)) as on:
        sustained, beyond = await chat_max.climb(
            on, settings.first_rate, settings.seconds / 2, on_step, settings.most_steps
        )
    if not sustained:
        raise BenchError(f"{beyond:,.0f} messages a second are more than is kept up with; see --first-rate.")
    return {"max_per_s": sustained, "beyond_per_s": beyond}


async def jobs(below: Ground, settings: Settings, on_step: OnStep) -> Quantities:
    """Every session speaks as soon as it was answered: as many as there can be."""
    on_step("as many jobs as there can be")
    async with harness(below.servers, settings.instances) as cast:
        await cast.add_nodes(settings.nodes)
        await cast.add_sessions(settings.sessions)
        await cast.loop()
        await asyncio.sleep(settings.warmup_s)
        used = await cast.measure(settings.seconds)
        await cast.rest()
    return {"max_per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job}
