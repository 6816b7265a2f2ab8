"""`dragoman chat`: a chat in the terminal, as a user named on the command line.

Users log in by name. A server on this machine without a secret creates unknown users. There a password that everybody
can guess is used when none is given, and said so: it keeps nobody out, it makes trying easy. Elsewhere an operator or
an invite code creates an account.
"""

import asyncio
import contextlib
import getpass
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote, urlsplit

import typer

from dragoman.cli import output
from dragoman.cli.address import authority
from dragoman.cli.api import LOOPBACK, Token
from dragoman.cli.chat_operator import disconnect, status, two_phase
from dragoman.cli.chat_users import app as users
from dragoman.cli.chat_users import invite
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.settings import ConfigFile, Overrides, settings
from dragoman.domain.chat.registration import well_known
from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.client.chat import Account, ChatError

PASSWORD_VARIABLE = "DRAGOMAN_CHAT_PASSWORD"
HISTORY = 20
LOOK_S = 1.0
WAIT_S = 30.0  # for somebody who has not logged in, where nobody sits in front of it
INTERRUPTED = 130

BAD_REQUEST = "40000"

app = typer.Typer()
app.command("status")(status)
app.command("two-phase")(two_phase)
app.command("disconnect")(disconnect)
app.command("invite")(invite)
app.add_typer(users, name="user")


class Me(NamedTuple):
    """Who chats. `ask` for the password, whatever else there is."""

    name: str
    ask: bool
    invite: str


@app.callback(invoke_without_command=True)
def chat(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    me: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who you are.", show_default=False)] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NAME", help="Whom to write to: a name, or a user id.", show_default=False),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Where Dragoman is; may be repeated. [http://server.host:server.port]",
            show_default=False,
        ),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option("--password", help=f"Ask for your password. [${PASSWORD_VARIABLE}, or a well-known one here]"),
    ] = False,
    code: Annotated[
        str,
        typer.Option("--invite", metavar="CODE", help="Creates your account, where that takes an invite code."),
    ] = "",
    token: Token = None,
) -> int:
    """Chat in the terminal: dragoman chat --as alice --to bob. Without a terminal: one message per line of input."""
    if ctx.invoked_subcommand is not None:
        return 0
    if not me or not to:
        raise Failure("A chat needs two: dragoman chat --as alice --to bob.", USAGE)
    server = settings(ctx, config, override).config.server
    bases = [base(one) for one in url or [authority(server.host, server.port)]]
    return _run(_chat(bases, Me(me, ask, code), to, token))


