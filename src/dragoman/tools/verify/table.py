"""What is found, for people a table, for programs a file: `{commit, machine, settings, figures, ratios, rows}`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from dragoman.tools.bench.report import commit, machine, rounded, table
from dragoman.tools.verify.errors import CannotRun
from dragoman.tools.verify.rows import COUNTS, Row

COLUMNS = ("fault", "times", "told", "kept", "lost", "doubled", "out of order", "late", "recovery", "verdict")
MOST_FINDINGS = 12


def shown(rows: Sequence[Row], title: str) -> Table:
    made = table(title, COLUMNS, [cells(row) for row in rows])
    made.columns[-2].justify = made.columns[-1].justify = "left"
    return made


def cells(row: Row) -> list[str]:
    if row.absent:
        return [row.title, *["–"] * (len(COLUMNS) - 3), row.absent, verdict(row)]
    counts = [str(count) for count in (row.times, row.told, row.kept)]
    told = [*counts, lost(row), str(row.doubled), str(row.out_of_order), str(row.late)]
    return [row.title, *told, recovery(row.recovery), verdict(row)]


def lost(row: Row) -> str:
    """What Redis may forget by its durability class is told apart: it was promised to nobody."""
    return f"{row.lost} + {row.forgiven} in class" if row.forgiven else str(row.lost)


def verdict(row: Row) -> str:
    return "not here" if row.absent else "holds" if row.holds else "BROKEN"


def recovery(answers: Mapping[str, float]) -> str:
    return "\n".join(f"{question} {seconds:.2f} s" for question, seconds in answers.items()) or "–"


def findings(rows: Iterable[Row]) -> list[str]:
    """Every broken promise, under the fault that broke it."""
    said = []
    for row in rows:
        said += [f"{row.title}: {one}" for one in row.findings[:MOST_FINDINGS]]
        if len(row.findings) > MOST_FINDINGS:
            said.append(f"{row.title}: and {len(row.findings) - MOST_FINDINGS} more")
    return said


def show(rows: Sequence[Row], title: str, console: Console) -> None:
    console.print(shown(rows, title))
    for sentence in findings(rows):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)


# -- for programs ----------------------------------------------------------------------------------


def as_json(
    rows: Sequence[Row], settings: Mapping[str, object], on: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """`on`: the machine, as it was before anything was started."""
    done = [row for row in rows if not row.absent]
    figures: dict[str, float] = {name: sum(getattr(row, name) for row in done) for name in COUNTS}
    figures["broken"] = sum(not row.holds for row in done)
    for row in done:
        figures |= {_name(row.fault, question): rounded(at) for question, at in row.recovery.items()}
    told = figures["told"]
    return {
        "commit": commit(),
        "machine": dict(on or machine()),
        "settings": dict(settings),
        "figures": figures,
        "ratios": {"kept_of_told": rounded(figures["kept"] / told) if told else 0.0},
        "rows": [_row(row) for row in rows],
    }


def _row(row: Row) -> dict[str, Any]:
    recoveries = {question: rounded(seconds) for question, seconds in row.recovery.items()}
    counts = {name: getattr(row, name) for name in COUNTS}
    said = {"findings": list(row.findings), "notes": list(row.notes), "absent": row.absent, "verdict": verdict(row)}
    return {"fault": row.fault, "title": row.title, **counts, "recovery_s": recoveries, **said}


def _name(fault: str, question: str) -> str:
    return f"recovery_{fault}_{question}_s".replace("-", "_").replace(" ", "_")


def write(found: Mapping[str, Any], path: Path) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    except OSError as error:
        raise CannotRun(f"What was found cannot be written to {path}: {error.strerror}.") from error
