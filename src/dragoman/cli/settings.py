"""The configuration of a command.

`--config` and `--set` are accepted before and after the name of a command. A command that needs the configuration
declares both options with the types below, and calls `settings` once:

    def serve(ctx: typer.Context, config: ConfigFile = None, override: Overrides = None, port: … = None) -> None:
        loaded = settings(ctx, config, override, {"server.port": port})

An invalid configuration ends the command and lists every problem.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.output import USAGE, Failure

if TYPE_CHECKING:  # importing it takes longer than printing a help text
    from dragoman.config import Loaded

VARIABLE = "DRAGOMAN_CONFIG"
DEFAULT_FILE = Path("config.toml")

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help=f"Read settings from this file. [${VARIABLE}, or ./{DEFAULT_FILE} if there is one]",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class Before:
    """The options before the name of the command."""

    config: Path | None
    overrides: tuple[str, ...]


def settings(
    ctx: typer.Context,
    config: Path | None = None,
    override: Sequence[str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> "Loaded":
    """Load the configuration. `flags` are options of the command by the key of their setting; None is not given."""
    from dragoman.config import ConfigError, load_with_sources

    before = ctx.find_object(Before) or Before(None, ())
    chosen = _file(config or before.config, os.environ)
    given: dict[str, object] = dict(map(_pair, (*before.overrides, *(override or ()))))
    _refuse_secrets(given)
    given.update({key: value for key, value in (flags or {}).items() if value is not None})
    try:
        return load_with_sources(chosen, os.environ, given)
    except ConfigError as error:
        raise Failure(str(error), USAGE) from None


def _file(asked: Path | None, env: Mapping[str, str]) -> Path | None:
    if asked is not None:
        return asked
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _refuse_secrets(given: Mapping[str, object]) -> None:
    """Every user of the machine can read a command line, and the history of the shell keeps it."""
    from dragoman.config.catalog import SETTINGS

    for setting in (SETTINGS[key] for key in given if key in SETTINGS):
        if setting.secret:
            raise Failure(
                f"{setting.key} is not accepted with --set, where other users can read it. Put it into the "
                f"configuration file, or into {setting.variable}.",
                USAGE,
            )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise Failure("--set takes KEY=VALUE, as in --set speech.pause_ms=2500.", USAGE)
    return key.strip(), value
