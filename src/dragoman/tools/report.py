"""The results of a bench or a verification: tables for people, a JSON file for programs, the machine in both.

    {"commit": …, "machine": {…}, "settings": {…}, "figures": {…}, "ratios": {…}}

Figures end in their unit (`_per_s`, `_us`, `_ms`); ratios are to something measured in the same run.
"""

import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import dragoman
from dragoman.tools.processes import CannotRun

if TYPE_CHECKING:
    from rich.console import Console

Row = Sequence[str]
OnStep = Callable[[str], None]


def described(settings: Any, **more: object) -> dict[str, object]:
    """The settings of a bench, a dataclass with slots, and what else a report says about them."""
    return {name: getattr(settings, name) for name in settings.__slots__} | more


@dataclass(slots=True)
class Report:
    """Filled by a bench; only the terminal shows `tables` and `notes`."""

    settings: dict[str, object]
    figures: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commit: str = field(default_factory=lambda: commit())
    machine: dict[str, object] = field(default_factory=lambda: machine())

    def as_json(self) -> bytes:
        parts = {
            "commit": self.commit,
            "machine": self.machine,
            "settings": self.settings,
            "figures": {name: rounded(value) for name, value in self.figures.items()},
            "ratios": {name: rounded(value) for name, value in self.ratios.items()},
        }
        return encoded(parts)

    def write(self, path: Path) -> None:
        write(self.as_json(), path)

    def show(self, console: "Console") -> None:
        for table in self.tables:
            console.print(table)
        for note in self.notes:
            console.print(note, highlight=False, soft_wrap=True)


def encoded(results: Mapping[str, object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results)) + b"\n"


def write(data: bytes, path: Path) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise CannotRun(f"The results cannot be written to {path}: {error.strerror}.") from error


def table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """The first column names the row, the others hold numbers."""
    shown = Table(title=title, title_justify="left", title_style="bold", header_style="", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        shown.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    return shown


def figure_rows(figures: Mapping[str, float], rows: Mapping[str, str], names: Sequence[str]) -> list[Row]:
    """For each title and prefix of `rows`, the figures of these names."""
    return [[title, *(number(figures.get(f"{prefix}{name}")) for name in names)] for title, prefix in rows.items()]


def number(value: float | None, unit: str = "") -> str:
    """A figure as people read it; a dash if it was not measured."""
    if value is None:
        return "–"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}{unit}"


def rounded(value: float) -> float:
    """Four significant digits: no measurement here is more exact."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)


def commit() -> str:
    """The commit of this code, with `-dirty` if the package was changed since; `unknown` outside its repository."""
    here = Path(dragoman.__file__).parent
    # An installed copy may lie inside another repository, which does not track it.
    if _git(here, "ls-files", "--error-unmatch", "__init__.py") is None or not (at := _git(here, "rev-parse", "HEAD")):
        return "unknown"
    return f"{at}-dirty" if _git(here, "status", "--porcelain", "--", ".") else at


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def machine() -> dict[str, object]:
    """The machine that runs this, and its load by other processes."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


# -- progress --------------------------------------------------------------------------------------


@contextmanager
def progress_bar(steps: int, console: "Console") -> Iterator[OnStep]:
    """A bar on a terminal, nothing elsewhere. Yields the function to call with the title of each step as it begins."""
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(), TimeRemainingColumn())
    # Drawn between measurements only: a thread that redraws it would use CPU time of the measured process.
    with Progress(
        *columns,
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=False,
    ) as progress:
        task = progress.add_task("starting Redis", total=steps)
        progress.refresh()
        begun = 0

        def step(title: str) -> None:
            nonlocal begun
            progress.update(task, completed=begun, description=title, refresh=True)
            begun += 1

        yield step
