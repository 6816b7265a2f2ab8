"""What a job costs the instances when there is more of everything, and what a session costs that says nothing.

Paced load, the same at every size: a job in a thousand sessions that are mostly silent is to cost what it costs in
ten. Everything the instance does meanwhile is counted with it, heartbeats and renewals too.
"""

import asyncio
from dataclasses import dataclass

from dragoman.bench.ensemble import Ensemble, ensemble
from dragoman.bench.rounds import Quantities
from dragoman.bench.servers import Servers

NODES, SESSIONS = 20, 200  # of what does not grow
LANGUAGES = ("es", "de")
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Paced:
    per_s: float
    warmup_s: float
    seconds: float


async def at_size(servers: Servers, load: Paced, *, nodes: int = NODES, sessions: int = SESSIONS) -> Quantities:
    async with ensemble(servers) as cast:
        await cast.add_nodes(nodes)
        await cast.add_sessions(sessions)
        return await _cost(cast, load)


async def spread(servers: Servers, load: Paced, instances: int) -> Quantities:
    """On one instance or two. Each language has its nodes at one of them and half of its sessions at either."""
    async with ensemble(servers, instances) as cast:
        await cast.add_nodes(NODES, LANGUAGES)
        await cast.add_sessions(SESSIONS, LANGUAGES)
        return await _cost(cast, load)


async def idle(servers: Servers, sessions: int) -> Quantities:
    """Memory of the instance for each of so many open sessions."""
    async with ensemble(servers) as cast:
        await cast.add_nodes(1)
        await cast.add_sessions(1)  # whatever only the first one costs
        before = cast.rss_bytes()
        await cast.add_sessions(sessions)
        await asyncio.sleep(SETTLE_S)
        return {"session_kb": (cast.rss_bytes() - before) / sessions / 1024}


async def _cost(cast: Ensemble, load: Paced) -> Quantities:
    await cast.pace(load.per_s)
    await asyncio.sleep(load.warmup_s)
    used = await cast.measure(load.seconds)
    await cast.rest()
    return {"per_s": used.per_s, "cpu_ms": used.cpu_ms_per_job}
