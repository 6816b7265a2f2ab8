"""`dragoman drain`, `session`, `dlq` and `audit`: what operators change, and the record of it."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import NOT_CHANGED, Api, AsJson, Refusal, Yes, change, segment, with_api
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.settings import option

drain = typer.Typer(
    no_args_is_help=True, help="Drain an instance or a node: it finishes its work and gets no new work."
)
session = typer.Typer(no_args_is_help=True, help="End a session.")

AUDIT_PAGE = 200


@drain.command("instance")
@with_api
def drain_instance(
    api: Api,
    name: Annotated[str, typer.Argument(help="Its name, as `dragoman status` prints it.", metavar="INSTANCE")],
    yes: Yes = False,
) -> None:
    """Drain an instance: it accepts nothing new and finishes its work. It runs until its process is stopped."""
    path = f"/api/v1/instances/{segment(name)}/drain"
    change(yes, f"drain the instance {name}", lambda: api.post(path), f"The instance {name} is draining.")


@drain.command("node")
@with_api
def drain_node(
    api: Api,
    node: Annotated[str, typer.Argument(help="Its id, as `dragoman status` prints it.", metavar="NODE")],
    undo: Annotated[bool, typer.Option("--undo", help="Send jobs to the node again.")] = False,
    yes: Yes = False,
) -> None:
    """Drain a node: it finishes its jobs and gets no new ones, until --undo or until it reconnects."""
    path = f"/api/v1/nodes/{segment(node)}/drain"
    if undo:
        change(yes, f"undo the drain of the node {node}", lambda: api.delete(path), f"The node {node} gets jobs again.")
    else:
        change(yes, f"drain the node {node}", lambda: api.post(path), f"The node {node} is draining.")


@session.command("end")
@with_api
def end_session(
    api: Api, id: Annotated[str, typer.Argument(help="The id of the session.", metavar="SESSION")], yes: Yes = False
) -> None:
    """End a session at once: its jobs are cancelled, its client is notified, and it cannot be resumed."""
    path = f"/api/v1/sessions/{segment(id)}"
    change(yes, f"end the session {id}", lambda: api.delete(path), f"The session {id} has ended.")


@session.callback()
def _group() -> None:
    """Keeps `end` a subcommand: typer would make the only command of a group the group itself."""


@with_api
def audit(
    api: Api,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of entries.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show what operators changed or tried to change, newest first: who, when, what and the result.

    The server keeps the last 10,000 changes.
    """
    rows = _audit_entries(api, count)
    if as_json:
        output.as_json(rows)
        return
    for row in rows:
        output.line(_audit_line(row))
    if not rows:
        output.line("No operator has changed anything yet.")


def _audit_entries(api: Api, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    before = ""
    while len(found) < count:
        size = f"count={min(AUDIT_PAGE, count - len(found))}"
        page = api.get(f"/api/v1/audit?{size}{f'&before={quote(before)}' if before else ''}")
        found += page["entries"]
        before = page["next"]
        if not before:
            break
    return found


def _audit_line(row: dict[str, Any]) -> str:
    when = output.date(row["at_ms"])
    who = f"{row['tenant']}/{row['who']}" if row.get("tenant") else row["who"] or "unnamed"
    detail = f" ({row['detail']})" if row["detail"] else ""
    address = f"  from {row['address']}" if row.get("address") else ""
    return f"{when}  {who}  {row['action']}  {row['target']}{detail}  {row.get('result') or 'done'}{address}"


# -- dlq -------------------------------------------------------------------------------------------
#
# `dragoman dlq`: lists, shows, replays and drops dead letters. Without --yes nothing is replayed or dropped.


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
Instance = Annotated[str | None, option(metavar="NAME", help="Only dead letters of this instance.")]
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
        output.as_json(letters[:count])
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
        output.as_json(found)
        return
    for name, value in found.items():
        shown = f"{value} ({output.date(value)})" if name.endswith("_ms") and value else value
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
        output.as_json(done)
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
