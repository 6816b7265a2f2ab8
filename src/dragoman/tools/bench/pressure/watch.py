"""What instances say of themselves while they are under load: how late their loops are, how much memory they have."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic

import aiohttp

from dragoman.tools.bench.instance_process import InstanceProcess
from dragoman.tools.bench.pressure.stage import Stage

SAMPLE_S = 1.0
ASK_S = 10.0
SETTLED = 1 / 3  # of the samples: what is filled for the first time is no leak
_BUCKET = "dragoman_loop_lag_seconds_bucket{le="
_BLOCKS = "dragoman_memory_blocks"

Buckets = Counter[float]


@dataclass(slots=True)
class Watched:
    """While a load was on."""

    rss: list[tuple[float, int]] = field(default_factory=list)  # when, bytes of all instances
    blocks: list[tuple[float, int]] = field(default_factory=list)  # when, pieces of memory of all their objects
    lag_p99_ms: float = 0.0
    lag_max_ms: float = 0.0
    cpu_share: float = 0.0  # of one core, all instances together

    @property
    def rss_mb(self) -> float:
        return self.rss[-1][1] / 2**20

    @property
    def growth_kb_per_min(self) -> float:
        """The slope of the memory, once the first third is over."""
        return _settled_slope(self.rss) * 60 / 1024

    @property
    def blocks_growth_per_min(self) -> float:
        """The same of what objects have. What a busy moment needed stays with the process; this does not."""
        return _settled_slope(self.blocks) * 60


@asynccontextmanager
async def watching(on: Stage) -> AsyncIterator[Watched]:
    watched = Watched()
    before, cpu, began = await lag(on.instances), on.cpu_s(), monotonic()
    sampling = [asyncio.create_task(work(on, watched)) for work in (_sample, _ask)]
    try:
        yield watched
    finally:
        for task in sampling:
            task.cancel()
        await asyncio.gather(*sampling, return_exceptions=True)
    watched.rss.append((monotonic(), on.rss_bytes()))
    watched.cpu_share = (on.cpu_s() - cpu) / (monotonic() - began)
    met = await lag(on.instances)
    met.subtract(before)
    watched.lag_p99_ms, watched.lag_max_ms = quantile(met, 0.99) * 1e3, quantile(met, 1.0) * 1e3


async def _sample(on: Stage, watched: Watched) -> None:
    while True:
        watched.rss.append((monotonic(), on.rss_bytes()))
        await asyncio.sleep(SAMPLE_S)


async def _ask(on: Stage, watched: Watched) -> None:
    while True:
        await asyncio.sleep(ASK_S)
        with suppress(aiohttp.ClientError, TimeoutError):  # who is too busy to answer is asked again
            blocks = sum([int((await _metrics(one.http))[_BLOCKS]) for one in on.instances])
            watched.blocks.append((monotonic(), blocks))


async def lag(instances: Sequence[InstanceProcess]) -> Buckets:
    """How often the loops were at most so late, of all instances since their start."""
    found: Buckets = Counter()
    for instance in instances:
        found.update(buckets(await _metrics(instance.http)))
    return found


async def _metrics(http: str) -> Mapping[str, float]:
    async with aiohttp.ClientSession(http, raise_for_status=True) as session, session.get("/api/v1/metrics") as answer:
        return dict(await answer.json())


def buckets(metrics: Mapping[str, float]) -> Buckets:
    """Of cumulative counts by upper bound, each bucket's own."""
    bounds = {name.removeprefix(_BUCKET).rstrip("}"): value for name, value in metrics.items() if _BUCKET in name}
    found: Buckets = Counter()
    below = 0.0
    for bound, count in sorted((float(bound), count) for bound, count in bounds.items()):
        found[bound] = int(count - below)
        below = count
    return found


def quantile(found: Buckets, share: float) -> float:
    """The upper bound of the bucket it is in; 0 when nothing was met."""
    wanted, running = share * found.total(), 0
    for bound, count in sorted(found.items()):
        running += count
        if running and running >= wanted:
            return bound
    return 0.0


def _settled_slope(samples: Sequence[tuple[float, int]]) -> float:
    return slope(samples[int(len(samples) * SETTLED) :])


def slope(samples: Sequence[tuple[float, int]]) -> float:
    """Least squares, per second; 0 of fewer than two moments."""
    if len(samples) < 2:
        return 0.0
    middle, mean = (sum(values) / len(samples) for values in zip(*samples, strict=True))
    spread = sum((at - middle) ** 2 for at, _ in samples)
    return sum((at - middle) * (size - mean) for at, size in samples) / spread if spread else 0.0
