"""`dragoman drain` and `dragoman session`: what operators do to a running cluster. Without --yes they only say what."""

from typing import Annotated
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, Token, Url
from dragoman.cli.settings import ConfigFile, Overrides, settings

drain = typer.Typer(no_args_is_help=True, help="Let an instance or a node finish what it has, and give it nothing new.")
session = typer.Typer(no_args_is_help=True, help="End a session.")

NOTHING = "Nothing was changed: say --yes to do it."
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it; without, only say what would be done.")]


@drain.command("instance")
def drain_instance(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="As `dragoman status` prints it.", metavar="INSTANCE")],
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    yes: Yes = False,
) -> None:
    """Drain an instance: it accepts nothing new and finishes what runs. It stays until its process is ended."""
    if not agreed(yes, f"drain the instance {name}"):
        return
    Api(settings(ctx, config, override).config, url, token).post(f"/api/v1/instances/{quote(name, safe='')}/drain")
    output.line(f"The instance {name} drains.")


@drain.command("node")
def drain_node(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(help="As `dragoman status` prints it.", metavar="NODE")],
    undo: Annotated[bool, typer.Option("--undo", help="Give it jobs again.")] = False,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    yes: Yes = False,
) -> None:
    """Drain a node: it finishes its jobs and gets no new ones, until --undo or until it connects anew."""
    if not agreed(yes, f"take the drain of the node {node} back" if undo else f"drain the node {node}"):
        return
    api, path = Api(settings(ctx, config, override).config, url, token), f"/api/v1/nodes/{quote(node, safe='')}/drain"
    if undo:
        api.delete(path)
    else:
        api.post(path)
    output.line(f"The node {node} gets jobs again." if undo else f"The node {node} drains.")


@session.command("end")
def end_session(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(help="The id of the session.", metavar="SESSION")],
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    yes: Yes = False,
) -> None:
    """End a session at once: its jobs are cancelled, its client is told, and it cannot be resumed."""
    if not agreed(yes, f"end the session {id}"):
        return
    Api(settings(ctx, config, override).config, url, token).delete(f"/api/v1/sessions/{quote(id, safe='')}")
    output.line(f"The session {id} is ended.")


@session.callback()
def _group() -> None:
    """Keeps `end` a command of its own: typer makes the only command of a group the group itself."""


def agreed(yes: bool, what: str) -> bool:
    if not yes:
        output.line(f"would {what}")
        output.line(NOTHING)
    return yes
