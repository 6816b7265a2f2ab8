"""Chat with a database that is slow to commit: the proxy in front of it, the table, and the ratios.

Answers to COMMIT of PostgreSQL come later by a fixed time, each on its own connection, as from a database far away. The
transaction is committed by then, so its locks are not held meanwhile.
"""

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from rich.table import Table

from dragoman.tools.bench.measure import Quantities
from dragoman.tools.processes import LoadProcess
from dragoman.tools.report import Report, number, table
from dragoman.tools.verify.tcp_proxy import MODULE as PROXY

Samples = Mapping[str, Sequence[Quantities]]
DELAY_PLAIN = "sqlite_deliver_first"
MODES = {"off": "one-phase", "save_first": "save-first", "deliver_first": "deliver-first"}
VS_ONE_PHASE, VS_NO_DELAY = 1.5, 1.2  # aims, received p50
PER_MESSAGE = ("cpu_ms_per_1000", "redis_cpu_ms_per_1000", "redis_commands_per_message", "socket_writes_per_message")


@asynccontextmanager
async def delayed(url: str, ms: int) -> AsyncIterator[str]:
    """The URL of the same database behind a proxy. With 0 ms as well: cases then differ only in the delay."""
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        with LoadProcess(PROXY, Path(folder) / "proxy.log") as proxy:
            opened = await proxy.call("open", links={"db": [url]})
            await proxy.call("delay", link="db", ms=ms)
            parts = urlsplit(url)
            port = urlsplit(opened["db"][0]).port
            user = f"{parts.username}@" if parts.username else ""
            yield parts._replace(netloc=f"{user}127.0.0.1:{port}").geturl()


def conclude_delays(report: Report, samples: Samples, delays_ms: Sequence[int]) -> None:
    report.ratios |= delay_ratios(samples, delays_ms)
    report.tables[:0] = [delay_table(report.figures, delays_ms), cost_table(report.figures, delays_ms)]
    report.notes += delay_notes(report.ratios, delays_ms)


def delay_ratios(samples: Samples, delays_ms: Sequence[int]) -> dict[str, float]:
    """Round by round, at the receiver: the median, and the smallest and largest."""
    found = _paired(samples, "deliver_first_vs_one_phase", "sqlite_deliver_first", "sqlite_off")
    for ms in delays_ms:
        if ms:
            found |= _paired(
                samples, f"db_delay_{ms}_vs_0", f"postgres_delay{ms}_deliver_first", "postgres_delay0_deliver_first"
            )
    return found


def _paired(samples: Samples, name: str, one: str, other: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for share in ("p50", "p99"):
        pairs = zip(samples.get(one, ()), samples.get(other, ()), strict=False)
        each = [mine[f"e2e_{share}_ms"] / theirs[f"e2e_{share}_ms"] for mine, theirs in pairs]
        if each:
            key = f"{name}_{share}"
            found |= {key: median(each), f"{key}_min": min(each), f"{key}_max": max(each)}
    return found


def _cases(figures: Mapping[str, float], delays_ms: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Name and title of those that were measured."""
    kinds = {"sqlite": "SQLite"} | {f"postgres_delay{ms}": f"PostgreSQL + {ms} ms" for ms in delays_ms}
    for kind, shown in kinds.items():
        for mode, words in MODES.items():
            if f"{kind}_{mode}_saved_p99_ms" in figures:
                yield f"{kind}_{mode}", f"{shown}, {words}"


def delay_table(figures: Mapping[str, float], delays_ms: Sequence[int]) -> Table:
    rows = []
    for name, title in _cases(figures, delays_ms):
        times = [
            " / ".join(number(figures.get(f"{name}_{what}_{share}_ms")) for share in ("p50", "p99"))
            for what in ("accepted", "e2e", "saved")
        ]
        lost = 1 - min(figures[f"{name}_saved_share"], figures[f"{name}_arrived_share"])
        wrong = f"{lost:.2%} · {figures[f'{name}_duplicates']:.0f} · {figures[f'{name}_reorders']:.0f}"
        rows.append([title, *times, wrong])
    columns = ["p50 / p99, ms", "accepted", "received", "saved", "lost · twice · disorder"]
    return table("what receivers and senders wait for, by how long a commit takes", columns, rows)


def cost_table(figures: Mapping[str, float], delays_ms: Sequence[int]) -> Table:
    rows = [
        [title, *(number(figures[f"{name}_{what}"]) for what in (*PER_MESSAGE, "aof_bytes_per_message"))]
        for name, title in _cases(figures, delays_ms)
    ]
    columns = ["per message", "CPU µs", "Redis µs", "commands", "writes", "AOF bytes"]
    return table(
        "what a message costs: CPU of instances and Redis, Redis commands, writes to clients, append-only file",
        columns,
        rows,
    )


def delay_notes(ratios: Mapping[str, float], delays_ms: Sequence[int]) -> Iterator[str]:
    aims = {"deliver_first_vs_one_phase_p50": ("SQLite: deliver-first over one-phase", VS_ONE_PHASE)}
    for ms in delays_ms:
        aims[f"db_delay_{ms}_vs_0_p50"] = (f"deliver-first on PostgreSQL: + {ms} ms over no delay", VS_NO_DELAY)
    for key, (words, aim) in aims.items():
        if (ratio := ratios.get(key)) is not None:
            interval = f"{ratios[f'{key}_min']:.2f}–{ratios[f'{key}_max']:.2f}"
            yield f"{words}, received p50: {ratio:.2f} × ({interval}; target: {aim:g})."
