"""`dragoman drain`, `dragoman session` and `dragoman audit`: what operators change, and the record of it."""

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, AsJson, Yes, change, segment, with_api

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
        output.as_json(rows, indent=2)
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
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at_ms"] / 1000))
    who = f"{row['tenant']}/{row['who']}" if row.get("tenant") else row["who"] or "unnamed"
    detail = f" ({row['detail']})" if row["detail"] else ""
    address = f"  from {row['address']}" if row.get("address") else ""
    return f"{when}  {who}  {row['action']}  {row['target']}{detail}  {row.get('result') or 'done'}{address}"
