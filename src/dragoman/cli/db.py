"""`dragoman db`: the tables that messages and accounts are kept in.

An instance brings them up to date by itself when it starts. Doing it beforehand is for those who want to see it done,
and for databases whose everyday user may not change tables.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dragoman.cli import output
from dragoman.cli.output import Failure
from dragoman.cli.settings import ConfigFile, Overrides, settings

if TYPE_CHECKING:  # showing a help text needs no database driver
    from dragoman.archive import Archive, Migration
    from dragoman.config import Config

app = typer.Typer(no_args_is_help=True, help="Look at the tables of the chat database, and bring them up to date.")

T = TypeVar("T")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def migrate(ctx: typer.Context, config: ConfigFile = None, override: Overrides = None, as_json: AsJson = False) -> None:
    """Bring the tables up to date. Instances may run meanwhile."""
    loaded = settings(ctx, config, override).config
    applied = _ask(loaded, lambda archive: archive.migrate())
    if as_json:
        output.as_json({"database": _place(loaded), "applied": applied}, indent=2)
        return
    output.line(f"Database: {_place(loaded)}")
    for name in applied:
        output.line(f"applied {name}")
    if not applied:
        output.line("The tables are up to date: nothing was to be done.")


@app.command()
def status(ctx: typer.Context, config: ConfigFile = None, override: Overrides = None, as_json: AsJson = False) -> int:
    """Show which migrations the database has. Changes nothing."""
    from dragoman.archive import ArchiveError

    loaded = settings(ctx, config, override).config
    try:
        found = _ask(loaded, lambda archive: archive.migrations())
        verdict = _verdict(loaded, found)
    except (Failure, ArchiveError) as error:
        if not as_json:
            raise Failure(str(error)) from None
        output.as_json({"database": _place(loaded), "usable": False, "error": str(error)}, indent=2)
        return 1
    if as_json:
        rows = [{"name": migration.name, "applied_ms": migration.applied_ms} for migration in found]
        output.as_json({"database": _place(loaded), "usable": True, "migrations": rows}, indent=2)
        return 0
    output.line(f"Database: {_place(loaded)}")
    for migration in found:
        output.line(f"  {migration.name}  {_when(migration)}")
    output.line(verdict)
    return 0


def _ask(config: "Config", question: Callable[["Archive"], Awaitable[T]]) -> T:
    """One question to the database; what keeps it from answering is the command's failure."""
    from dragoman.archive import ArchiveError, archive_url, open_archive

    async def asked() -> T:
        archive = open_archive(archive_url(config), config.archive)
        try:
            return await question(archive)
        finally:
            await archive.close()

    try:
        return asyncio.run(asked())
    except ArchiveError as error:
        raise Failure(str(error)) from None


def _verdict(config: "Config", found: "list[Migration]") -> str:
    """One sentence; WrongSchema for a database that is ahead of us."""
    from dragoman.archive import archive_url, schema

    dialect: schema.Dialect = "sqlite" if archive_url(config).startswith("sqlite:") else "postgres"
    schema.refuse_unknown(schema.scripts(dialect), [migration.name for migration in found])
    waiting = sum(migration.applied_ms is None for migration in found)
    if waiting == len(found):
        return "There are no tables yet: the first instance makes them, or dragoman db migrate."
    if waiting:
        return f"{waiting} to be applied: the next instance that starts does it, or dragoman db migrate."
    return "The tables are up to date."


def _place(config: "Config") -> str:
    """Without the password."""
    from dragoman.archive import archive_url
    from dragoman.archive.urls import sqlite_path
    from dragoman.config.display import masked_url

    url = archive_url(config)
    return str(sqlite_path(url)) if url.startswith("sqlite:") else masked_url(url)


def _when(migration: "Migration") -> str:
    if migration.applied_ms is None:
        return "not applied"
    return time.strftime("applied %Y-%m-%d %H:%M:%S", time.localtime(migration.applied_ms / 1000))
