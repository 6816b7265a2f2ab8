"""The results of a verification: one row a fault, as a table for people and as JSON for programs.

{commit, machine, settings, figures, ratios, rows}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dragoman.tools import report
from dragoman.tools.report import commit, machine, rounded, table

COUNTS = ("times", "promised", "kept", "lost", "tolerated", "duplicated", "out_of_order", "late")


@dataclass(frozen=True, slots=True)
class Row:
    """`tolerated` are lost within the durability class of Redis; `skipped` says why the fault was not injected."""

    fault: str
    title: str
    times: int = 0
    promised: int = 0
    kept: int = 0
    lost: int = 0
    tolerated: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    late: int = 0
    recovery: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # not a broken promise
    skipped: str = ""
    remark: str = ""  # what of the load was left out

    @property
    def holds(self) -> bool:
        return not self.findings

    def of_seed(self, seed: int) -> "Row":
        """The same, with the seed in every finding."""
        return replace(self, findings=tuple(f"seed {seed}: {one}" for one in self.findings))

    def combined(self, other: "Row") -> "Row":
        """Both rounds: the counts are added, and the slower recovery counts."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        asked = dict.fromkeys((*self.recovery, *other.recovery))
        slower = {one: max(self.recovery.get(one, 0.0), other.recovery.get(one, 0.0)) for one in asked}
        skipped = self.skipped and other.skipped
        findings, notes = self.findings + other.findings, self.notes + other.notes
        return replace(self, **counts, recovery=slower, findings=findings, notes=notes, skipped=skipped)


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row a fault, in the order of first appearance."""
    found: dict[str, Row] = {}
    for row in rows:
        found[row.fault] = found[row.fault].combined(row) if row.fault in found else row
    return list(found.values())


COLUMNS = ("fault", "times", "promised", "kept", "lost", "duplicated", "out of order", "late", "recovery", "verdict")
MAX_FINDINGS = 12


def shown(rows: Sequence[Row], title: str) -> Table:
    made = table(title, COLUMNS, [cells(row) for row in rows])
    made.columns[-2].justify = made.columns[-1].justify = "left"
    return made


def cells(row: Row) -> list[str]:
    if row.skipped:
        return [row.title, *["–"] * (len(COLUMNS) - 3), row.skipped, verdict(row)]
    counts = [str(count) for count in (row.times, row.promised, row.kept)]
    cells = [*counts, lost(row), str(row.duplicated), str(row.out_of_order), str(row.late)]
    return [row.title, *cells, "\n".join((recovery(row.recovery), *[row.remark] * bool(row.remark))), verdict(row)]


def lost(row: Row) -> str:
    """What Redis may lose by its durability class is counted apart: it was not promised."""
    return f"{row.lost} + {row.tolerated} in class" if row.tolerated else str(row.lost)


def verdict(row: Row) -> str:
    return "skipped" if row.skipped else "holds" if row.holds else "BROKEN"


def recovery(answers: Mapping[str, float]) -> str:
    return "\n".join(f"{question} {seconds:.2f} s" for question, seconds in answers.items()) or "–"


def findings(rows: Iterable[Row]) -> list[str]:
    """Every broken promise, under the fault that broke it."""
    sentences = []
    for row in rows:
        sentences += [f"{row.title}: {one}" for one in row.findings[:MAX_FINDINGS]]
        if len(row.findings) > MAX_FINDINGS:
            sentences.append(f"{row.title}: and {len(row.findings) - MAX_FINDINGS} more")
    return sentences


def show(rows: Sequence[Row], title: str, console: Console) -> None:
    console.print(shown(rows, title))
    for sentence in findings(rows):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)


# -- for programs ----------------------------------------------------------------------------------


def as_json(
    rows: Sequence[Row], settings: Mapping[str, object], on: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """`on`: the machine before anything was started."""
    done = [row for row in rows if not row.skipped]
    figures: dict[str, float] = {name: sum(getattr(row, name) for row in done) for name in COUNTS}
    figures["broken"] = sum(not row.holds for row in done)
    for row in done:
        figures |= {_name(row.fault, question): rounded(at) for question, at in row.recovery.items()}
    promised = figures["promised"]
    return {
        "commit": commit(),
        "machine": dict(on or machine()),
        "settings": dict(settings),
        "figures": figures,
        "ratios": {"kept_of_promised": rounded(figures["kept"] / promised) if promised else 0.0},
        "rows": [_row(row) for row in rows],
    }


def _row(row: Row) -> dict[str, Any]:
    recoveries = {question: rounded(seconds) for question, seconds in row.recovery.items()}
    counts = {name: getattr(row, name) for name in COUNTS}
    words = {
        "findings": list(row.findings),
        "notes": list(row.notes),
        "skipped": row.skipped,
        "remark": row.remark,
        "verdict": verdict(row),
    }
    return {"fault": row.fault, "title": row.title, **counts, "recovery_s": recoveries, **words}


def _name(fault: str, question: str) -> str:
    return f"recovery_{fault}_{question}_s".replace("-", "_").replace(" ", "_")


def write(results: Mapping[str, Any], path: Path) -> None:
    report.write(report.encoded(results), path)
