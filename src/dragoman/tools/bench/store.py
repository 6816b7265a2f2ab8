"""`dragoman bench store`: our Redis layer beside redis-py, coredis and valkey-glide, and the cost of a job.

    command   SET and GET by turns
    script    a small script
    reserve   a larger one, most of which is the server's own work; at 1,000 callers only
    call      one GET at a time by one caller, timed, beside PING by a bare socket
    job       everything that one job asks of Redis (see `job_life`)

With 1, 100 and 1,000 callers, on a single server and on a Cluster (there beside redis-py only). All clients run in this
process, on the same loop, over TCP; CPU time includes the threads of a client. Answers are checked: a client that is
refused quickly is not fast.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from time import perf_counter
from typing import Any

import uvloop

from dragoman.embedded.binary import ServerBinary
from dragoman.store.errors import StoreError
from dragoman.store.instances import RENEW_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.link import Address
from dragoman.store.redis import Redis, connect
from dragoman.store.reservations import RELEASE_SLOT, RESERVE_SLOT
from dragoman.tools.bench.environment import Mode, Servers, running
from dragoman.tools.bench.job_life import NODES, RESERVATION_TTL_MS, SLOTS, JobLife, live, round_trips
from dragoman.tools.bench.measure import Body, Case, Findings, Going, Quantities, drive, in_turns, latency
from dragoman.tools.bench.ping import ping
from dragoman.tools.bench.redis_clients import (
    CONNECTIONS,
    MULTIPLEXING,
    Client,
    connect_multiplexing,
    connect_redis_py,
    releases,
)
from dragoman.tools.bench.store_tables import CALLERS, OURS, PEER, PEERS, conclude
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import OnStep, Report

CALL_SHARE = 0.3  # of the time of a measurement: a latency needs less
WARM_UP_S = 0.1
CONNECT_TIMEOUT_S = 15.0

SCRIPTS = (RENEW_IF_EQUAL, RESERVE_SLOT, RELEASE_SLOT)
VALUE = b"x" * 64
OWNER_TTL_MS = 45_000


async def commands(client: Client, caller: int, going: Going) -> int:
    """SET and GET by turns."""
    key, calls = f"bench:command:{caller}", 0
    while going.on or not calls:
        await client.call("SET", key, VALUE)
        if await client.call("GET", key) != VALUE:
            raise CannotRun(f"GET {key} did not answer what had been SET.")
        calls += 2
    return calls


async def scripts(client: Client, caller: int, going: Going) -> int:
    """A small script: an owner key renewed while it is ours."""
    key, owner, calls = f"bench:owner:{caller}", f"instance-{caller}", 0
    await client.call("SET", key, owner)
    while going.on or not calls:
        if await RENEW_IF_EQUAL(client, key=key, value=owner, ttl=OWNER_TTL_MS) != b"OK":
            raise CannotRun(f"{key} was not renewed.")
        calls += 1
    return calls


async def reserves(client: Client, caller: int, going: Going) -> int:
    """Two larger scripts: a slot of a node taken and given back."""
    key, job, calls = f"bench:{{node:{caller % NODES}}}:reserved", f"job-{caller}", 0
    while going.on or not calls:
        if await RESERVE_SLOT(client, reserved=key, job=job, ttl=RESERVATION_TTL_MS, limit=SLOTS) != b"OK":
            raise CannotRun(f"No slot of {key} was given.")
        if await RELEASE_SLOT(client, reserved=key, job=job, limit=SLOTS) != b"OK":
            raise CannotRun(f"No slot of {key} was taken back.")
        calls += 2
    return calls


async def one_by_one(client: Client, seconds: float) -> Quantities:
    """One caller, one GET at a time, each timed."""
    key, taken_s = "bench:call", list[float]()
    await client.call("SET", key, VALUE)
    until = perf_counter() + seconds
    while (asked := perf_counter()) < until or not taken_s:
        await client.call("GET", key)
        taken_s.append(perf_counter() - asked)
    return latency(taken_s)


Workload = Callable[[Client, int, Going], Coroutine[Any, Any, int]]

WORKLOADS: dict[str, tuple[Workload, tuple[int, ...]]] = {
    "command": (commands, CALLERS),
    "script": (scripts, CALLERS),
    "reserve": (reserves, CALLERS[-1:]),
}


@dataclass(frozen=True, slots=True)
class Settings:
    modes: tuple[Mode, ...] = ("single", "cluster")
    seconds: float = 1.0
    rounds: int = 3


@dataclass(slots=True)
class Bench:
    """The context of the cases."""

    servers: Servers
    seconds: float
    keys: Keys
    ours: Redis
    peers: dict[str, Client] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # why a peer cannot run

    def client(self, who: str) -> Client:
        if who == OURS:
            return self.ours
        if who not in self.peers:
            raise CannotRun(self.missing.get(who, "it is not there"))
        return self.peers[who]

    async def load(self, body: Body, callers: int) -> Quantities:
        self.servers.clear()
        server_cpu = self.servers.cpu_s()
        load = await drive(body, callers, self.seconds)
        return {
            "per_s": load.per_s,
            "client_us": load.us_each(load.client_cpu_s),
            "server_us": load.us_each(self.servers.cpu_s() - server_cpu),
        }


def steps(settings: Settings) -> int:
    """How often `on_step` will be called."""
    return settings.rounds * sum(len(cases(mode)) for mode in settings.modes)


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    """Measure; blocks until it is over. An interrupt ends it at once, and the servers with it."""
    report = Report(
        {
            "bench": "store",
            "modes": list(settings.modes),
            "seconds": settings.seconds,
            "rounds": settings.rounds,
            "callers": list(CALLERS),
            "server": str(binary),
            "loop": f"uvloop {version('uvloop')}",
            "peers": releases(),
        }
    )
    left_out: dict[str, str] = {}
    for mode in settings.modes:
        with running(mode, binary) as servers, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                findings = runner.run(_measure(servers, settings, on_step))
            except (StoreError, TimeoutError) as error:
                raise CannotRun(f"Redis ({mode}) failed the bench: {str(error) or 'no answer in time'}.") from error
        report.figures |= findings.figures
        left_out |= findings.left_out
    conclude(report, settings.modes, left_out)
    return report


async def _measure(servers: Servers, settings: Settings, on_step: OnStep) -> Findings:
    async with _connected(servers, settings.seconds) as bench:
        await _warm_up(bench)
        findings = await in_turns(cases(servers.mode), bench, settings.rounds, on_step)
        servers.clear()
        before_assign, in_all = await round_trips(bench.ours, bench.keys)
    findings.figures[f"{servers.mode}_round_trips_before_assign"] = before_assign
    findings.figures[f"{servers.mode}_round_trips"] = in_all
    return findings


@asynccontextmanager
async def _connected(servers: Servers, seconds: float) -> AsyncIterator[Bench]:
    ours = await connect(servers.urls, cluster=servers.clustered, name="dragoman-bench")
    bench = Bench(servers, seconds, Keys("bench"), ours)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await ours.wait_connected()
        for who in peers_of(servers.mode):
            try:
                bench.peers[who] = await _peer_client(who, servers)
            except Exception as error:  # whatever it is: a peer that cannot run is left out
                bench.missing[who] = str(error) or type(error).__name__
        yield bench
    finally:
        for client in bench.peers.values():
            await client.close()
        await ours.close()


async def _peer_client(who: str, servers: Servers) -> Client:
    if who == PEER:
        return await connect_redis_py(servers.urls, cluster=servers.clustered, scripts=SCRIPTS)
    return await connect_multiplexing(who, servers.urls, SCRIPTS)


def peers_of(mode: Mode) -> tuple[str, ...]:
    return (PEER, *MULTIPLEXING) if mode == "single" else (PEER,)


async def _warm_up(bench: Bench) -> None:
    """Open the connections and run everything once: what a process does only once is not measured."""
    shortly = replace(bench, seconds=min(WARM_UP_S, bench.seconds))
    for who in (OURS, *peers_of(bench.servers.mode)):
        for name, (workload, _) in WORKLOADS.items():
            warm = _load(bench.servers.mode, name, workload, CONNECTIONS, who)
            # A peer that fails here fails again where it is measured, and is left out there.
            await in_turns([warm], shortly, rounds=1)


# -- the cases ---------------------------------------------------------------------------------


def cases(mode: Mode) -> list[Case[Bench]]:
    """Compared cases stand side by side."""

    async def pinged(bench: Bench) -> Quantities:
        at = Address.parse(bench.servers.urls[0])
        return ping(at.host, at.port, bench.seconds * CALL_SHARE)

    return [
        Case(f"{mode}_ping", f"{mode}: PING", pinged),
        *(_call(mode, who) for who in (OURS, *peers_of(mode))),
        *(
            _load(mode, name, workload, callers, who)
            for name, (workload, counts) in WORKLOADS.items()
            for callers in counts
            for who in (OURS, *peers_of(mode))
        ),
        *(_jobs(mode, concurrent) for concurrent in CALLERS),
    ]


def _call(mode: Mode, who: str) -> Case[Bench]:
    async def run(bench: Bench) -> Quantities:
        return await one_by_one(bench.client(who), bench.seconds * CALL_SHARE)

    return Case(f"{mode}_call_{who}", f"{mode}: one GET at a time, {_peer(who) or who}", run, _peer(who))


def _load(mode: Mode, name: str, workload: Workload, callers: int, who: str) -> Case[Bench]:
    async def run(bench: Bench) -> Quantities:
        client = bench.client(who)
        return await bench.load(lambda caller, going: workload(client, caller, going), callers)

    title = f"{mode}: {name}, {callers:,} at a time, {_peer(who) or who}"
    return Case(f"{mode}_{name}_{callers}_{who}", title, run, _peer(who))


def _jobs(mode: Mode, concurrent: int) -> Case[Bench]:
    async def run(bench: Bench) -> Quantities:
        waits_s: list[float] = []
        written = bench.ours.flushes

        async def body(caller: int, going: Going) -> int:
            return await live(JobLife(bench.ours, bench.keys, caller), going, waits_s)

        found = await bench.load(body, concurrent)
        found["writes"] = (bench.ours.flushes - written) / len(waits_s)
        return found | {f"assign_{name}": value for name, value in latency(waits_s).items()}

    return Case(f"{mode}_job_{concurrent}", f"{mode}: {concurrent:,} jobs at a time", run)


def _peer(who: str) -> str:
    return PEERS.get(who, "")
