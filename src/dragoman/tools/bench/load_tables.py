"""The conclusions of `bench load`: tables, ratios, and one sentence a part that says whether it is as it should be."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.table import Table

from dragoman.tools.bench.mixed_load import WRONG, Part
from dragoman.tools.bench.overload import STORMS
from dragoman.tools.report import Report, number, table

Figures = Mapping[str, float]

STORM_AIM = 5.0  # dispatch p99 in a storm, over that before it
OVERLOADS = ("chat", "speech", "fleet")


def conclude(report: Report, parts: Sequence[Part]) -> None:
    figures = report.figures
    report.ratios = ratios(figures)
    makers: dict[Part, Callable[[Figures], Table]] = {
        "sockets": sockets_table,
        "half": lambda all: mixed_table(all, "half"),
        "target": lambda all: mixed_table(all, "target"),
        "storm": lambda all: storm_table(all, report.ratios),
        "above": above_table,
    }
    report.tables += [makers[part](figures) for part in parts if part in makers]
    report.notes += [note for part in parts for note in notes(part, figures, report.ratios)]


def ratios(figures: Figures) -> dict[str, float]:
    """The wait of a job in a storm over that before it: from the cut, and from when it was sent."""
    found = {}
    for name in STORMS:
        for what in ("dispatch", "said"):
            during, before = (figures.get(f"storm_{name}_{when}{what}_p99_ms") for when in ("", "before_"))
            if during is not None and before:
                found[f"storm_{name}_{what}_p99"] = during / before
    return found


def wrong(figures: Figures, prefix: str) -> dict[str, float]:
    """What happened and must not."""
    return {what: figures[f"{prefix}{what}"] for what in WRONG if figures.get(f"{prefix}{what}")}


def notes(part: Part, figures: Figures, found: Mapping[str, float]) -> Iterator[str]:
    match part:
        case "messages":
            yield f"{figures['messages_max_per_s']:,.0f} messages a second are sustained."
        case "jobs":
            yield f"{figures['jobs_max_per_s']:,.0f} jobs a second are managed."
        case "half" | "target":
            yield f"{part.capitalize()}: {_verdict(wrong(figures, f'{part}_'))}"
        case "storm":
            for name in STORMS:
                ratio = found.get(f"storm_{name}_dispatch_p99")
                met = "" if ratio is None or ratio <= STORM_AIM else f", which is more than {STORM_AIM:g} ×"
                missing = figures[f"storm_{name}_missing"]
                yield (
                    f"Storm, {name.replace('_', ' ')}: dispatch p99 {number(ratio, ' ×')} of before{met}; all back in "
                    f"{number(figures[f'storm_{name}_back_s'])} s."
                    if not missing
                    else f"Storm, {name.replace('_', ' ')}: {missing:,.0f} were not back in time; dispatch p99 "
                    f"{number(ratio, ' ×')} of before."
                )
            yield f"Storm: {_verdict(wrong(figures, 'storm_'))}"
        case "above":
            for name in OVERLOADS:
                back = figures[f"above_{name}_recovery_s"]
                soon = f"as before {number(back)} s after it" if back >= 0 else "not as before within the timeout"
                yield f"Above, {name}: {_verdict(wrong(figures, f'above_{name}_'))} {soon.capitalize()}."


def _verdict(met: Mapping[str, float]) -> str:
    if not met:
        return "nothing lost, nothing duplicated, no client closed."
    return "wrong: " + ", ".join(f"{what} {count:,.0f}" for what, count in met.items()) + "."


def sockets_table(figures: Figures) -> Table:
    rows = [
        [
            kind,
            number(figures[f"sockets_{kind}_held"]),
            number(figures[f"sockets_{kind}_kb"]),
            number(figures[f"sockets_{kind}_lag_p99_ms"]),
            number(figures[f"sockets_{kind}_cpu_share"] * 100),
            number(figures[f"sockets_{kind}_closed"]),
        ]
        for kind in ("speech", "chat")
    ]
    columns = ["", "held", "KB each", "loop lag p99 ≤ ms", "CPU %", "closed"]
    return table("Idle sockets of one instance", columns, rows)


def mixed_table(figures: Figures, part: str) -> Table:
    def value(name: str) -> str:
        return number(figures.get(f"{part}_{name}"))

    rows = [
        ["asked for", value("jobs_per_s"), value("messages_per_s"), value("sockets")],
        ["sent in all", value("jobs_said"), value("messages_sent"), "–"],
        ["due, but not sent by the clients", "–", value("messages_unsent"), "–"],
        ["answered, saved, closed", value("jobs_answered"), value("messages_saved"), value("sockets_closed")],
        ["refused for now", value("backpressure"), value("server_busy"), "–"],
        ["failed, refused otherwise", value("jobs_failed"), value("messages_refused_otherwise"), "–"],
        ["lost", value("jobs_lost"), value("messages_lost"), "–"],
        ["doubled", value("jobs_doubled"), value("messages_doubled"), "–"],
        ["dispatch, accepted p99 ms", value("dispatch_p99_ms"), value("accepted_p99_ms"), "–"],
    ]
    about = (
        f"{part.capitalize()}: loop lag p99 ≤ {value('lag_p99_ms')} ms, {value('rss_mb')} MB, "
        f"{figures[f'{part}_rss_growth_kb_per_min']:+,.0f} KB a minute, {value('blocks')} memory blocks, "
        f"{figures[f'{part}_blocks_growth_per_min']:+,.0f} a minute, {figures[f'{part}_cpu_share']:.0%} of a core"
    )
    return table(about, ["", "jobs", "messages", "sockets"], rows)


def storm_table(figures: Figures, found: Mapping[str, float]) -> Table:
    rows = []
    for name in STORMS:
        of = f"storm_{name}_"
        rows.append(
            [
                name.replace("_", " "),
                number(figures.get(f"{of}before_dispatch_p99_ms")),
                number(figures.get(f"{of}dispatch_p99_ms")),
                number(found.get(f"storm_{name}_dispatch_p99"), " ×"),
                number(found.get(f"storm_{name}_said_p99"), " ×"),
                number(figures[f"{of}back_s"]),
                number(figures[f"{of}refused"]),
                number(figures[f"{of}missing"]),
            ]
        )
    columns = ["storm", "dispatch p99 before ms", "during", "ratio", "sent ratio", "back s", "refusals", "missing"]
    return table("Sockets that are gone at once and come back", columns, rows)


def above_table(figures: Figures) -> Table:
    def row(title: str, *names: str) -> list[str]:
        cells = []
        for kind in OVERLOADS:
            values = [figures[key] for name in names if (key := f"above_{kind}_{name}") in figures]
            cells.append(number(sum(values)) if values else "–")
        return [title, *cells]

    rows = [
        row("sent", "messages_sent", "jobs_said"),
        row("saved, answered", "messages_saved", "jobs_answered"),
        row("server_busy, backpressure", "server_busy", "backpressure"),
        row("failed for want of a node", "jobs_failed"),
        row("lost", "messages_lost", "messages_silent", "jobs_lost"),
        row("doubled", "messages_doubled", "jobs_doubled"),
        row("clients closed", "users_closed", "speakers_closed", "sockets_closed"),
        row("accepted, dispatch p99 ms", "accepted_p99_ms", "dispatch_p99_ms"),
        row("memory grown MB", "rss_grown_mb"),
        row("as before after s", "recovery_s"),
    ]
    return table("More than there is room for", ["", *OVERLOADS], rows)
