"""Which settings a command runs with.

`--config` and `--set` are understood before and after the name of a command. A command that needs settings takes both
with the types below, and calls `settings` once:

    def serve(ctx: typer.Context, config: ConfigFile = None, override: Overrides = None, port: … = None) -> None:
        loaded = settings(ctx, config, override, {"server.port": port})

A wrong configuration ends the command with every problem told.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.output import USAGE, Failure

if TYPE_CHECKING:  # loading the configuration costs more than showing a help text
    from dragoman.config import Loaded

VARIABLE = "DRAGOMAN_CONFIG"
USUAL_FILE = Path("config.toml")

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help=f"Read settings from this file. [${VARIABLE}, or ./{USUAL_FILE} if there is one]",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class Before:
    """What stood before the name of the command."""

    config: Path | None
    overrides: tuple[str, ...]


def settings(
    ctx: typer.Context,
    config: Path | None = None,
    override: Sequence[str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> "Loaded":
    """The configuration and its sources; `flags` are the command's own options by dotted key, None = not given."""
    from dragoman.config import ConfigError, load_with_sources

    before = ctx.find_object(Before) or Before(None, ())
    chosen = _file(config or before.config, os.environ)
    given: dict[str, object] = dict(map(_pair, (*before.overrides, *(override or ()))))
    _keep_secrets_off_the_command_line(given)
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
    return USUAL_FILE if USUAL_FILE.is_file() else None


def _keep_secrets_off_the_command_line(given: Mapping[str, object]) -> None:
    """Everybody on the machine can read it there, and the history of the shell keeps it."""
    from dragoman.config.catalog import SETTINGS

    for setting in (SETTINGS[key] for key in given if key in SETTINGS):
        if setting.secret:
            raise Failure(
                f"{setting.key} is not given with --set, where others can read it: put it into the configuration file, "
                f"or into {setting.variable}.",
                USAGE,
            )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise Failure("--set wants KEY=VALUE, as in --set speech.pause_ms=2500.", USAGE)
    return key.strip(), value
