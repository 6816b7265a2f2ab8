"""What `bench store` concludes from its figures: ratios, tables, and a sentence for a peer that was left out."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from dragoman.tools.bench.environment import Mode
from dragoman.tools.bench.redis_clients import MULTIPLEXING, REDIS_PY
from dragoman.tools.report import Report, number, table

OURS, PEER = "dragoman", "redis_py"
PEERS = {PEER: REDIS_PY, **MULTIPLEXING}  # as they are shown, by the name in figures
CALLERS = (1, 100, 1000)
MOST = CALLERS[-1]
COMPARED = tuple(
    f"{mode}_{calls}_{MOST}_vs_redis_py" for mode in ("single", "cluster") for calls in ("command", "script")
)
SMALLEST = f"vs_redis_py_{MOST}"

Figures = Mapping[str, float]


def conclude(report: Report, modes: Sequence[Mode], left_out: Mapping[str, str]) -> None:
    report.settings["left_out"] = dict(left_out)
    report.ratios = ratios(report.figures)
    for mode in modes:
        report.tables += [
            calls_table(mode, report.figures, report.ratios),
            *([clients_table(report.figures)] if mode == "single" else []),
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
            for who in PEERS:
                if theirs := figures.get(f"{case}_{who}_client_us"):
                    found[f"{case}_client_cpu_vs_{who}"] = theirs / ours
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


def clients_table(figures: Figures) -> Table:
    """CPU time of one call in the client, and calls per second, of all clients on one server."""
    rows = []
    for calls in ("command", "script"):
        for callers in CALLERS:
            names = [f"single_{calls}_{callers}_{who}" for who in (OURS, *PEERS)]
            cpu = [number(figures.get(f"{name}_client_us")) for name in names]
            per_s = [number(figures.get(f"{name}_per_s")) for name in names]
            cells = [f"{us} µs, {rate}/s" for us, rate in zip(cpu, per_s, strict=True)]
            rows.append([f"{calls}, {callers:,}", *cells])
    return table("single: CPU time of one call in the client", ["calls, callers", "Dragoman", *PEERS.values()], rows)


def latency_table(mode: Mode, figures: Figures) -> Table:
    names = {"PING, bare socket": "ping", "GET, Dragoman": f"call_{OURS}"}
    names |= {f"GET, {shown}": f"call_{who}" for who, shown in PEERS.items()}
    rows = [
        [title, *(number(figures.get(f"{mode}_{name}_{share}_us")) for share in ("p50", "p99"))]
        for title, name in names.items()
    ]
    return table(f"{mode}: one call at a time", ["", "p50 µs", "p99 µs"], rows)


def job_table(mode: Mode, figures: Figures) -> Table:
    quantities = ("per_s", "client_us", "server_us", "writes", "assign_p50_us", "assign_p99_us")
    rows = [
        [f"{concurrent:,}", *(number(figures.get(f"{mode}_job_{concurrent}_{quantity}")) for quantity in quantities)]
        for concurrent in CALLERS
    ]
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
