"""`dragoman bench store`: our Redis layer beside redis-py, coredis and valkey-glide, and what a job costs.

    command   SET and GET by turns
    script    a small script
    reserve   a larger one, most of which is the server's own work; at 1,000 callers only
    call      one GET at a time by one caller, timed, beside PING by a bare socket
    job       all that one job asks of Redis (see `job_life`)

With 1, 100 and 1,000 callers, on a single server and on a Cluster (there beside redis-py only). All clients run in this
process, on the same loop, over TCP; CPU time includes the threads of a client.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import uvloop

from dragoman.embedded.binary import ServerBinary
from dragoman.store.errors import StoreError
from dragoman.store.keys import Keys
from dragoman.store.link import Address
from dragoman.store.redis import Redis, connect
from dragoman.tools.bench import multiplexing_clients, redis_py
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.job_life import JobLife, live, round_trips
from dragoman.tools.bench.load import Body, Going, drive
from dragoman.tools.bench.ping import latency, ping
from dragoman.tools.bench.progress import OnStep
from dragoman.tools.bench.redis_py import Client
from dragoman.tools.bench.report import Report
from dragoman.tools.bench.rounds import Case, Findings, Quantities, in_turns
from dragoman.tools.bench.servers import Mode, Servers, running
from dragoman.tools.bench.store_tables import CALLERS, OURS, PEER, PEERS, conclude
from dragoman.tools.bench.store_workloads import SCRIPTS, commands, one_by_one, reserves, scripts

CALL_SHARE = 0.3  # of the time of a measurement: a latency needs less
WARM_UP_S = 0.1
CONNECT_PATIENCE_S = 15.0

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
    """What the cases are measured on."""

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
            raise BenchError(self.missing.get(who, "it is not there"))
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
            "peers": {redis_py.NAME: redis_py.release(), **multiplexing_clients.releases()},
        }
    )
    left_out: dict[str, str] = {}
    for mode in settings.modes:
        with running(mode, binary) as servers, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                findings = runner.run(_measure(servers, settings, on_step))
            except (StoreError, TimeoutError) as error:
                raise BenchError(f"Redis ({mode}) failed the bench: {str(error) or 'no answer in time'}.") from error
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
        async with asyncio.timeout(CONNECT_PATIENCE_S):
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
        return await redis_py.connect(servers.urls, cluster=servers.clustered, scripts=SCRIPTS)
    return await multiplexing_clients.connect(who, servers.urls, SCRIPTS)


def peers_of(mode: Mode) -> tuple[str, ...]:
    return (PEER, *multiplexing_clients.NAMES) if mode == "single" else (PEER,)


async def _warm_up(bench: Bench) -> None:
    """Open the connections and run everything once: what a process does only once is not measured."""
    shortly = replace(bench, seconds=min(WARM_UP_S, bench.seconds))
    for who in (OURS, *peers_of(bench.servers.mode)):
        for name, (workload, _) in WORKLOADS.items():
            warm = _load(bench.servers.mode, name, workload, redis_py.CONNECTIONS, who)
            # A peer that fails here fails again where it is measured, and is left out there.
            await in_turns([warm], shortly, rounds=1)


# -- the cases ---------------------------------------------------------------------------------


def cases(mode: Mode) -> list[Case[Bench]]:
    """Who is compared stands side by side."""

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
