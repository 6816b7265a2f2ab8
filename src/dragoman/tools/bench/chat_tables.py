"""The conclusions of `bench chat`: plain names, ratios, tables, and whether the targets are met."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from dragoman.tools.report import Report, number, table

Figures = Mapping[str, float]

PLAIN = "sqlite_save_first"
DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
MODES = {"off": "off", "save_first": "save-first", "deliver_first": "deliver-first"}
SHARES = ("p50", "p95", "p99")
ACCEPTED_MS, PINGS = 20.0, 10.0
LAG_MS = 1000.0
SLOWDOWN = 1.5


def conclude(report: Report, rate: float, left_out: Mapping[str, str]) -> None:
    report.settings["left_out"] = dict(left_out)
    figures = report.figures
    plain = {name.removeprefix(f"{PLAIN}_"): value for name, value in figures.items() if name.startswith(f"{PLAIN}_")}
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
            number(figures[f"{name}_redis_cpu_ms_per_1000"]),
            number(figures[f"{name}_ping_p99_ms"]),
        ]
        for name in names
    ]
    columns = ["", "saved", "busy", "duplicates / reorders", "backlog", "CPU ms", "Redis CPU ms", "PING p99"]
    return table("outcome; CPU of both instances, and of Redis, per 1,000 messages", columns, rows)


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
    if (most := figures.get("max_per_s")) is not None:
        worse = figures["overload_worse"]
        yield (
            f"{most:,.0f} messages a second are sustained. At {figures['overload_per_s']:,.0f} a second "
            f"{figures['overload_server_busy']:,.0f} were refused with server_busy, {figures['overload_saved']:,.0f} "
            f"were saved, and {worse:,.0f} were neither."
        )


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
