"""`dragoman db`: shows and applies the migrations of the chat database.

An instance applies them when it starts. This command applies them beforehand, for example with a database user that may
change tables when the user of the instances may not.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dragoman.cli import output
from dragoman.cli.output import Failure
from dragoman.cli.settings import ConfigFile, Overrides, settings

if TYPE_CHECKING:  # a help text needs no database driver
    from dragoman.archive import Archive, Migration
    from dragoman.config import Config

app = typer.Typer(no_args_is_help=True, help="Show and apply the migrations of the chat database.")

T = TypeVar("T")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def migrate(ctx: typer.Context, config: ConfigFile = None, override: Overrides = None, as_json: AsJson = False) -> None:
    """Apply the missing migrations. Instances may run meanwhile."""
    loaded = settings(ctx, config, override).config
    applied = _query(loaded, lambda archive: archive.migrate())
    if as_json:
        output.as_json({"database": _location(loaded), "applied": applied})
        return
    output.line(f"Database: {_location(loaded)}")
    for name in applied:
        output.line(f"applied {name}")
    if not applied:
        output.line("The tables are up to date.")


@app.command()
def status(ctx: typer.Context, config: ConfigFile = None, override: Overrides = None, as_json: AsJson = False) -> int:
    """Show which migrations are applied."""
    from dragoman.archive import ArchiveError

    loaded = settings(ctx, config, override).config
    try:
        found = _query(loaded, lambda archive: archive.migrations())
        verdict = _verdict(loaded, found)
    except (Failure, ArchiveError) as error:
        if not as_json:
            raise Failure(str(error)) from None
        output.as_json({"database": _location(loaded), "usable": False, "error": str(error)})
        return 1
    if as_json:
        rows = [{"name": migration.name, "applied_ms": migration.applied_ms} for migration in found]
        output.as_json({"database": _location(loaded), "usable": True, "migrations": rows})
        return 0
    output.line(f"Database: {_location(loaded)}")
    for migration in found:
        output.line(f"  {migration.name}  {_when(migration)}")
    output.line(verdict)
    return 0


def _query(config: "Config", query: Callable[["Archive"], Awaitable[T]]) -> T:
    """Query the database. Raises Failure if it does not answer."""
    from dragoman.archive import ArchiveError, archive_url, open_archive

    async def asked() -> T:
        archive = open_archive(archive_url(config), config.archive)
        try:
            return await query(archive)
        finally:
            await archive.close()

    try:
        return asyncio.run(asked())
    except ArchiveError as error:
        raise Failure(str(error)) from None


def _verdict(config: "Config", found: "list[Migration]") -> str:
    """One sentence about the migrations. Raises WrongSchema for a database of a newer release."""
    from dragoman.archive import archive_url, schema

    dialect: schema.Dialect = "sqlite" if archive_url(config).startswith("sqlite:") else "postgres"
    schema.refuse_unknown(schema.scripts(dialect), [migration.name for migration in found])
    waiting = sum(migration.applied_ms is None for migration in found)
    if waiting == len(found):
        return "There are no tables yet. The first instance creates them, or dragoman db migrate."
    if waiting:
        return f"{waiting} not applied. The next instance that starts applies them, or dragoman db migrate."
    return "The tables are up to date."


def _location(config: "Config") -> str:
    """The database, without its password."""
    from dragoman.archive import archive_url
    from dragoman.archive.archive import sqlite_path
    from dragoman.config.reference import masked_url

    url = archive_url(config)
    return str(sqlite_path(url)) if url.startswith("sqlite:") else masked_url(url)


def _when(migration: "Migration") -> str:
    if migration.applied_ms is None:
        return "not applied"
    return f"applied {output.date(migration.applied_ms)}"
