"""`dragoman dlq`: lists, shows, replays and drops dead letters. Without --yes nothing is replayed or dropped."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from dragoman.cli import output
from dragoman.cli.api import NOT_CHANGED, Api, AsJson, Refusal, Yes, segment, with_api
from dragoman.cli.output import USAGE, Failure

app = typer.Typer(no_args_is_help=True, help="List, show, replay and drop dead letters.")

ALL = "all"
PAGE = 1000
NONE = "There are no dead letters."
_LETTER = re.compile(r"(?P<instance>[^/\s]+)/(?P<id>[0-9]{1,19}-[0-9]{1,19})")
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))

One = Annotated[str, typer.Argument(help="<instance>/<id> as `dragoman dlq list` prints it.", metavar="LETTER")]
OneOrAll = Annotated[
    str, typer.Argument(help="<instance>/<id> as `dragoman dlq list` prints it, or `all`.", metavar="LETTER")
]
Instance = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only dead letters of this instance.", show_default=False)
]
Send = Callable[[Api, str], dict[str, Any]]


@app.command("list")
@with_api
def list_letters(
    api: Api,
    instance: Instance = None,
    count: Annotated[int, typer.Option(min=1, max=PAGE - 1, help="Maximum number of dead letters.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    of_one = f"&instance={segment(instance)}" if instance else ""
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
        output.line("… and more; raise --count to see them.")
    if not letters:
        output.line(NONE)


@app.command()
@with_api
def show(
    api: Api,
    letter: One,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its kind, the reason, and the start of its content (never audio)."""
    path = _path(letter)
    found = api.get(path)
    if as_json:
        output.as_json(found, indent=2)
        return
    for name, value in found.items():
        shown = f"{value} ({_date(value)})" if name.endswith("_ms") and value else value
        output.line(f"{name:>11}  {shown}")


@app.command()
@with_api
def replay(
    api: Api,
    letter: OneOrAll,
    instance: Instance = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Deliver dead letters again, to their instance or, if that is gone, to another one."""
    send: Send = lambda api, path: api.post(f"{path}/replay")  # noqa: E731
    return _each(api, _chosen(api, letter, instance), yes, as_json, ("replay", "replayed"), send)


@app.command()
@with_api
def drop(
    api: Api,
    letter: OneOrAll,
    instance: Instance = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Delete dead letters for good."""
    return _each(api, _chosen(api, letter, instance), yes, as_json, ("drop", "dropped"), Api.delete)


# -- several at a time ---------------------------------------------------------------------------


def _chosen(api: Api, letter: str, instance: str | None) -> list[str]:
    """The names, all of them before the first replay: a letter that fails again must not be replayed again."""
    if letter == ALL:
        return list(_all(api, instance))
    if instance is not None:
        raise Failure("--instance is only valid with `all`: the name of a letter contains its instance.", USAGE)
    _path(letter)
    return [letter]


def _all(api: Api, instance: str | None) -> Iterator[str]:
    for name in [instance] if instance else api.get("/api/v1/cluster").get("dead_letters", {}):
        after = ""
        while page := api.get_list(f"/api/v1/dlq?count={PAGE}&instance={segment(name)}{after}"):
            yield from map(_name, page)
            after = f"&after={page[-1]['id']}"


def _each(api: Api, names: list[str], yes: bool, as_json: bool, verbs: tuple[str, str], send: Send) -> int:
    """Process each letter, also after a failure. The exit status is 1 if one failed."""
    done = [_one(api, name, yes, send) for name in names] if as_json else []
    if as_json:
        output.as_json(done, indent=2)
        return int(any("error" in row for row in done))
    failures = 0
    for name in names:
        row = _one(api, name, yes, send)
        if "error" in row:
            failures += 1
            output.note(f"{name}: {row['error']}")
        else:
            output.line(f"{verbs[1]} {name}" if yes else f"would {verbs[0]} {name}")
    if not names:
        output.line(NONE)
    elif not yes:
        output.line(NOT_CHANGED)
    return int(failures > 0)


def _one(api: Api, name: str, yes: bool, send: Send) -> dict[str, Any]:
    try:
        answer = send(api, _path(name)) if yes else api.get(_path(name)) and {}
    except Refusal as refusal:
        return {"letter": name, "done": False, "error": str(refusal)}
    return {"letter": name, "done": yes, **answer}


# -- names and times -----------------------------------------------------------------------------


def _name(row: dict[str, Any]) -> str:
    return f"{row['instance']}/{row['id']}"


def _path(letter: str) -> str:
    found = _LETTER.fullmatch(letter)
    if found is None:
        raise Failure(f"{letter!r} is not a dead letter. Give <instance>/<id> as `dragoman dlq list` prints it.", USAGE)
    return f"/api/v1/dlq/{segment(found['instance'])}/{found['id']}"


def _age(seconds: float) -> str:
    for size, unit in _AGES:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def _date(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))
