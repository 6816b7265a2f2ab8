"""Sockets, messages and jobs at the same time, and what the instances report meanwhile; settings of `bench load`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import isnan
from time import monotonic
from typing import Any, Literal, get_args
from uuid import uuid4

import aiohttp

from dragoman.tools.bench.chat import Setup
from dragoman.tools.bench.environment import SPEECH, Backend, Environment, environment
from dragoman.tools.bench.instance_variants import STAMPED
from dragoman.tools.bench.measure import Quantities
from dragoman.tools.processes import InstanceProcess

Part = Literal["sockets", "messages", "jobs", "half", "target", "storm", "above"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Settings:
    parts: tuple[Part, ...] = PARTS
    instances: int = 2  # of all parts but `sockets`, which is of one
    seconds: float = 8.0  # of each measurement
    warmup_s: float = 2.0
    minutes: float = 10.0  # of `half`
    share: float = 0.5  # of each alone that `half` asks for; less if the load needs the same cores
    hold_s: float = 20.0  # idle sockets: long enough for their owners to be renewed
    max_sockets: int = 50_000  # fewer where the files of a process do not allow it
    first_rate: float = 800.0  # messages a second, from which they rise
    max_steps: int = 12
    sessions: int = 200
    nodes: int = 20
    users: int = 200
    target_sockets: int = 10_000
    target_messages_per_s: float = 2000.0
    target_jobs_per_s: float = 200.0
    storm_sockets: int = 10_000
    storms: int = 3  # of each kind
    storm_jobs_per_s: float = 200.0
    storm_timeout_s: float = 60.0
    healthy_clients: int = 400  # idle sockets during an overload
    recovery_timeout_s: float = 30.0
    # What a part assumes if the part that measures it was left out.
    usual_sockets: int = 20_000
    usual_messages_per_s: float = 1500.0
    usual_jobs_per_s: float = 1000.0


QUICK = Settings(
    seconds=2.0,
    warmup_s=0.5,
    minutes=0.1,
    hold_s=1.0,
    max_sockets=200,
    first_rate=100.0,
    max_steps=4,
    sessions=20,
    nodes=4,
    users=20,
    target_sockets=200,
    target_messages_per_s=100.0,
    target_jobs_per_s=50.0,
    storm_sockets=200,
    storms=1,
    storm_jobs_per_s=50.0,
    storm_timeout_s=20.0,
    healthy_clients=20,
    usual_sockets=200,
    usual_messages_per_s=200.0,
    usual_jobs_per_s=200.0,
)

SAMPLE_S = 1.0
BLOCKS_EVERY_S = 10.0
SETTLED = 1 / 3  # of the samples is left out: memory that is used for the first time is no leak
_BUCKET = "dragoman_loop_lag_seconds_bucket{le="
_BLOCKS = "dragoman_memory_blocks"

Buckets = Counter[float]


@dataclass(slots=True)
class Samples:
    """Of the instances, while a load runs."""

    rss: list[tuple[float, int]] = field(default_factory=list)  # when, bytes of all instances
    blocks: list[tuple[float, int]] = field(default_factory=list)  # when, memory blocks of all their objects
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
        """The same of blocks of objects. The process keeps the memory of a busy moment; it does not keep its blocks."""
        return _settled_slope(self.blocks) * 60


@asynccontextmanager
async def sampling(running: Environment) -> AsyncIterator[Samples]:
    samples = Samples()
    before, cpu, began = await lag(running.instances), running.cpu_s(), monotonic()
    tasks = [asyncio.create_task(work(running, samples)) for work in (_sample_rss, _sample_blocks)]
    try:
        yield samples
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    samples.rss.append((monotonic(), running.rss_bytes()))
    samples.cpu_share = (running.cpu_s() - cpu) / (monotonic() - began)
    seen = await lag(running.instances)
    seen.subtract(before)
    samples.lag_p99_ms, samples.lag_max_ms = quantile(seen, 0.99) * 1e3, quantile(seen, 1.0) * 1e3


async def _sample_rss(running: Environment, samples: Samples) -> None:
    while True:
        samples.rss.append((monotonic(), running.rss_bytes()))
        await asyncio.sleep(SAMPLE_S)


async def _sample_blocks(running: Environment, samples: Samples) -> None:
    while True:
        await asyncio.sleep(BLOCKS_EVERY_S)
        with suppress(aiohttp.ClientError, TimeoutError):  # an instance that is too busy to answer is asked again
            blocks = sum([int((await _metrics(one.http))[_BLOCKS]) for one in running.instances])
            samples.blocks.append((monotonic(), blocks))


async def lag(instances: Sequence[InstanceProcess]) -> Buckets:
    """The histogram of the loop lag of all instances since their start."""
    found: Buckets = Counter()
    for instance in instances:
        found.update(buckets(await _metrics(instance.http)))
    return found


async def _metrics(http: str) -> Mapping[str, float]:
    async with aiohttp.ClientSession(http, raise_for_status=True) as session, session.get("/api/v1/metrics") as answer:
        return dict(await answer.json())


def buckets(metrics: Mapping[str, float]) -> Buckets:
    """The count of each bucket, from cumulative counts by upper bound."""
    bounds = {name.removeprefix(_BUCKET).rstrip("}"): value for name, value in metrics.items() if _BUCKET in name}
    found: Buckets = Counter()
    below = 0.0
    for bound, count in sorted((float(bound), count) for bound, count in bounds.items()):
        found[bound] = int(count - below)
        below = count
    return found


def quantile(found: Buckets, share: float) -> float:
    """The upper bound of the bucket that it is in; 0 if nothing was counted."""
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


DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Mix:
    sockets: int
    messages_per_s: float
    jobs_per_s: float

    def __str__(self) -> str:
        return f"{self.sockets:,} sockets, {self.messages_per_s:,.0f} messages/s, {self.jobs_per_s:,.0f} jobs/s"


def load_environment(
    servers: Backend, instances: int, max_backlog: int = Setup().max_backlog
) -> AbstractAsyncContextManager[Environment]:
    settings = Setup(max_backlog=max_backlog).settings(servers.new_database())
    return environment(servers.servers, instances, (*SPEECH, "chat", "idle"), settings=settings, module=STAMPED)


async def run_mix(servers: Backend, settings: Settings, mix: Mix, seconds: float) -> Quantities:
    async with load_environment(servers, settings.instances) as running:
        speakers, chat = running.loads["speakers"], running.loads["chat"]
        await running.add_all_idle(mix.sockets)
        await running.add_nodes(settings.nodes)
        await running.add_sessions(settings.sessions)
        await running.add_users(settings.users)
        await speakers.call("tolerate")
        await speakers.call("pace", per_s=mix.jobs_per_s)
        lasts_s = settings.warmup_s + seconds
        name = f"m{uuid4().hex[:6]}"
        await chat.call("pace", phases=[(mix.messages_per_s, lasts_s)], name=name, in_time=True)
        await asyncio.sleep(settings.warmup_s)
        await running.loads["nodes"].call("time")
        async with sampling(running) as samples:
            await asyncio.sleep(seconds)
        return await _counted(running, settings, samples)


async def _counted(running: Environment, settings: Settings, samples: Samples) -> Quantities:
    loads = running.loads
    dispatch = await loads["nodes"].call("times")
    # The last messages are being sent; the speakers go on meanwhile.
    asked = {"warmup_s": settings.warmup_s, "wait_s": DRAIN_S, "expects_accepted": True}
    chat = await loads["chat"].call("result", 2 * DRAIN_S, **asked)
    speech = await loads["speakers"].call("rest", 2 * DRAIN_S, wait_s=DRAIN_S)
    idle = await loads["idle"].call("count")
    return {
        **of_speech(speech, dispatch),
        **of_chat(chat),
        "sockets_closed": sum(idle["closed"].values()),
        "lag_p99_ms": samples.lag_p99_ms,
        "lag_max_ms": samples.lag_max_ms,
        "rss_mb": samples.rss_mb,
        "rss_growth_kb_per_min": samples.growth_kb_per_min,
        "blocks": samples.blocks[-1][1] if samples.blocks else 0,
        "blocks_growth_per_min": samples.blocks_growth_per_min,
        "cpu_share": samples.cpu_share,
    }


def of_speech(speech: dict[str, Any], dispatch: dict[str, Any]) -> Quantities:
    failed = sum(speech["errors"].values())
    return {
        "jobs_said": speech["sent"],
        "jobs_answered": speech["results"],
        "jobs_failed": failed,
        "jobs_lost": max(speech["sent"] - speech["results"] - failed, 0),
        "jobs_doubled": speech["doubled"],
        "jobs_cancelled": dispatch["cancelled"],
        "backpressure": sum(speech["backpressure"].values()),
        "speakers_closed": speech["failed"],
        "nodes_closed": sum(dispatch["closed"].values()),
        **{f"nodes_closed_{code}": count for code, count in dispatch["closed"].items()},
        **{f"jobs_failed_{code.lower()}": count for code, count in speech["errors"].items()},
        **{f"backpressure_{action.lower()}": count for action, count in speech["backpressure"].items()},
        "dispatch_p50_ms": dispatch["cut"]["p50_us"] / 1e3 if "cut" in dispatch else 0.0,
        "dispatch_p99_ms": dispatch["cut"]["p99_us"] / 1e3 if "cut" in dispatch else 0.0,
    }


def of_chat(chat: dict[str, Any]) -> Quantities:
    """`messages_lost` were accepted and not saved, `messages_silent` got no answer of any kind."""
    refused = sum(chat["errors"].values())
    timed = {f"{name}_p99_ms": float(chat[f"{name}_p99_ms"]) for name in ("accepted", "saved", "e2e")}
    return {
        "messages_sent": chat["sent"],
        "messages_unsent": chat["unsent"],
        "messages_saved": chat["saved_count"],
        "server_busy": chat["server_busy"],
        "messages_refused_otherwise": refused - chat["errors"].get("server_busy", 0),
        "messages_lost": max(chat["accepted_count"] - chat["saved_count"], 0),
        "messages_silent": max(chat["sent"] - chat["saved_count"] - chat["server_busy"], 0),
        "messages_doubled": chat["duplicates"],
        "messages_reordered": max(chat["reorderByFrom"], chat["reorderByServerMsgId"]),
        "messages_reordered_and_refused": chat["late_and_refused"],
        "users_closed": len(chat["failures"]),
        **{f"messages_told_{reason}": count for reason, count in chat["errors"].items()},
        **{name: ms for name, ms in timed.items() if not isnan(ms)},
    }


WRONG = (
    "jobs_lost",
    "jobs_doubled",
    "speakers_closed",
    "nodes_closed",
    "sockets_closed",
    "users_closed",
    "messages_lost",
    "messages_silent",
    "messages_doubled",
    "messages_reordered",
    "messages_refused_otherwise",
)
"""Counts that must be 0 under any load."""