def base(url: str) -> str:
    """The address of the HTTP there: host:port will do, and so will that of the WebSocket."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        scheme = {"": "http", "ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
        right = scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or not url.isprintable() or " " in url:
        raise Failure(f"--url {url!r} is not an address like http://127.0.0.1:5010.", USAGE)
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/ws')}"


def socket(base_url: str) -> str:
    return f"ws{base_url.removeprefix('http')}/ws"


def _run(main: Any) -> int:
    from dragoman.client.chat import ChatError

    try:
        return int(asyncio.run(main))
    except ChatError as error:
        raise Failure(_sentence(error)) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read has enough; Python would complain when it closes the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def _chat(bases: Sequence[str], me: Me, to: str, token: str | None) -> int:
    from dragoman.cli.chat_terminal import Lines, Talk, Terminal
    from dragoman.client.chat import Chat

    account = await _log_in(bases, me)
    peer = await _find(account.base_url, to, token)
    if peer == account.user_id:
        raise Failure(f"{to} is you; somebody else must be written to.", USAGE)
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    talk = Talk(me.name, to if not to.isdecimal() else f"user {to}", peer)
    holder: Terminal | Lines = Terminal(talk) if on_terminal else Lines(talk)
    history = await account.history(peer, HISTORY) if on_terminal else []
    chat = Chat(
        [socket(one) for one in bases],
        token=account.token,
        on_receipt=holder.on_receipt,
        on_connection=holder.on_connection,
    )
    async with chat:
        code = await holder.hold(chat, history)
        if holder.at_once:
            await chat.abort()
    return code


# ---------------------------------------------------------------- who we are


async def _log_in(bases: Sequence[str], me: Me) -> "Account":
    from dragoman.client.chat import AccessDenied, ChatError

    given = None if me.ask else os.environ.get(PASSWORD_VARIABLE)
    if given is None and not me.ask and not me.invite and all(_is_here(one) for one in bases):
        try:
            account = await _first(bases, me, well_known(me.name))
        except AccessDenied as error:
            if error.reason == "too_many_requests":
                raise
        except ChatError as error:
            if error.reason != BAD_REQUEST:  # it is no password for a new account there
                raise
        else:
            tell(f"{me.name} logs in with the password that everybody has here; --password asks for one of your own.")
            return account
        tell(f"{me.name} needs a password here.")
    return await _first(bases, me, given if given is not None else await _asked(me.name))


async def _first(bases: Sequence[str], me: Me, password: str) -> "Account":
    """At the first of them that answers."""
    from dragoman.client.chat import Unreachable, login

    for one in bases[:-1]:
        with contextlib.suppress(Unreachable):
            return await login(one, me.name, password, invite=me.invite)
    return await login(bases[-1], me.name, password, invite=me.invite)


async def _asked(name: str) -> str:
    if not sys.stdin.isatty():
        raise Failure(f"Set {PASSWORD_VARIABLE} to the password of {name}.", USAGE)
    try:
        return await asyncio.to_thread(getpass.getpass, f"Password of {name}: ")
    except EOFError:
        raise Failure("No password, no chat.") from None


def _is_here(base_url: str) -> bool:
    return urlsplit(base_url).hostname in LOOPBACK


# ---------------------------------------------------------------- who they are


async def _find(base_url: str, name: str, token: str | None) -> int:
    """The id of a user; one who has not logged in is waited for."""
    if name.isascii() and name.isdecimal():
        return int(name)
    left_s = float("inf") if sys.stdin.isatty() else WAIT_S
    found = await _look_up(base_url, name, token)
    if found is None:
        tell(f"{name} has not logged in yet. Waiting; a user id would do as well, or in another terminal: --as {name}.")
    while found is None:
        if left_s <= 0:
            raise Failure(f"{name} has not logged in. Ask {name} to start first, or give the user id with --to.")
        await asyncio.sleep(LOOK_S)
        left_s -= LOOK_S
        found = await _look_up(base_url, name, token)
    return found


async def _look_up(base_url: str, name: str, token: str | None) -> int | None:
    import aiohttp

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    path = f"{base_url}/api/v1/chat/users/{quote(name, safe='')}"
    try:
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(path, headers=headers) as answer:
            if answer.status == 404:
                return None
            told = await answer.json(content_type=None)
    except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Failure(f"{base_url} does not tell who {name} is: {error or type(error).__name__}.") from None
    if answer.status == 401:
        raise Failure(f"Only operators may look up {name} here: give --token, or a user id with --to.")
    if answer.status != 200:
        raise Failure(f"Dragoman says: {visible(told.get('error', answer.status))}.")
    return int(told["userId"])


def tell(note: str) -> None:
    output.note(note)


def _sentence(error: "ChatError") -> str:
    from dragoman.client.chat import Kicked, Unreachable

    why = visible(error.message).rstrip(".")
    match error:
        case Unreachable():
            return f"{why[0].upper()}{why[1:]}. Is it running? Try --url, or start one: dragoman demo."
        case Kicked():
            return "The same user is connected elsewhere now; one connection each."
    match error.reason:
        case "session_invalid":
            return "The same user logged in elsewhere; this chat is over."
        case "unauthorized":
            return f"The password is not right ({why})."
        case "forbidden":
            return f"The server refuses: {why}."
        case "too_many_requests":
            return f"Too many logins ({why}); try again in a minute."
    return f"The server says: {why} ({visible(error.reason)})."
