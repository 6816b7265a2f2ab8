"""A bar while a bench runs, on a terminal only: who reads a file later has no use for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

OnStep = Callable[[str], None]


@contextmanager
def bar(steps: int, console: Console) -> Iterator[OnStep]:
    """Gives what is to be called at the beginning of every step, with its title."""
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(), TimeRemainingColumn())
    # Drawn between measurements only: a thread that redraws it would take its share of the process being measured.
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
