"""What operators see and change of chat: status, two-phase switches, connections, accounts and invite codes.

Any instance answers for the whole cluster. A changed switch takes effect on all instances within a second; messages in
transit keep the mode in which they were accepted. Passwords come from a prompt or from the first line of standard
input, never from the command line, which every user of the machine can read.
"""

import getpass
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from dragoman.cli import output
from dragoman.cli.api import NOT_CHANGED, Api, AsJson, Yes, change, segment, with_api
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.settings import option
from dragoman.cli.token import seconds

users = typer.Typer(no_args_is_help=True, help="Add and remove chat users, and set their passwords.")
Name = Annotated[str, typer.Argument(help="Name of the user.", metavar="NAME")]

STATES = {
    "saved": "The message is saved",
    "accepted": "The message is accepted and not saved yet",
    "dead": "The message could not be saved and is a dead letter; its sender was notified",
    "unknown": "No message of that sender has this clientMsgId, or it was never accepted",
}


@with_api
def status(
    api: Api,
    message: Annotated[
        str | None, typer.Argument(help="clientMsgId of one message; without it, the state of chat.", metavar="MESSAGE")
    ] = None,
    sender: Annotated[
        str | None, option("--from", metavar="USER", help="Sender of the message: a user id or a name.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show the switches, the backlog of every shard and the save lag, or the state of one message."""
    if message is None:
        _show(api.get("/api/v1/chat"), _overview, as_json)
        return 0
    if sender is None:
        raise Failure("Name the sender of the message: dragoman chat status MESSAGE --from USER.", USAGE)
    found = api.get(f"/api/v1/chat/messages/{_user_id(api, sender)}/{segment(message)}")
    _show(found, _message, as_json)
    return 1 if found["state"] == "unknown" else 0


@with_api
def two_phase(
    api: Api,
    changes: Annotated[
        list[str] | None,
        typer.Argument(help="`on`, `off`, or switches such as deliver_before_saved=on.", metavar="SWITCH=VALUE"),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Return to the configured switches.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the switches of two-phase chat, or change them in the running cluster."""
    if changes and reset:
        raise Failure("Give either switches or --reset.", USAGE)
    if reset:
        answer = api.delete("/api/v1/chat/switches")
    elif changes:
        answer = api.post("/api/v1/chat/switches", _parsed(changes))
    else:
        answer = api.get("/api/v1/chat/switches")
    _show(answer, _switches, as_json)


@with_api
def disconnect(
    api: Api,
    user: Annotated[str, typer.Argument(help="A user id or a name.", metavar="USER")],
    yes: Yes = False,
) -> None:
    """Close the connection of a chat user. The tokens of the user stay valid, so a client may reconnect."""

    def send() -> None:
        api.delete(f"/api/v1/chat/users/{_user_id(api, user)}/connection")

    change(yes, f"disconnect {user}", send, f"{user} is disconnected.")


ERASED = {
    "messages": "messages are tombstones now",
    "undelivered": "of them were not delivered yet",
    "translations": "translations are deleted",
    "claims": "claims in Redis are deleted",
    "dead_letters": "dead letters are deleted",
    "notices": "notices in Redis are deleted",
}
ERASE_CALLS = 100  # without progress it ends at once


@with_api
def erase_user(
    api: Api,
    user: Annotated[str, typer.Argument(help="A user id or a name.", metavar="USER")],
    yes: Yes = False,
) -> int:
    """Erase a user: every text it has sent, their translations, the account and all its tokens. It cannot be undone."""
    user = _user_id(api, user)
    if not yes:
        output.line(f"would erase the account of user {user} and all texts that it has sent")
        output.line(NOT_CHANGED)
        return 0
    total, account, done = dict.fromkeys(ERASED, 0), False, False
    for _ in range(ERASE_CALLS):
        answer = api.post(f"/api/v1/chat/users/{user}/erase", {})
        done, account = bool(answer["done"]), account or bool(answer["account"])
        for name in total:
            total[name] += int(answer[name])
        if done or not answer["messages"]:
            break
    output.line(f"The account of user {user} is removed." if account else f"User {user} has no account.")
    output.line("All its tokens are invalid.")
    for name, count in total.items():
        output.line(f"{count} {ERASED[name]}.")
    if not done:
        raise Failure(
            "The user is still connected, or messages of it are on their way to the database. Repeat the command with "
            f"the id {user} until it ends without this message."
        )
    return 0


def _parsed(changes: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for given in changes:
        name, equals, value = given.partition("=")
        if not equals and name in ("on", "off"):
            name, value = "enabled", name
        elif not equals or not value:
            raise Failure(
                f"{given!r} is neither on, off, nor a switch with its value, such as rollout_percent=50.", USAGE
            )
        found[name.replace("-", "_")] = value
    return found


def _user_id(api: Api, user: str) -> str:
    if user.isascii() and user.isdecimal():
        return user
    return str(api.get(f"/api/v1/chat/users/{segment(user)}")["userId"])


# ---------------------------------------------------------------- accounts


@users.command("add")
@with_api
def add(api: Api, name: Name) -> None:
    """Create an account. The command prompts for the password or reads the first line of standard input."""
    account = api.post("/api/v1/chat/users", {"username": name, "password": new_password(name)})
    output.line(f"{account['username']} is user {account['userId']}.")


@users.command("passwd")
@with_api
def passwd(api: Api, name: Name) -> None:
    """Set the password of an account. Its connection is closed and all its tokens become invalid."""
    api.post(f"/api/v1/chat/users/{segment(name)}/password", {"password": new_password(name)})
    output.line(f"{name} has a new password and must log in again.")


@users.command("remove")
@with_api
def remove(api: Api, name: Name, yes: Yes = False) -> None:
    """Remove an account. Its connection and tokens end; its messages stay, and no later account gets them."""
    path = f"/api/v1/chat/users/{segment(name)}"
    change(yes, f"remove the account of {name}", lambda: api.delete(path), f"The account of {name} is removed.")


@with_api
def invite(
    api: Api,
    lifetime: Annotated[
        str, typer.Option("--lifetime", metavar="TIME", help="How long the code is valid: a number and s, m, h or d.")
    ] = "7d",
) -> None:
    """Create a code with which one new account can be created, if chat.registration is invite."""
    output.line(api.post("/api/v1/chat/invites", {"ttl_s": seconds(lifetime)})["invite"])


def new_password(name: str) -> str:
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = getpass.getpass(f"New password of {name}: ")
        if password and getpass.getpass("Repeat it: ") != password:
            raise Failure("The two passwords differ. Nothing was changed.", USAGE)
    if not password:
        raise Failure("No password was given. Nothing was changed.", USAGE)
    return password


# ---------------------------------------------------------------- output


def _show(answer: dict[str, Any], lines: Callable[[dict[str, Any]], list[str]], as_json: bool) -> None:
    if as_json:
        output.as_json(answer)
        return
    for line in lines(answer):
        output.line(line)


def _switches(answer: dict[str, Any]) -> list[str]:
    now, configured = answer["switches"], answer["configured"]
    width = max(map(len, now))
    return [
        f"{name:<{width}}  {_text(value)}"
        + (f"  (configured: {_text(configured[name])})" if value != configured[name] else "")
        for name, value in now.items()
    ]


def _overview(chat: dict[str, Any]) -> list[str]:
    on = chat["switches"]
    mode = "off: the sender waits until its message is saved"
    if on["enabled"]:
        mode = "accepted, delivered, saved" if on["deliver_before_saved"] else "accepted, saved, delivered"
        if on["rollout_percent"] < 100:
            mode += f", for {on['rollout_percent']} % of senders"
    lag = chat["save_lag_ms"]
    lags = ", ".join(f"{name} {value:g} ms" for name, value in lag.items() if value is not None) or "nothing saved yet"
    lines = [
        f"two-phase            {mode}",
        f"backlog              {chat['backlog']} of at most {on['max_backlog']}",
        f"two_phase.saveLagMs  {lags} (upper bounds, all instances)",
        f"dead letters         {_dead_letters(chat.get('dead_letters'))}",
        "",
        "shard  owner                            fence  backlog  accepted  to save     saved  dead",
    ]
    for row in chat["shards"]:
        owner = row["holder"].rpartition("|")[0] or "none"
        lines.append(
            f"{row['shard']:>5}  {owner:<31}  {row['fence']:>5}  {row['backlog']:>7}  {row['accepted_len']:>8}  "
            f"{row['to_save_len']:>7}  {row['saved']:>8}  {row['dead_len']:>4}"
        )
    return lines


def _dead_letters(counts: dict[str, Any] | None) -> str:
    """A server of an earlier release does not report them."""
    if counts is None:
        return "unknown"
    bound = f"at most {counts['max_per_shard']} per shard, for {counts['days']:g} days"
    return f"{counts['kept']} kept, {counts['dropped']} dropped ({bound})"


def _message(found: dict[str, Any]) -> list[str]:
    sentence = f"{STATES[found['state']]}."
    facts = {name: value for name, value in found.items() if name != "state"}
    width = max(map(len, facts))
    return [sentence, *(f"  {name:<{width}}  {_text(value)}" for name, value in facts.items())]


def _text(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
