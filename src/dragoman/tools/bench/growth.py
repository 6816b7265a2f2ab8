"""What a job costs the instances when there is more of everything, and what a session costs that says nothing.

    growth      paced load, the same at every size: a job among thousands of nodes, or of sessions that are mostly
                silent, is to cost what it costs among ten
    scale-out   as many jobs as they manage, on one instance and on two

Everything an instance does meanwhile is counted with its jobs, heartbeats and renewals too.
"""

import asyncio
from dataclasses import dataclass

from dragoman.tools.bench.harness import Harness, harness
from dragoman.tools.bench.rounds import Quantities
from dragoman.tools.bench.servers import Servers

NODES, SESSIONS = 20, 200  # of what does not grow
LANGUAGES = ("es", "de")
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    warmup_s: float
    seconds: float


async def at_size(
    servers: Servers, span: Span, per_s: float, *, nodes: int = NODES, sessions: int = SESSIONS
) -> Quantities:
    async with harness(servers) as cast:
        await cast.add_nodes(nodes)
        await cast.add_sessions(sessions)
        await cast.pace(per_s)
        return await _cost(cast, span)


async def spread(servers: Servers, span: Span, instances: int) -> Quantities:
    """On one instance or two. Each language has its nodes at one of them and half of its sessions at either."""
    async with harness(servers, instances) as cast:
        await cast.add_nodes(NODES, LANGUAGES)
        await cast.add_sessions(SESSIONS, LANGUAGES)
        await cast.loop()
        return await _cost(cast, span)


async def idle(servers: Servers, sessions: int) -> Quantities:
    """Memory of the instance for each of so many open sessions."""
    async with harness(servers) as cast:
        await cast.add_nodes(1)
        await cast.add_sessions(1)  # whatever only the first one costs
        before = cast.rss_bytes()
        await cast.add_sessions(sessions)
        await asyncio.sleep(SETTLE_S)
        return {"session_kb": (cast.rss_bytes() - before) / sessions / 1024}


async def _cost(cast: Harness, span: Span) -> Quantities:
    await asyncio.sleep(span.warmup_s)
    used = await cast.measure(span.seconds)
    await cast.rest()
    return {"per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job}
