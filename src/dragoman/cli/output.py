"""All output of commands goes through here, because much of it holds text of strangers: names of nodes, messages,
reasons of failures. None of it reaches the terminal as control characters (`dragoman.visible`), and none of it is taken
for markup of `rich`. A test sees that no other module of this folder writes to standard output or error.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from dragoman.visible import visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPE_WIDTH = 120


def line(text: object = "") -> None:
    """One line to standard output; a line feed inside it is shown as an escape."""
    typer.echo(visible(text))


def columns(*cells: str) -> None:
    """One line to standard output, at once; its cells are separated by tabs, and none of them holds one."""
    typer.echo("\t".join(map(visible, cells)))
    sys.stdout.flush()


def block(text: str, end: str = "\n") -> None:
    """Text of several lines to standard output. Parts of it that others wrote have been made `visible` before."""
    typer.echo(visible_lines(text) + end, nl=False)


def as_json(value: object, indent: int | None = None) -> None:
    typer.echo(json.dumps(value, indent=indent))


def error(text: object) -> None:
    """To standard error, line feeds kept."""
    typer.echo(visible_lines(text), err=True)


def note(sentence: object) -> None:
    """A sentence about what happens, to standard error."""
    error(f"dragoman: {sentence}")


def server_text(text: str) -> None:
    """Text of several lines of a command that serves: it never waits for the reader of standard output."""
    from dragoman import logs

    logs.say(visible_lines(text))


def paint(text: str) -> None:
    """To the terminal as it is: for a screen that makes its control characters itself and others' text visible."""
    sys.stdout.write(text)
    sys.stdout.flush()


def console(*, stderr: bool = False, pipe_width: int = PIPE_WIDTH) -> "Console":
    """A console of `rich` that takes every string for data: no markup, no emoji codes, control characters visible."""
    from rich.console import Console

    class Safe(Console):
        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(visible_lines(text), **options)

    options: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    made = Safe(**options)
    return made if made.is_terminal else Safe(width=pipe_width, **options)


def styled(*parts: tuple[object, str]) -> "Text":
    """Text for a console, each part in its style; what others wrote is made visible."""
    from rich.text import Text

    return Text.assemble(*((visible(text), style) for text, style in parts))
