"""What `bench speech` concludes from its figures: ratios, tables, and a sentence for a peer that was left out."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from dragoman.tools.bench.peers.queue import PEERS
from dragoman.tools.bench.report import Report, number, table

Figures = Mapping[str, float]

NAMES = {"jobs_cpu_ms": "cpu_ms_per_job", "jobs_redis_cpu_ms": "redis_cpu_ms_per_job"}
BEST = "vs_best_queue"


def conclude(report: Report, left_out: Mapping[str, str]) -> None:
    report.settings["left_out"] = dict(left_out)
    report.figures = {NAMES.get(name, name): value for name, value in report.figures.items()}
    figures = report.figures
    report.ratios = ratios(figures)
    report.tables.append(throughput_table(figures, report.ratios))
    for what in ("nodes", "sessions", "instances"):
        if sizes(figures, what):
            report.tables.append(growth_table(figures, report.ratios, what))
    report.notes += [
        *notes(figures),
        *(f"Left out: {why.rstrip('.')}." for why in left_out.values()),
        verdict(report.ratios),
    ]


def ratios(figures: Figures) -> dict[str, float]:
    """Our jobs over a peer's tasks; the cost of a job at each size over that at the smallest."""
    found = {f"vs_{name}": figures["jobs_per_s"] / figures[f"{name}_per_s"] for name in measured(figures)}
    if found:
        found[BEST] = min(found.values())
    for what in ("nodes", "sessions", "instances"):
        first, *others = sizes(figures, what) or [0]
        for size in others:
            cost, least = (figures[f"{what}_{each}_cpu_ms"] for each in (size, first))
            found[f"{what}_{size}_vs_{first}"] = cost / least
    return found


def measured(figures: Figures) -> list[str]:
    return [name for name in PEERS if f"{name}_per_s" in figures]


def sizes(figures: Figures, what: str) -> list[int]:
    parts = (name.split("_") for name in figures if name.startswith(f"{what}_") and name.endswith("_cpu_ms"))
    return sorted(int(size) for _, size, *_ in parts)


def throughput_table(figures: Figures, found: Figures) -> Table:
    trips = number(figures.get("round_trips_before_assign"))
    rows = [
        [
            "Dragoman, whole jobs",
            number(figures["jobs_per_s"]),
            "",
            number(figures["cpu_ms_per_job"]),
            number(figures["redis_cpu_ms_per_job"]),
        ]
    ]
    rows += [
        [
            f"{name}, no-op tasks",
            number(figures[f"{name}_per_s"]),
            number(found[f"vs_{name}"], " ×"),
            number(figures[f"{name}_cpu_ms"]),
            number(figures[f"{name}_redis_cpu_ms"]),
        ]
        for name in measured(figures)
    ]
    title = f"one process each; a job waits for Redis {trips} times before it is assigned"
    return table(title, ["", "per second", "we are", "its CPU ms each", "Redis CPU ms each"], rows)


def growth_table(figures: Figures, found: Figures, what: str) -> Table:
    first, *_ = sizes(figures, what)
    rows = [
        [
            f"{size:,}",
            number(figures[f"{what}_{size}_cpu_ms"]),
            number(found.get(f"{what}_{size}_vs_{first}"), " ×") if size != first else "",
            number(figures[f"{what}_{size}_per_s"]),
        ]
        for size in sizes(figures, what)
    ]
    crossing = ", half the jobs crossing" if what == "instances" else ""
    return table(f"{what}{crossing}: what a job costs", [what, "CPU ms a job", "", "jobs/s"], rows)


def notes(figures: Figures) -> Iterator[str]:
    if (idle := figures.get("idle_session_kb")) is not None:
        yield f"An idle session takes {idle:.1f} KB of the instance."
    for name in measured(figures):
        if figures[f"{name}_least_waiting"] <= 0:
            yield f"{name} ran out of tasks at times: its producer, not its worker, set the pace."


def verdict(found: Figures) -> str:
    if BEST not in found:
        return "There is no queue to compare with."
    best = min(measured_ratios(found), key=found.__getitem__)
    return f"{found[BEST]:.2f} × the best of the queues, which is {best.removeprefix('vs_')}."


def measured_ratios(found: Figures) -> list[str]:
    return [f"vs_{name}" for name in PEERS if f"vs_{name}" in found]
