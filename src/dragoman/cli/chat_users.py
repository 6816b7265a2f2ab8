"""`dragoman chat user` and `dragoman chat invite`: accounts of chat, as operators change them.

Passwords come from a prompt, or from the first line of standard input where that is no terminal; never from the command
line, which other users of the machine can read.
"""

import getpass
import sys
from typing import Annotated
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, Token, Url
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.operate import Yes, agreed
from dragoman.cli.settings import ConfigFile, Overrides, settings
from dragoman.cli.token import seconds

app = typer.Typer(no_args_is_help=True, help="Add and remove chat users, and set their passwords.")

Name = Annotated[str, typer.Argument(help="The name of the user.", metavar="NAME")]


@app.command("add")
def add(
    ctx: typer.Context,
    name: Name,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Create an account. Its password is asked for, or read from the first line of standard input."""
    api = Api(settings(ctx, config, override).config, url, token)
    told = api.post("/api/v1/chat/users", {"username": name, "password": new_password(name)})
    output.line(f"{told['username']} is user {told['userId']}.")


@app.command("passwd")
def passwd(
    ctx: typer.Context,
    name: Name,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Set the password of an account. Its connection and all its tokens end."""
    api = Api(settings(ctx, config, override).config, url, token)
    api.post(f"/api/v1/chat/users/{quote(name, safe='')}/password", {"password": new_password(name)})
    output.line(f"{name} has a new password and must log in again.")


@app.command("remove")
def remove(
    ctx: typer.Context,
    name: Name,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    yes: Yes = False,
) -> None:
    """Remove an account. Its connection and all its tokens end; messages stay, and no new account gets them."""
    if not agreed(yes, f"remove the account of {name}"):
        return
    Api(settings(ctx, config, override).config, url, token).delete(f"/api/v1/chat/users/{quote(name, safe='')}")
    output.line(f"The account of {name} is removed.")


def invite(
    ctx: typer.Context,
    lifetime: Annotated[
        str, typer.Option("--lifetime", metavar="TIME", help="How long it is valid: a number and s, m, h or d.")
    ] = "7d",
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Make a code with which one new account can be created, where chat.registration is invite."""
    api = Api(settings(ctx, config, override).config, url, token)
    output.line(api.post("/api/v1/chat/invites", {"ttl_s": seconds(lifetime)})["invite"])


def new_password(name: str) -> str:
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = getpass.getpass(f"New password of {name}: ")
        if password and getpass.getpass("Once more: ") != password:
            raise Failure("The two passwords are not the same; nothing was changed.", USAGE)
    if not password:
        raise Failure("No password was given; nothing was changed.", USAGE)
    return password
