"""All that a speech bench has running: instances on the Redis under test, a fleet of nodes, speakers.

    speakers ──▶ instances ──▶ nodes         each a process of its own, every instance one
                    │
                  Redis

`async with harness(…)` starts them; whatever happens inside, all of them have ended when it is left.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO
from uuid import uuid4

from dragoman.embedded.engine import free_port
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.instance_process import PLAIN, InstanceProcess, configured
from dragoman.tools.bench.load_process import LoadProcess
from dragoman.tools.bench.processes import cpu_s, rss_bytes
from dragoman.tools.bench.servers import Servers

SLOTS = 256  # more than there are speakers to fill: whether a node is full is not the question here
OPEN_PATIENCE_S = 300.0
LANGUAGE = ("es",)


@dataclass(frozen=True, slots=True)
class Used:
    """What came back, and what it took, between two looks."""

    seconds: float
    results: int
    instance_cpu_s: float
    redis_cpu_s: float

    @property
    def per_s(self) -> float:
        return self.results / self.seconds

    @property
    def cpu_ms_per_job(self) -> float:
        return self.instance_cpu_s / self.results * 1e3

    @property
    def redis_cpu_ms_per_job(self) -> float:
        return self.redis_cpu_s / self.results * 1e3


@dataclass(frozen=True, slots=True)
class Harness:
    servers: Servers
    instances: Sequence[InstanceProcess]
    fleet: LoadProcess
    speakers: LoadProcess

    async def add_nodes(
        self, count: int, languages: Sequence[str] = LANGUAGE, at: Sequence[InstanceProcess] = ()
    ) -> None:
        """Dealt out to the instances, or to those `at`; each writes one of the languages in turn."""
        urls = [one.url for one in at or self.instances]
        dealt = {"urls": urls, "count": count, "languages": list(languages)}
        opened = await self.fleet.act("open", OPEN_PATIENCE_S, slots=SLOTS, **dealt)
        for one in self.instances:
            await one.sees(opened["nodes"])

    async def add_sessions(
        self, count: int, languages: Sequence[str] = LANGUAGE, at: Sequence[InstanceProcess] = ()
    ) -> None:
        """Dealt out to the instances, or to those `at`, and at each of them to the languages."""
        urls = [one.url for one in at or self.instances]
        await self.speakers.act("open", OPEN_PATIENCE_S, urls=urls, count=count, languages=list(languages))

    async def loop(self) -> None:
        """Every session speaks as soon as it was answered."""
        await self.speakers.act("loop")

    async def pace(self, per_s: float) -> None:
        """So many utterances a second, of the sessions in turn."""
        await self.speakers.act("pace", per_s=per_s)

    async def measure(self, seconds: float) -> Used:
        """The load that is on."""
        began, before = asyncio.get_running_loop().time(), await self._look()
        await asyncio.sleep(seconds)
        took_s, after = asyncio.get_running_loop().time() - began, await self._look()
        results, cpu, redis_cpu = (new - old for old, new in zip(before, after, strict=True))
        if not results:
            raise BenchError("No result came back while it was measured.")
        return Used(took_s, int(results), cpu, redis_cpu)

    async def rest(self) -> None:
        """Nobody says anything more; what was said must have been answered."""
        count = await self.speakers.act("rest")
        _refuse(count["failures"])
        if count["results"] < count["said"]:
            raise BenchError(f"{count['said'] - count['results']} of {count['said']} utterances were never answered.")

    def cpu_s(self) -> float:
        return sum(cpu_s(one.pid) for one in self.instances)

    def rss_bytes(self) -> int:
        return sum(rss_bytes(one.pid) for one in self.instances)

    async def _look(self) -> tuple[float, float, float]:
        count = await self.speakers.act("count")
        _refuse(count["failures"])
        return count["results"], self.cpu_s(), self.servers.cpu_s()


def _refuse(failures: Sequence[str]) -> None:
    """An answer that was an error is not counted as a slow one: it ends the bench."""
    if failures:
        raise BenchError(f"A session heard what it should not have: {failures[0]}")


@asynccontextmanager
async def harness(servers: Servers, instances: int = 1, module: str = PLAIN) -> AsyncIterator[Harness]:
    servers.clear()
    with ExitStack() as stack:
        log = stack.enter_context(TemporaryFile())
        started = _instances(servers, instances, module, log, stack)
        # They load while the instances do.
        fleet, speakers = [
            stack.enter_context(await LoadProcess.start(f"dragoman.tools.bench.{name}", log))
            for name in ("fleet_load", "speaker_load")
        ]
        for one in started:
            await one.ready()
        yield Harness(servers, started, fleet, speakers)


def _instances(servers: Servers, count: int, module: str, log: IO[bytes], stack: ExitStack) -> list[InstanceProcess]:
    prefix = f"bench-{uuid4().hex[:8]}"
    configs = [configured(servers.urls[0], prefix, f"bench-{number}", free_port()) for number in range(1, count + 1)]
    return [stack.enter_context(InstanceProcess(config, log, module)) for config in configs]
