"""`dragoman chat`: a chat in the terminal, as the user that `--as` names.

A server on this machine without a secret creates an account at the first login. For such a server the command uses a
well-known password if none is given, and says so: the password protects nothing, it makes a first try easy. Elsewhere
an operator or an invite code creates the account.
"""

import asyncio
import contextlib
import getpass
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dragoman.cli import output
from dragoman.cli.api import Token, segment
from dragoman.cli.chat_admin import disconnect, erase_user, invite, status, two_phase, users
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.settings import ConfigFile, Overrides, authority, http_url, is_loopback, option, settings
from dragoman.domain.chat.rules import well_known
from dragoman.protocol.chat import is_lang
from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.client.chat import Account, ChatError

PASSWORD_VARIABLE = "DRAGOMAN_CHAT_PASSWORD"
HISTORY = 20  # messages shown at the start
POLL_S = 1.0
WAIT_S = 30.0  # for the other user to log in, if standard input is no terminal
INTERRUPTED = 130

BAD_REQUEST = "40000"

app = typer.Typer()
app.command("status")(status)
app.command("two-phase")(two_phase)
app.command("disconnect")(disconnect)
app.command("invite")(invite)
app.command("erase-user")(erase_user)
app.add_typer(users, name="user")


class Login(NamedTuple):
    """Who logs in. `ask`: prompt for the password even if it is known."""

    name: str
    ask: bool
    invite: str


@app.callback(invoke_without_command=True)
def chat(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    me: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Your user name.", show_default=False)] = None,
    to: Annotated[str | None, option("--to", metavar="NAME", help="The user to write to: a name or a user id.")] = None,
    url: Annotated[
        list[str] | None,
        option(metavar="URL", help="Address of a server; may be repeated. [http://server.host:server.port]"),
    ] = None,
    ask: Annotated[bool, typer.Option("--password", help=f"Prompt for your password. [${PASSWORD_VARIABLE}]")] = False,
    code: Annotated[str, typer.Option("--invite", metavar="CODE", help="Invite code that creates your account.")] = "",
    lang: Annotated[
        str,
        typer.Option(
            "--lang", metavar="LANGUAGE", help="Your language, such as es: messages to you are shown in it too."
        ),
    ] = "",
    token: Token = None,
) -> int:
    """Chat in the terminal: dragoman chat --as alice --to bob. Without a terminal, each line of input is a message."""
    if ctx.invoked_subcommand is not None:
        return 0
    if not me or not to:
        raise Failure("Name both users: dragoman chat --as alice --to bob.", USAGE)
    if lang and not is_lang(lang):
        raise Failure(f"--lang {visible(lang)} is no language: write for example --lang es.", USAGE)
    server = settings(ctx, config, override).config.server
    bases = [http_url(one) for one in url or [authority(server.host, server.port)]]
    return _run(_chat(bases, Login(me, ask, code), to, lang, token))


def websocket_url(base_url: str) -> str:
    return f"ws{base_url.removeprefix('http')}/ws"


def _run(main: Any) -> int:
    from dragoman.client.chat import ChatError

    try:
        return int(asyncio.run(main))
    except ChatError as error:
        raise Failure(_sentence(error)) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        output.discard()
        return 1


async def _chat(bases: Sequence[str], me: Login, to: str, lang: str, token: str | None) -> int:
    from dragoman.cli.chat_terminal import Conversation, LineChat, TerminalChat
    from dragoman.client.chat import Chat

    account = await _log_in(bases, me)
    peer = await _find(account.base_url, to, token)
    if peer == account.user_id:
        raise Failure(f"--to {to} is yourself. Name another user.", USAGE)
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    talk = Conversation(me.name, to if not to.isdecimal() else f"user {to}", peer, lang)
    interface: TerminalChat | LineChat = TerminalChat(talk) if on_terminal else LineChat(talk)
    history = await account.history(peer, HISTORY, lang=lang) if on_terminal else []
    chat = Chat(
        [websocket_url(one) for one in bases],
        token=account.token,
        on_receipt=interface.on_receipt,
        on_connection=interface.on_connection,
        translate=lang,
        on_translation=interface.on_translation,
    )
    async with chat:
        code = await interface.run(chat, history)
        if interface.at_once:
            await chat.abort()
    return code


# ---------------------------------------------------------------- login


async def _log_in(bases: Sequence[str], me: Login) -> "Account":
    from dragoman.client.chat import AccessDenied, ChatError

    given = None if me.ask else os.environ.get(PASSWORD_VARIABLE)
    if given is None and not me.ask and not me.invite and all(map(is_loopback, bases)):
        try:
            account = await _log_in_at_first(bases, me, well_known(me.name))
        except AccessDenied as error:
            if error.reason == "too_many_requests":
                raise
        except ChatError as error:
            if error.reason != BAD_REQUEST:  # the server does not accept this password for a new account
                raise
        else:
            output.note(f"{me.name} logs in with a well-known password; --password prompts for your own.")
            return account
        output.note(f"{me.name} needs a password on this server.")
    return await _log_in_at_first(bases, me, given if given is not None else await _asked(me.name))


async def _log_in_at_first(bases: Sequence[str], me: Login, password: str) -> "Account":
    """Log in at the first server that answers."""
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
        raise Failure("No password was given.") from None


# ---------------------------------------------------------------- the other user


async def _find(base_url: str, name: str, token: str | None) -> int:
    """The id of a user. Waits for a user who has not logged in yet."""
    if name.isascii() and name.isdecimal():
        return int(name)
    left_s = float("inf") if sys.stdin.isatty() else WAIT_S
    found = await _look_up(base_url, name, token)
    if found is None:
        output.note(f"{name} has not logged in yet. Waiting for it; or give a user id with --to.")
    while found is None:
        if left_s <= 0:
            raise Failure(
                f"{name} has not logged in within {WAIT_S:g} s. Log {name} in first, or give a user id with --to."
            )
        await asyncio.sleep(POLL_S)
        left_s -= POLL_S
        found = await _look_up(base_url, name, token)
    return found


async def _look_up(base_url: str, name: str, token: str | None) -> int | None:
    import aiohttp

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    path = f"{base_url}/api/v1/chat/users/{segment(name)}"
    try:
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(path, headers=headers) as answer:
            if answer.status == 404:
                return None
            body = await answer.json(content_type=None)
    except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Failure(f"{base_url} does not answer for the id of {name}: {error or type(error).__name__}.") from None
    if answer.status == 401:
        raise Failure(
            f"Only operators may look up the id of {name} on this server. Give --token, or a user id with --to."
        )
    if answer.status != 200:
        raise Failure(f"Dragoman answers: {visible(body.get('error', answer.status))}.")
    return int(body["userId"])


def _sentence(error: "ChatError") -> str:
    from dragoman.client.chat import Kicked, Unreachable

    why = visible(error.message).rstrip(".")
    match error:
        case Unreachable():
            return f"{why[0].upper()}{why[1:]}. Start a server with dragoman demo, or give its address with --url."
        case Kicked():
            return "The same user has connected from elsewhere; a user has one connection."
    match error.reason:
        case "session_invalid":
            return "The same user has logged in elsewhere, which ended this login."
        case "unauthorized":
            return f"The password is wrong ({why})."
        case "forbidden":
            return f"The server refuses: {why}."
        case "too_many_requests":
            return f"Too many logins ({why}). Try again in a minute."
    return f"The server answers: {why} ({visible(error.reason)})."
