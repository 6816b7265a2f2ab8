"""`dragoman chat status`, `two-phase` and `disconnect`: what operators see, switch and end of chat.

Any instance answers for the whole cluster; a switch takes effect on all of them within a second, and no message that
is on its way is touched by it.
"""

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, Token, Url
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.operate import Yes, agreed
from dragoman.cli.settings import ConfigFile, Overrides, settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

STATES = {
    "saved": "It is saved",
    "accepted": "It is accepted and on its way to the database",
    "dead": "It could not be saved and is a dead letter; its sender was told",
    "unknown": "No message of that sender has this clientMsgId, or it was never accepted",
}


def status(
    ctx: typer.Context,
    message: Annotated[
        str | None,
        typer.Argument(help="clientMsgId of one message; without it, all of chat.", metavar="MESSAGE"),
    ] = None,
    sender: Annotated[
        str | None, typer.Option("--from", metavar="USER", help="Who sent it: a user id or a name.", show_default=False)
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Show the switches, the backlog of every shard and how late saving is; or where one message is."""
    api = Api(settings(ctx, config, override).config, url, token)
    if message is None:
        told = api.get("/api/v1/chat")
        _show(told, _overview, as_json)
        return 0
    if sender is None:
        raise Failure("Whose message is it? Try: dragoman chat status MESSAGE --from USER.", USAGE)
    where = api.get(f"/api/v1/chat/messages/{_user_id(api, sender)}/{quote(message, safe='')}")
    _show(where, _whereabouts, as_json)
    return 1 if where["state"] == "unknown" else 0


def two_phase(
    ctx: typer.Context,
    changes: Annotated[
        list[str] | None,
        typer.Argument(help="`on`, `off`, or switches such as deliver_before_saved=on.", metavar="SWITCH=VALUE"),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Back to what is configured.")] = False,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show the switches of two-phase chat, or change them on the running cluster."""
    if changes and reset:
        raise Failure("Either switches or --reset, not both.", USAGE)
    api = Api(settings(ctx, config, override).config, url, token)
    if reset:
        told = api.delete("/api/v1/chat/switches")
    elif changes:
        told = api.post("/api/v1/chat/switches", _parsed(changes))
    else:
        told = api.get("/api/v1/chat/switches")
    _show(told, _switches, as_json)


def disconnect(
    ctx: typer.Context,
    user: Annotated[str, typer.Argument(help="A user id or a name.", metavar="USER")],
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    yes: Yes = False,
) -> None:
    """Close the connection of a chat user. Its tokens stay valid, so it may connect again."""
    if not agreed(yes, f"disconnect {user}"):
        return
    api = Api(settings(ctx, config, override).config, url, token)
    api.delete(f"/api/v1/chat/users/{_user_id(api, user)}/connection")
    output.line(f"{user} is disconnected.")


def _parsed(changes: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals and name in ("on", "off"):
            name, value = "enabled", name
        elif not equals or not value:
            raise Failure(f"{change!r} is not on, off, or a switch with its value, such as rollout_percent=50.", USAGE)
        found[name.replace("-", "_")] = value
    return found


def _user_id(api: Api, user: str) -> str:
    if user.isascii() and user.isdecimal():
        return user
    return str(api.get(f"/api/v1/chat/users/{quote(user, safe='')}")["userId"])


# ---------------------------------------------------------------- what is shown


def _show(told: dict[str, Any], lines: Callable[[dict[str, Any]], list[str]], as_json: bool) -> None:
    if as_json:
        output.as_json(told, indent=2)
        return
    for line in lines(told):
        output.line(line)


def _switches(told: dict[str, Any]) -> list[str]:
    now, configured = told["switches"], told["configured"]
    width = max(map(len, now))
    return [
        f"{name:<{width}}  {_word(value)}"
        + (f"  (configured: {_word(configured[name])})" if value != configured[name] else "")
        for name, value in now.items()
    ]


def _overview(told: dict[str, Any]) -> list[str]:
    on = told["switches"]
    way = "off: saved while the sender waits"
    if on["enabled"]:
        way = "accepted, delivered, saved" if on["deliver_before_saved"] else "accepted, saved, delivered"
        if on["rollout_percent"] < 100:
            way += f", for {on['rollout_percent']} % of senders"
    lag = told["save_lag_ms"]
    lags = ", ".join(f"{name} {value:g} ms" for name, value in lag.items() if value is not None) or "nothing saved yet"
    lines = [
        f"two-phase            {way}",
        f"backlog              {told['backlog']} of at most {on['max_backlog']}",
        f"two_phase.saveLagMs  {lags} (upper bounds, all instances)",
        f"dead letters         {_dead_letters(told.get('dead_letters'))}",
        "",
        "shard  holder                           fence  backlog  accepted  to save  pending     saved  dead",
    ]
    for row in told["shards"]:
        pending = row["accepted_pending"] + row["to_save_pending"]
        holder = row["holder"].rpartition("|")[0] or "nobody"
        lines.append(
            f"{row['shard']:>5}  {holder:<31}  {row['fence']:>5}  {row['backlog']:>7}  {row['accepted_len']:>8}  "
            f"{row['to_save_len']:>7}  {pending:>7}  {row['saved']:>8}  {row['dead_len']:>4}"
        )
    return lines


def _dead_letters(told: dict[str, Any] | None) -> str:
    """A server of an earlier release does not say."""
    if told is None:
        return "unknown"
    bound = f"at most {told['max_per_shard']} of a shard, for {told['days']:g} days"
    return f"{told['kept']} kept, {told['dropped']} dropped ({bound})"


def _whereabouts(where: dict[str, Any]) -> list[str]:
    sentence = f"{STATES[where['state']]}."
    facts = {name: value for name, value in where.items() if name != "state"}
    width = max(map(len, facts))
    return [sentence, *(f"  {name:<{width}}  {_word(value)}" for name, value in facts.items())]


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
