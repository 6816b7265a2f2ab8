"""`dragoman dlq`: dead letters. Replaying and dropping only say what they would do, until --yes."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, Refusal, Token, Url
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.settings import ConfigFile, Overrides, settings

app = typer.Typer(no_args_is_help=True, help="List, show, replay and drop dead letters.")

ALL = "all"
PAGE = 1000
NONE = "There are no dead letters."
_LETTER = re.compile(r"(?P<instance>[^/\s]+)/(?P<id>[0-9]{1,19}-[0-9]{1,19})")
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
One = Annotated[str, typer.Argument(help="<instance>/<id> as `dragoman dlq list` prints it.", metavar="LETTER")]
Some = Annotated[
    str, typer.Argument(help="<instance>/<id> as `dragoman dlq list` prints it, or `all`.", metavar="LETTER")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it; without, only say what would be done.")]
Instance = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only letters of this instance.", show_default=False)
]
Act = Callable[[Api, str], dict[str, Any]]


@app.command("list")
def list_letters(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    instance: Instance = None,
    count: Annotated[int, typer.Option(min=1, max=PAGE - 1, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    api = Api(settings(ctx, config, override).config, url, token)
    of_one = f"&instance={quote(instance, safe='')}" if instance else ""
    letters = api.get_list(f"/api/v1/dlq?count={count + 1}{of_one}")
    if as_json:
        output.as_json(letters[:count], indent=2)
        return
    now = time.time()
    for row in letters[:count]:
        facts = f"{row['kind'] or 'unknown kind'}, {row['deliveries']} deliveries, {row['size']} bytes"
        output.line(f"{_name(row)}  {facts}, {_age(now - row['dead_ms'] / 1000)} ago")
        output.line(f"    {row['reason']}")
    if len(letters) > count:
        output.line("… and more: see --count.")
    if not letters:
        output.line(NONE)


@app.command()
def show(
    ctx: typer.Context,
    letter: One,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show one letter: what it is, why it died, and the head of what it carries (never audio)."""
    path = _path(letter)
    found = Api(settings(ctx, config, override).config, url, token).get(path)
    if as_json:
        output.as_json(found, indent=2)
        return
    for name, value in found.items():
        shown = f"{value} ({_date(value)})" if name.endswith("_ms") and value else value
        output.line(f"{name:>11}  {shown}")


@app.command()
def replay(
    ctx: typer.Context,
    letter: Some,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    instance: Instance = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Hand letters to their instance again, or to a living one."""
    api = Api(settings(ctx, config, override).config, url, token)
    act: Act = lambda api, path: api.post(f"{path}/replay")  # noqa: E731
    return _each(api, _chosen(api, letter, instance), yes, as_json, ("replay", "replayed"), act)


@app.command()
def drop(
    ctx: typer.Context,
    letter: Some,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    instance: Instance = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Throw letters away for good."""
    api = Api(settings(ctx, config, override).config, url, token)
    return _each(api, _chosen(api, letter, instance), yes, as_json, ("drop", "dropped"), Api.delete)


# -- several at a time ---------------------------------------------------------------------------


def _chosen(api: Api, letter: str, instance: str | None) -> list[str]:
    """All of them before any is touched: what a replay brings back must not be replayed for ever."""
    if letter == ALL:
        return list(_all(api, instance))
    if instance is not None:
        raise Failure("--instance goes with `all`: a letter names its instance itself.", USAGE)
    _path(letter)
    return [letter]


def _all(api: Api, instance: str | None) -> Iterator[str]:
    for name in [instance] if instance else api.get("/api/v1/cluster").get("dead_letters", {}):
        after = ""
        while page := api.get_list(f"/api/v1/dlq?count={PAGE}&instance={quote(name, safe='')}{after}"):
            yield from map(_name, page)
            after = f"&after={page[-1]['id']}"


def _each(api: Api, names: list[str], yes: bool, as_json: bool, verbs: tuple[str, str], act: Act) -> int:
    """Each as far as it goes; the exit status says whether all of them did."""
    done = [_one(api, name, yes, act) for name in names] if as_json else []
    if as_json:
        output.as_json(done, indent=2)
        return int(any("error" in row for row in done))
    failures = 0
    for name in names:
        row = _one(api, name, yes, act)
        if "error" in row:
            failures += 1
            output.note(f"{name}: {row['error']}")
        else:
            output.line(f"{verbs[1]} {name}" if yes else f"would {verbs[0]} {name}")
    if not names:
        output.line(NONE)
    elif not yes:
        output.line("Nothing was changed: say --yes to do it.")
    return int(failures > 0)


def _one(api: Api, name: str, yes: bool, act: Act) -> dict[str, Any]:
    try:
        told = act(api, _path(name)) if yes else api.get(_path(name)) and {}
    except Refusal as refusal:
        return {"letter": name, "done": False, "error": str(refusal)}
    return {"letter": name, "done": yes, **told}


# -- words ---------------------------------------------------------------------------------------


def _name(row: dict[str, Any]) -> str:
    return f"{row['instance']}/{row['id']}"


def _path(letter: str) -> str:
    found = _LETTER.fullmatch(letter)
    if found is None:
        raise Failure(f"{letter!r} is not a letter: write <instance>/<id> as `dragoman dlq list` prints it.", USAGE)
    return f"/api/v1/dlq/{quote(found['instance'], safe='')}/{found['id']}"


def _age(seconds: float) -> str:
    for size, unit in _AGES:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def _date(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))
