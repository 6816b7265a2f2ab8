"""`dragoman dlq`: dead letters. Replaying and dropping only say what they would do, until --yes."""

import json
import time
from typing import Annotated, Any

import typer

from dragoman.cli.api import Api, Token, Url
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.settings import ConfigFile, Overrides, settings

app = typer.Typer(no_args_is_help=True, help="List, show, replay and drop dead letters.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Which = Annotated[str, typer.Argument(help="<instance>/<id> as `list` prints it, or `all`.", metavar="LETTER")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would be done.")]
Instance = Annotated[str | None, typer.Option(help="Only letters of this instance.", show_default=False)]


@app.command("list")
def list_letters(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    instance: Instance = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    letters = _letters(Api(settings(ctx, config, override).config, url, token), instance)
    if as_json:
        typer.echo(json.dumps(letters, indent=2))
    elif not letters:
        typer.echo("There are no dead letters.")
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("letter", "kind", "reason", "deliveries", "age", "bytes")
        for row in letters:
            age_s = max(0, int(time.time() - row["dead_ms"] / 1000))
            table.add_row(
                _name(row), row["kind"] or "?", row["reason"], str(row["deliveries"]), f"{age_s} s", str(row["size"])
            )
        Console().print(table)


@app.command()
def show(
    ctx: typer.Context,
    letter: Which,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show one letter: what it is, why it died, and the head of what it carries (never audio)."""
    api = Api(settings(ctx, config, override).config, url, token)
    found = api.get(f"/api/v1/dlq/{_path(letter)}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            typer.echo(f"{name:>11}  {value}")


@app.command()
def replay(
    ctx: typer.Context,
    letter: Which,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    instance: Instance = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Hand letters to their instance again, or to a living one."""
    api = Api(settings(ctx, config, override).config, url, token)
    _each(api, letter, instance, yes, as_json, "replay", lambda path: api.post(f"/api/v1/dlq/{path}/replay"))


@app.command()
def drop(
    ctx: typer.Context,
    letter: Which,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    instance: Instance = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Throw letters away for good."""
    api = Api(settings(ctx, config, override).config, url, token)
    _each(api, letter, instance, yes, as_json, "drop", lambda path: api.delete(f"/api/v1/dlq/{path}"))


def _each(api: Api, letter: str, instance: str | None, yes: bool, as_json: bool, verb: str, act: Any) -> None:
    names = [_name(row) for row in _letters(api, instance)] if letter == "all" else [letter]
    done: list[dict[str, Any]] = []
    for name in names:
        path = _path(name)
        if not yes:
            api.get(f"/api/v1/dlq/{path}")  # a letter that is not there is an error in a dry run too
        done.append({"letter": name, "done": yes, **(act(path) if yes else {})})
    if as_json:
        typer.echo(json.dumps(done, indent=2))
        return
    for row in done:
        typer.echo(f"{verb}ed {row['letter']}".replace("droped", "dropped") if yes else f"would {verb} {row['letter']}")
    if not yes and done:
        typer.echo("Nothing was changed: say --yes to do it.")
    if not done:
        typer.echo("There are no dead letters.")


def _letters(api: Api, instance: str | None) -> list[dict[str, Any]]:
    from urllib.parse import quote

    found = api.get("/api/v1/dlq?count=1000" + (f"&instance={quote(instance)}" if instance else ""))
    return list(found)


def _name(row: dict[str, Any]) -> str:
    return f"{row['instance']}/{row['id']}"


def _path(letter: str) -> str:
    from urllib.parse import quote

    instance, slash, id = letter.rpartition("/")
    if not slash or not id.replace("-", "").isdigit():
        raise Failure(f"{letter!r} is not a letter: write <instance>/<id> as `dragoman dlq list` prints it.", USAGE)
    return f"{quote(instance, safe='')}/{id}"
