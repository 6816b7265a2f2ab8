"""`dragoman bench chat`: messages at a steady rate, timed from the moment each was due.

    accepted  at its sender: the message is in Redis                    (two-phase only)
    saved     at its sender: it is a row
    e2e       at its receiver, which acknowledges it

Two instances, users spread over both, senders in turn, receivers at random, so half of the messages cross. The plain
run is save-first on SQLite, and its figures have plain names; those of further modes, databases and slowed commits are
`<database>_<mode>_…` and `<database>_slow_<mode>_…`.

With `--db-delay` the cases are all modes on SQLite, and on PostgreSQL behind a proxy that passes on each answer to
COMMIT so much later (`chat_delay`). The plain figures are then those of deliver-first on SQLite.

`--ramp` finds the highest rate that is sustained, and measures what happens below and above it (`chat_ramp`).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal
from uuid import uuid4

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.process import raise_file_limit
from dragoman.store.link import Address
from dragoman.tools.bench.chat_delay import DELAY_PLAIN, conclude_delays, delayed
from dragoman.tools.bench.environment import UNLIMITED, Backend, Database, Environment, backend, environment
from dragoman.tools.bench.instance_variants import COMMIT_MS, SLOWED
from dragoman.tools.bench.measure import Case, Quantities, in_turns
from dragoman.tools.processes import CannotRun, cpu_s
from dragoman.tools.report import OnStep, Report, described, number, table

MessagePath = Literal["off", "save_first", "deliver_first"]
PATHS: tuple[MessagePath, ...] = ("off", "save_first", "deliver_first")
INSTANCES = 2
SPARE_FILES = 500
PINGS_PER_S = 200.0
SAMPLE_S = 0.5
SHARDS_SETTLE_S = 3.0  # the first instance gives up half of the shards; the measurement begins after that
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    rate: float = 2000.0
    seconds: float = 20.0
    warmup_s: float = 5.0
    rounds: int = 3
    clients: int = 200
    pings: bool = False
    skew: int = 50
    db_delays_ms: tuple[int, ...] = ()
    modes: tuple[MessagePath, ...] = ("save_first",)
    databases: tuple[Database, ...] = ("sqlite",)
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """What one measurement is of."""

    database: Database = "sqlite"
    mode: MessagePath = "save_first"
    slow: bool = False
    clients: int = 200
    pings: bool = False
    skew: int = 50  # so many of a hundred clients are on the first instance
    db_delay_ms: int | None = None  # of a proxy in front of the database; None: there is no proxy
    max_backlog: int = 100_000

    def settings(self, archive_url: str) -> dict[str, object]:
        """Of the instances."""
        return {
            **UNLIMITED,
            "chat.two_phase.enabled": self.mode != "off",
            "chat.two_phase.deliver_before_saved": self.mode == "deliver_first",
            "chat.two_phase.max_backlog": self.max_backlog,
            "archive.url": archive_url,
        }


@dataclass(frozen=True, slots=True)
class Bench:
    """The context of the cases."""

    backend: Backend
    settings: Settings
    backlogs: dict[str, list[int]] = field(default_factory=dict)


def steps(settings: Settings) -> int:
    return len(cases(settings)) * settings.rounds


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    if not raise_file_limit(settings.clients + SPARE_FILES):
        raise CannotRun(f"{settings.clients:,} clients take more open files than the system allows (ulimit -Hn).")
    report = Report(described(settings, redis=str(binary)))
    with backend(binary) as servers:
        uvloop.run(_run(report, Bench(servers, settings), on_step))
    return report


async def _run(report: Report, bench: Bench, on_step: OnStep) -> None:
    findings = await in_turns(cases(bench.settings), bench, bench.settings.rounds, on_step)
    report.figures = findings.figures
    # Every half second of the last round, which a maximum cannot show.
    report.settings["backlog_over_time"] = bench.backlogs
    plain = DELAY_PLAIN if bench.settings.db_delays_ms else PLAIN
    conclude(report, bench.settings.rate, findings.left_out, plain)
    if bench.settings.db_delays_ms:
        conclude_delays(report, findings.samples, bench.settings.db_delays_ms)


def cases(settings: Settings) -> list[Case[Bench]]:
    """Compared cases stand side by side."""
    users = (settings.clients, settings.pings, settings.skew)
    if settings.db_delays_ms:
        delayed = [Setup("postgres", mode, False, *users, ms) for ms in settings.db_delays_ms for mode in PATHS]
        return [_case(one) for one in (*(Setup("sqlite", mode, False, *users) for mode in PATHS), *delayed)]
    return [
        _case(Setup(database, mode, slow, *users))
        for database in settings.databases
        for slow in ((False, True) if settings.slow else (False,))
        for mode in settings.modes
    ]


def _case(setup: Setup) -> Case[Bench]:
    delay = "" if setup.db_delay_ms is None else f"_delay{setup.db_delay_ms}"
    name = f"{setup.database}{'_slow' if setup.slow else ''}{delay}_{setup.mode}"

    async def run(bench: Bench) -> Quantities:
        settings = bench.settings
        async with chat_environment(bench.backend, setup) as chat:
            found = await chat.run(settings.rate, settings.warmup_s, settings.seconds)
            bench.backlogs[name] = chat.backlog
        refuse(found, setup)
        return quantities(found)

    title = f"{setup.database}, {setup.mode.replace('_', '-')}" + (f", {COMMIT_MS} ms a commit" if setup.slow else "")
    title += f", commit + {setup.db_delay_ms} ms" if setup.db_delay_ms else ""
    return Case(name, title, run, "PostgreSQL" if setup.database == "postgres" else "")


# -- one measurement -------------------------------------------------------------------------------


@dataclass(slots=True)
class ChatEnvironment:
    setup: Setup
    environment: Environment
    backlog: list[int] = field(default_factory=list)  # every half second of the last run
    _streams: list[str] = field(default_factory=list)

    async def run(self, rate: float, warmup_s: float, seconds: float, drain_s: float = DRAIN_S) -> dict[str, Any]:
        """Messages at that rate; what the users counted, and the CPU time it took."""
        servers, loads = self.environment.servers, self.environment.loads
        redis = Address.parse(servers.urls[0])
        await loads["chat"].call("pace", phases=[(rate, warmup_s + seconds)], name=f"m{uuid4().hex[:6]}")
        await asyncio.sleep(warmup_s)
        await loads["ping"].call("time", host=redis.host, port=redis.port, per_s=PINGS_PER_S)
        before, redis_before, used = self._cpu_s(), servers.cpu_s(), await Used.so_far(self.environment)
        await self._sample_backlog(seconds)
        each = [new - old for old, new in zip(before, self._cpu_s(), strict=True)]
        cpu, redis_cpu = sum(each), servers.cpu_s() - redis_before
        used = (await Used.so_far(self.environment)).since(used)
        pings = await loads["ping"].call("times")
        asked = {"warmup_s": warmup_s, "wait_s": drain_s, "expects_accepted": self.setup.mode != "off"}
        found = await loads["chat"].call("result", drain_s + DRAIN_S, **asked)
        found |= {f"ping_{share.removesuffix('_us')}_ms": us / 1e3 for share, us in pings["ping"].items()}
        thousands = rate * seconds / 1e3
        found |= {"cpu_ms_per_1000": cpu / thousands * 1e3, "redis_cpu_ms_per_1000": redis_cpu / thousands * 1e3}
        found["cpu_share_max"] = max(each) / cpu
        found |= used.per_message(rate * seconds)
        return found | {"backlog_max": max(self.backlog), "backlog_end": self._backlog()}

    async def _sample_backlog(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        self.backlog = [self._backlog()]
        while (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(SAMPLE_S, left))
            self.backlog.append(self._backlog())

    def _backlog(self) -> int:
        """Accepted and not saved: the length of the two streams of every shard."""
        node = self.environment.servers.nodes[0]
        if not self._streams:
            found = [node.call("KEYS", f"*im:stream:single_chat:{name}:*") for name in ("accepted", "to_save")]
            self._streams = [key for keys in found for key in keys]
        return sum(int(node.call("XLEN", key)) for key in self._streams)

    def _cpu_s(self) -> list[float]:
        return [cpu_s(one.pid) for one in self.environment.instances]


USED = ("redis_commands_per_message", "aof_bytes_per_message", "socket_writes_per_message")
# Commands that are not the instances': ours, and those that only look.
NOT_COUNTED = frozenset({"xlen", "info", "ping", "keys", "config|resetstat", "config|set", "bgrewriteaof"})


@dataclass(frozen=True, slots=True)
class Used:
    """What messages took so far: Redis commands, those inside scripts included; its append-only file; socket writes."""

    commands: int
    aof_bytes: int
    socket_writes: float

    @classmethod
    async def so_far(cls, environment: Environment) -> "Used":
        node = environment.servers.nodes[0]
        stats = [line.removeprefix("cmdstat_") for line in node.call("INFO", "commandstats").splitlines()]
        calls = (
            int(line.partition("calls=")[2].partition(",")[0])
            for line in stats
            if "calls=" in line and line.partition(":")[0] not in NOT_COUNTED
        )
        persistence = node.call("INFO", "persistence").splitlines()
        aof = next(int(line.partition(":")[2]) for line in persistence if line.startswith("aof_current_size:"))
        writes = [await one.metric("dragoman_gateway_writes_total") for one in environment.instances]
        return cls(sum(calls), aof, sum(writes))

    def since(self, before: "Used") -> "Used":
        return Used(
            self.commands - before.commands,
            self.aof_bytes - before.aof_bytes,
            self.socket_writes - before.socket_writes,
        )

    def per_message(self, messages: float) -> Quantities:
        used = (self.commands, self.aof_bytes, self.socket_writes)
        return {name: value / messages for name, value in zip(USED, used, strict=True)}


@asynccontextmanager
async def chat_environment(servers: Backend, setup: Setup) -> AsyncIterator[ChatEnvironment]:
    """Two instances on an empty database, with their users."""
    async with AsyncExitStack() as stack:
        url = servers.new_database(setup.database)
        if setup.db_delay_ms is not None:
            url = await stack.enter_async_context(delayed(url, setup.db_delay_ms))
        settings, module = setup.settings(url), SLOWED if setup.slow else ()
        started = environment(servers.servers, INSTANCES, ("chat", "ping"), settings=settings, module=module)
        one = await stack.enter_async_context(started)
        # The file must not be rewritten while its growth is measured.
        one.servers.nodes[0].call("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
        one.servers.nodes[0].call("BGREWRITEAOF")
        await one.add_users(setup.clients, pings=setup.pings, skew=setup.skew)
        await asyncio.sleep(SHARDS_SETTLE_S)
        yield ChatEnvironment(setup, one)


def refuse(found: dict[str, Any], setup: Setup) -> None:
    """An error is not counted as a slow answer: it ends the bench.

    Except with a slow database and two-phase off, which shows what that leads to.
    """
    if setup.slow and setup.mode == "off":
        return
    if found["failures"]:
        raise CannotRun(f"A user received what it should not have: {found['failures'][0]}.")
    if strange := found["errors"].keys() - {"server_busy"}:
        raise CannotRun(f"A user was refused with {sorted(strange)[0]}.")


def quantities(found: Mapping[str, Any]) -> Quantities:
    """What the users counted, as figures."""
    figures = {name: float(value) for name, value in found.items() if name.endswith("_ms")}
    if missing := [name for name, value in figures.items() if isnan(value)]:
        raise CannotRun(f"No message got as far as {missing[0].rpartition('_p')[0]}.")
    sent = found["sent"]
    counts = (
        "cpu_ms_per_1000",
        "cpu_share_max",
        "redis_cpu_ms_per_1000",
        "backlog_max",
        "backlog_end",
        "duplicates",
        "inversions",
    )
    for name in (*counts, *USED, "reorderByServerMsgId", "reorderByFrom", "server_busy"):
        figures[name] = float(found[name])
    figures["reorders"] = max(figures["reorderByServerMsgId"], figures["reorderByFrom"])
    figures["saved_share"] = found["saved_count"] / sent
    figures["arrived_share"] = found["arrived_count"] / sent
    figures["saved_per_s"] = found["saved_count"] / found["took_s"]
    return figures


# -- conclusions: plain names, ratios, tables, and whether the targets are met ----------------------

Figures = Mapping[str, float]

PLAIN = "sqlite_save_first"
DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
MODES = {"off": "off", "save_first": "save-first", "deliver_first": "deliver-first"}
SHARES = ("p50", "p95", "p99")
ACCEPTED_MS, PINGS = 20.0, 10.0
LAG_MS = 1000.0
SLOWDOWN = 1.5


def conclude(report: Report, rate: float, left_out: Mapping[str, str], of: str = PLAIN) -> None:
    report.settings["left_out"] = dict(left_out)
    figures = report.figures
    plain = {name.removeprefix(f"{of}_"): value for name, value in figures.items() if name.startswith(f"{of}_")}
    report.figures = plain | figures
    report.ratios = ratios(figures)
    names = measured(figures)
    report.tables += [latency_table(figures, names, rate), order_table(figures, names)]
    report.notes += [*(f"Left out: {why.rstrip('.')}." for why in left_out.values()), *notes(figures, report.ratios)]


def measured(figures: Figures) -> list[str]:
    """Cases, in the order in which they stand side by side."""
    all = (f"{db}{slow}_{mode}" for db in DATABASES for slow in ("", "_slow") for mode in MODES)
    return [name for name in all if f"{name}_saved_p99_ms" in figures]


def ratios(figures: Figures) -> dict[str, float]:
    """The wait of a message over that of a PING; a slow database over a fast one; the off path over two-phase."""
    found: dict[str, float] = {}
    for db in DATABASES:
        accepted = figures.get(f"{db}_save_first_accepted_p99_ms")
        if accepted is None:
            continue
        found[f"{db}_accepted_p99_vs_ping"] = accepted / figures[f"{db}_save_first_ping_p99_ms"]
        slow = figures.get(f"{db}_slow_save_first_accepted_p99_ms")
        if slow is not None:
            found[f"{db}_slow_accepted_p99"] = slow / accepted
        for kind, confirmed in (("", accepted), ("_slow", slow)):
            off = figures.get(f"{db}{kind}_off_saved_p99_ms")
            if off is not None and confirmed:
                found[f"{db}{kind}_off_vs_accepted_p99"] = off / confirmed
    if "sqlite_accepted_p99_vs_ping" in found:
        found["accepted_p99_vs_ping"] = found["sqlite_accepted_p99_vs_ping"]
    return found


def latency_table(figures: Figures, names: list[str], rate: float) -> Table:
    rows = []
    for name in names:
        times = [
            " / ".join(number(figures.get(f"{name}_{what}_{share}_ms")) for share in SHARES)
            for what in ("accepted", "saved", "e2e")
        ]
        rows.append([title(name), *times, number(figures.get(f"{name}_save_lag_p99_ms"))])
    columns = ["", "accepted ms", "saved ms", "received ms", "save lag p99"]
    return table(f"{rate:,.0f} messages a second, two instances; p50 / p95 / p99 from when each was due", columns, rows)


def order_table(figures: Figures, names: list[str]) -> Table:
    rows = [
        [
            title(name),
            f"{figures[f'{name}_saved_share']:.2%}",
            f"{figures[f'{name}_server_busy']:,.0f}",
            f"{figures[f'{name}_duplicates']:.0f} / {figures[f'{name}_reorders']:.0f}",
            f"{figures[f'{name}_backlog_max']:,.0f}",
            number(figures[f"{name}_cpu_ms_per_1000"]),
            f"{figures[f'{name}_cpu_share_max']:.0%}",
            number(figures[f"{name}_redis_cpu_ms_per_1000"]),
            number(figures[f"{name}_ping_p99_ms"]),
        ]
        for name in names
    ]
    columns = [
        "",
        "saved",
        "busy",
        "duplicates / reorders",
        "backlog",
        "CPU ms",
        "largest share",
        "Redis CPU ms",
        "PING p99",
    ]
    return table(
        "outcome; CPU of both instances, the share of one in it, and CPU of Redis, per 1,000 messages", columns, rows
    )


def title(name: str) -> str:
    db, _, mode = name.partition("_")
    slow = ", slow" if mode.startswith("slow_") else ""
    return f"{DATABASES[db]}{slow}, {MODES[mode.removeprefix('slow_')]}"


def notes(figures: Figures, found: Figures) -> Iterator[str]:
    if f"{PLAIN}_accepted_p99_ms" in figures:
        yield verdict(figures)
    for db, shown in DATABASES.items():
        if (ratio := found.get(f"{db}_slow_accepted_p99")) is not None:
            yield f"{shown} with 50 ms a commit: accepted p99 is {ratio:.2f} × that without (target: {SLOWDOWN:g} ×)."
        for kind, words in (("", ""), ("_slow", " with 50 ms a commit")):
            if (ratio := found.get(f"{db}{kind}_off_vs_accepted_p99")) is not None:
                yield f"{shown}{words}: with two-phase off a sender waits {ratio:.1f} × as long for its receipt (p99)."


def verdict(figures: Figures) -> str:
    plain = {name.removeprefix(f"{PLAIN}_"): value for name, value in figures.items()}
    allowed = max(ACCEPTED_MS, PINGS * plain["ping_p99_ms"])
    met = {
        f"accepted p99 {number(plain['accepted_p99_ms'])} ms (target: {number(allowed)})": plain["accepted_p99_ms"]
        <= allowed,
        f"{plain['saved_share']:.2%} saved": plain["saved_share"] == 1,
        f"save lag p99 {number(plain['save_lag_p99_ms'])} ms (target: {LAG_MS:,.0f})": plain["save_lag_p99_ms"]
        <= LAG_MS,
        f"{plain['duplicates']:.0f} duplicates, {plain['reorders']:.0f} reorders": not plain["duplicates"]
        and not plain["reorders"],
    }
    missed = [words for words, is_met in met.items() if not is_met]
    return f"Targets met: {'; '.join(met)}." if not missed else f"Targets missed: {'; '.join(missed)}."
