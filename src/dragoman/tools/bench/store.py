"""`dragoman bench store`: our Redis layer beside redis-py, and the cost of a job.

    command   SET and GET by turns
    script    a small script
    reserve   a larger one, most of which is the server's own work; at 1,000 callers only
    call      one GET at a time by one caller, timed, beside PING by a bare socket
    job       everything that one job asks of Redis (see `job_life`)

With 1, 100 and 1,000 callers, on a single server and on a Cluster. Both clients run in this process, on the same loop,
over TCP. Answers are checked: a client that is refused quickly is not fast.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from time import perf_counter
from typing import Any

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.store.errors import StoreError
from dragoman.store.instances import RENEW_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.link import Address
from dragoman.store.nodes import RELEASE_SLOT, RESERVE_SLOT
from dragoman.store.redis import Redis, connect
from dragoman.tools.bench.environment import Mode, Servers, running
from dragoman.tools.bench.job_life import NODES, RESERVATION_TTL_MS, SLOTS, JobLife, live, round_trips
from dragoman.tools.bench.measure import Body, Case, Findings, Going, Quantities, drive, in_turns, latency, ping
from dragoman.tools.bench.redis_clients import CONNECTIONS, REDIS_PY, Client, connect_redis_py
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import OnStep, Report, figure_rows, number, table

OURS, PEER = "dragoman", "redis_py"
CLIENTS = {OURS: "", PEER: REDIS_PY}  # by the name in figures; the name of a peer
CALLERS = (1, 100, 1000)
MOST = CALLERS[-1]
COMPARED = tuple(
    f"{mode}_{calls}_{MOST}_vs_redis_py" for mode in ("single", "cluster") for calls in ("command", "script")
)
SMALLEST = f"vs_redis_py_{MOST}"

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
    peer: Client | Exception  # redis-py, or why it cannot run

    def client(self, who: str) -> Client:
        client = self.ours if who == OURS else self.peer
        if isinstance(client, Exception):
            raise client
        return client

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
            "peers": {REDIS_PY: version("redis")},
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
    peer: Client | Exception
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await ours.wait_connected()
        try:
            peer = await connect_redis_py(servers.urls, cluster=servers.clustered, scripts=SCRIPTS)
        except Exception as error:  # whatever it is: a peer that cannot run is left out
            peer = error
        yield Bench(servers, seconds, Keys("bench"), ours, peer)
        if not isinstance(peer, Exception):
            await peer.close()
    finally:
        await ours.close()


async def _warm_up(bench: Bench) -> None:
    """Open the connections and run everything once: what a process does only once is not measured."""
    shortly = replace(bench, seconds=min(WARM_UP_S, bench.seconds))
    for who in CLIENTS:
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
        *(_call(mode, who) for who in CLIENTS),
        *(
            _load(mode, name, workload, callers, who)
            for name, (workload, counts) in WORKLOADS.items()
            for callers in counts
            for who in CLIENTS
        ),
        *(_jobs(mode, concurrent) for concurrent in CALLERS),
    ]


def _call(mode: Mode, who: str) -> Case[Bench]:
    async def run(bench: Bench) -> Quantities:
        return await one_by_one(bench.client(who), bench.seconds * CALL_SHARE)

    return Case(f"{mode}_call_{who}", f"{mode}: one GET at a time, {CLIENTS[who] or who}", run, CLIENTS[who])


def _load(mode: Mode, name: str, workload: Workload, callers: int, who: str) -> Case[Bench]:
    async def run(bench: Bench) -> Quantities:
        client = bench.client(who)
        return await bench.load(lambda caller, going: workload(client, caller, going), callers)

    title = f"{mode}: {name}, {callers:,} at a time, {CLIENTS[who] or who}"
    return Case(f"{mode}_{name}_{callers}_{who}", title, run, CLIENTS[who])


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


# -- store tables ----------------------------------------------------------------------------------
#
# What `bench store` concludes from its figures: ratios, tables, and a sentence for a peer that was left out.


Figures = Mapping[str, float]


def conclude(report: Report, modes: Sequence[Mode], left_out: Mapping[str, str]) -> None:
    report.settings["left_out"] = dict(left_out)
    report.ratios = ratios(report.figures)
    for mode in modes:
        report.tables += [
            calls_table(mode, report.figures, report.ratios),
            latency_table(mode, report.figures),
            job_table(mode, report.figures),
        ]
    report.notes += [*missing(left_out), verdict(report.ratios)]


def ratios(figures: Figures) -> dict[str, float]:
    """Our throughput over the peer's, the peer's CPU time over ours, our latency over that of PING."""
    found: dict[str, float] = {}
    for name, ours in figures.items():
        if name.endswith(f"_{OURS}_per_s"):
            case = name.removesuffix(f"_{OURS}_per_s")
            if theirs := figures.get(f"{case}_{PEER}_per_s"):
                found[f"{case}_vs_redis_py"] = ours / theirs
        if name.endswith(f"_{OURS}_client_us"):
            case = name.removesuffix(f"_{OURS}_client_us")
            if theirs := figures.get(f"{case}_{PEER}_client_us"):
                found[f"{case}_client_cpu_vs_{PEER}"] = theirs / ours
        for share in ("p50", "p99"):
            if name.endswith(f"_call_{OURS}_{share}_us"):
                mode = name.removesuffix(f"_call_{OURS}_{share}_us")
                found[f"{mode}_call_vs_ping_{share}"] = ours / figures[f"{mode}_ping_{share}_us"]
    # The smallest of some would pass for the smallest of all.
    if all(name in found for name in COMPARED):
        found[SMALLEST] = min(found[name] for name in COMPARED)
    return found


def calls_table(mode: Mode, figures: Figures, found: Figures) -> Table:
    rows = []
    for calls in ("command", "script", "reserve"):
        for callers in CALLERS:
            ours, peer = (f"{mode}_{calls}_{callers}_{who}" for who in (OURS, PEER))
            if f"{ours}_per_s" not in figures:
                continue
            rows.append(
                [
                    f"{calls}, {callers:,}",
                    *(number(figures.get(f"{who}_per_s")) for who in (ours, peer)),
                    number(found.get(f"{mode}_{calls}_{callers}_vs_redis_py"), " ×"),
                    *(number(figures.get(f"{who}_{cpu}_us")) for cpu in ("client", "server") for who in (ours, peer)),
                ]
            )
    columns = ["calls, callers", "Dragoman/s", f"{REDIS_PY}/s", "ratio"]
    columns += ["client µs", f"({REDIS_PY})", "server µs", f"({REDIS_PY})"]
    return table(f"{mode}: calls per second, and the CPU time of one on either side", columns, rows)


def latency_table(mode: Mode, figures: Figures) -> Table:
    of = {"PING, bare socket": "ping", "GET, Dragoman": f"call_{OURS}", f"GET, {REDIS_PY}": f"call_{PEER}"}
    rows = figure_rows(figures, {title: f"{mode}_{name}_" for title, name in of.items()}, ("p50_us", "p99_us"))
    return table(f"{mode}: one call at a time", ["", "p50 µs", "p99 µs"], rows)


def job_table(mode: Mode, figures: Figures) -> Table:
    quantities = ("per_s", "client_us", "server_us", "writes", "assign_p50_us", "assign_p99_us")
    rows = figure_rows(figures, {f"{count:,}": f"{mode}_job_{count}_" for count in CALLERS}, quantities)
    columns = ["jobs at a time", "jobs/s", "client µs", "server µs", "writes", "until assigned, p50 µs", "p99 µs"]
    before, whole = (number(figures.get(f"{mode}_{name}")) for name in ("round_trips_before_assign", "round_trips"))
    return table(f"{mode}: a whole job, {before} round trips before it is assigned and {whole} in all", columns, rows)


def missing(left_out: Mapping[str, str]) -> list[str]:
    """One sentence a reason."""
    cases: dict[str, list[str]] = {}
    for case, reason in left_out.items():
        cases.setdefault(reason, []).append(case)
    return [f"Left out of {', '.join(names)}: {reason.rstrip('.')}." for reason, names in cases.items()]


def verdict(found: Figures) -> str:
    parts = [f"{name.split('_')[0]} {name.split('_')[1]} {found[name]:.1f} ×" for name in COMPARED if name in found]
    if SMALLEST in found:
        return f"With {MOST:,} callers at least {found[SMALLEST]:.1f} × {REDIS_PY} ({', '.join(parts)})."
    if parts:
        return f"With {MOST:,} callers, beside {REDIS_PY}: {', '.join(parts)}; the rest was not measured."
    return f"There is nothing to compare: {REDIS_PY} was left out."
