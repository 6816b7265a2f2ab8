"""One line of the table: a fault, what it did to how many, and the verdict; and lines of several rounds as one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

COUNTS = ("times", "told", "kept", "lost", "forgiven", "doubled", "out_of_order", "late")


@dataclass(frozen=True, slots=True)
class Row:
    """`forgiven` are lost within the durability class that was told; `absent` says why it was not done at all."""

    fault: str
    title: str
    times: int = 0
    told: int = 0
    kept: int = 0
    lost: int = 0
    forgiven: int = 0
    doubled: int = 0
    out_of_order: int = 0
    late: int = 0
    recovery: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # worth knowing, and no broken promise
    absent: str = ""

    @property
    def holds(self) -> bool:
        return not self.findings

    def of_seed(self, seed: int) -> "Row":
        """The same, with every finding told by the seed that leads to it."""
        return replace(self, findings=tuple(f"seed {seed}: {one}" for one in self.findings))

    def together(self, other: "Row") -> "Row":
        """Both rounds: counts are added, of recoveries the slower counts."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        asked = dict.fromkeys((*self.recovery, *other.recovery))
        slower = {one: max(self.recovery.get(one, 0.0), other.recovery.get(one, 0.0)) for one in asked}
        absent = self.absent and other.absent
        findings, notes = self.findings + other.findings, self.notes + other.notes
        return replace(self, **counts, recovery=slower, findings=findings, notes=notes, absent=absent)


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row a fault, in the order of their first."""
    found: dict[str, Row] = {}
    for row in rows:
        found[row.fault] = found[row.fault].together(row) if row.fault in found else row
    return list(found.values())
