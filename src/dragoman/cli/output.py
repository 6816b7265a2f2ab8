"""The output of all commands, and `Failure`, which ends a command with a sentence.

Much of the output contains text from others: names of nodes, messages, reasons of failures. This module escapes control
characters in it (`dragoman.visible`) and keeps `rich` from reading it as markup. A test checks that no other module of
this folder writes to standard output or standard error.
"""

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from dragoman.visible import visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 120
USAGE = 2


class Failure(Exception):
    """Ends a command with one sentence on standard error.

    Exit status 1 means that the command failed, `USAGE` that it was called wrongly.
    """

    def __init__(self, sentence: str, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def line(text: object = "") -> None:
    """Print one line; a line feed in it is escaped."""
    typer.echo(visible(text))


def columns(*cells: str) -> None:
    """Print one line of tab-separated cells and flush it; a tab in a cell is escaped."""
    typer.echo("\t".join(map(visible, cells)))
    sys.stdout.flush()


def block(text: str, end: str = "\n") -> None:
    """Print text of several lines. The caller has made text from others `visible`."""
    typer.echo(visible_lines(text) + end, nl=False)


def as_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def date(ms: float) -> str:
    """A moment, in the time zone of the operator."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def error(text: object) -> None:
    """Print text of one or several lines to standard error."""
    typer.echo(visible_lines(text), err=True)


def note(sentence: object) -> None:
    """Print a sentence to standard error, after the name of the program."""
    error(f"dragoman: {sentence}")


def server_text(text: str) -> None:
    """Print text of several lines without ever blocking a server on a slow reader of standard output."""
    from dragoman import logs

    logs.say(visible_lines(text))


def rewrite(text: str) -> None:
    """Write this line of the terminal on standard error anew."""
    sys.stderr.write(f"\r\x1b[K{visible(text)}")
    sys.stderr.flush()


def paint(text: str) -> None:
    """Write to the terminal unchanged, for a screen that writes control characters itself."""
    sys.stdout.write(text)
    sys.stdout.flush()


def discard() -> None:
    """Drop further output: the reader has closed the pipe, and Python would report that again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(*, stderr: bool = False, pipe_width: int = PIPE_WIDTH) -> "Console":
    """A console of `rich` that treats every string as data: no markup, no emoji codes, control characters escaped."""
    from rich.console import Console

    class Safe(Console):
        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(visible_lines(text), **options)

    options: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    console = Safe(**options)
    return console if console.is_terminal else Safe(width=pipe_width, **options)


def table(*columns: str) -> "Table":
    """A table for a console; a column whose name ends in > is aligned to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    return table


def styled(*parts: tuple[object, str]) -> "Text":
    """Text for a console, each part in its style, control characters escaped."""
    from rich.text import Text

    return Text.assemble(*((visible(text), style) for text, style in parts))
