"""`dragoman room`: opens, lists, shows and closes rooms, and writes their transcripts."""

import getpass
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode, urlsplit

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, AsJson, Yes, change, segment, with_api
from dragoman.cli.output import USAGE, Failure

if TYPE_CHECKING:
    from dragoman.config import Config

app = typer.Typer(no_args_is_help=True, help="Open, list, show and close rooms, and write their transcripts.")

ROOMS = "/api/v1/rooms"
PAGE = 200
FORMATS = ("vtt", "srt", "txt", "json")
_LINK = re.compile(r"(?:https?://[^/\s]+)?/room/([A-Za-z0-9_-]{1,64})/?(?:[?#]\S*)?")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CODE = re.compile(r"[0-9]{6}")

RoomName = Annotated[str, typer.Argument(help="The room's id, six-digit code or link.", metavar="ROOM")]


@app.command("open")
@with_api
def open_room(
    api: Api,
    persistent: Annotated[
        bool, typer.Option("--persistent", help="Keep the room open while nobody is in it, for rooms.persistent_days.")
    ] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Let in only clients whose token makes them a host of the room.")
    ] = False,
    guests: Annotated[bool, typer.Option(help="Let in guests who have the link or the code, and no token.")] = True,
    term: Annotated[
        list[str] | None,
        typer.Option(
            "--term", metavar="WORD", help="A word that nodes should know; may be repeated.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open a room and print its link and code. It closes if nobody joins it in time, unless it is persistent."""
    body = {"persistent": persistent, "locked": locked, "guests": guests, "vocabulary": term or []}
    row = api.post(ROOMS, body)
    if as_json:
        output.as_json(row)
        return
    output.line(f"room  {api.base}{row['link']}  (code {row['code']})")
    output.line(f"id    {row['room_id']}")


@app.command("list")
@with_api
def list_rooms(
    api: Api,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rooms.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the open rooms: members by the language they hear, captions and age."""
    rows, more = _rooms(api, count)
    if as_json:
        output.as_json(rows)
        return
    if not rows:
        output.line("No room is open. Open one: dragoman room open")
        return
    table, now_ms = output.table("code", "id", "members>", "hear", "captions>", "age>", "state"), time.time() * 1000
    for row in rows:
        age, members, captions = _age(now_ms - row["created_ms"]), str(row["members"]), str(row["captions"])
        table.add_row(str(row["code"]), str(row["room_id"]), members, _languages(row), captions, age, _state(row))
    output.console().print(table)
    if more:
        output.line("… and more; raise --count to see them.")


@app.command()
@with_api
def show(api: Api, room: RoomName, as_json: AsJson = False) -> None:
    """Show a room and its members, up to 200 of them. A closed room is shown as long as its transcript is kept."""
    row = api.get(f"{ROOMS}/{segment(room_id(api, room))}")
    if as_json:
        output.as_json(row)
        return
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["created_ms"] / 1000))
    facts = {
        "room": f"{api.base}{row['link']}  (code {row['code']})",
        "opened": f"{created}, tenant {row['tenant']}",
        "state": _state(row) or "open",
        "members": f"{row['members']} {f'({hear})' if (hear := _languages(row)) else ''}".strip(),
        "captions": row["captions"],
    }
    for name, fact in facts.items():
        output.line(f"{name:>8}  {fact}")
    if row["listed"]:
        table = output.table("name", "role", "speaks", "hears", "session", "instance")
        for one in row["listed"]:
            table.add_row(*(str(one[name]) for name in ("name", "role", "speaks", "hears", "session", "instance")))
        output.line()
        output.console().print(table)


@app.command()
@with_api
def close(api: Api, room: RoomName, yes: Yes = False) -> None:
    """Close a room for everybody in it. Its transcript is kept for rooms.transcript_hours."""
    id = room_id(api, room)
    change(yes, f"close the room {id}", lambda: api.delete(f"{ROOMS}/{segment(id)}"), f"The room {id} is closed.")


@app.command()
@with_api
def transcript(
    api: Api,
    room: RoomName,
    lang: Annotated[
        str,
        typer.Option(
            "--lang",
            metavar="LANG",
            help="Language of the transcript; what has no translation into it stays as it was said, marked. Without "
            "this option, everything as it was said.",
            show_default=False,
        ),
    ] = "",
    format: Annotated[str, typer.Option(metavar="FORMAT", help="vtt (WebVTT), srt, txt or json.")] = "txt",
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file.", show_default="standard output"),
    ] = None,
) -> None:
    """Write the transcript of a room, also of one that was closed. A client token of a member is accepted as well."""
    if format not in FORMATS:
        raise Failure(f"--format {format!r} is unknown. Choose one of: {', '.join(FORMATS)}.", USAGE)
    query = urlencode({"lang": lang, "format": format})
    received = api.get_bytes(f"{ROOMS}/{segment(room_id(api, room))}/transcript?{query}")
    if file is None:
        output.block(received.decode(errors="replace"), end="\n" if format == "json" else "")
        return
    try:
        file.write_bytes(received)
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}.") from None


# -- rooms ---------------------------------------------------------------------------------------


def parse(text: str) -> tuple[str, str]:
    """The id and the code in an id, a code or a link; one of them is empty."""
    text = text.strip()
    if _CODE.fullmatch(text):
        return "", text
    found = _LINK.fullmatch(text)
    id = found[1] if found is not None else text
    if not _ID.fullmatch(id):
        raise Failure(f"{text!r} is not a room. Give its id, its six-digit code or its link.", USAGE)
    return id, ""


def room_id(api: Api, text: str) -> str:
    id, code = parse(text)
    if id:
        return id
    found = [row for row in api.get(f"{ROOMS}?part={code}")["rooms"] if row["code"] == code]
    if not found:
        raise Failure(f"No open room has the code {code}.")
    return str(found[0]["room_id"])


def _rooms(api: Api, count: int) -> tuple[list[dict[str, Any]], bool]:
    found: list[dict[str, Any]] = []
    after = ""
    while len(found) < count:
        page = api.get(f"{ROOMS}?count={min(PAGE, count - len(found))}&after={segment(after)}")
        found += page["rooms"]
        after = page["next"]
        if not after:
            break
    return found, bool(after)


def _languages(row: dict[str, Any]) -> str:
    return ", ".join(f"{lang} {members}" for lang, members in sorted(row["languages"].items()))


def _state(row: dict[str, Any]) -> str:
    if row["closed"]:
        return f"closed: {row['closed']}"
    return ", ".join(name for name in ("locked", "paused", "persistent") if row[name])


def _age(ms: float) -> str:
    minutes, seconds = divmod(int(max(0.0, ms) / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds} s"


def server_of(room: str) -> str:
    """The server in the link of a room; '' if it is not a link."""
    parts = urlsplit(room.strip())
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else ""


def user_name(otherwise: str) -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return otherwise


class Guest:
    """Asks the server for tokens."""

    def __init__(self, config: "Config", url: str, name: str) -> None:
        parts = urlsplit(url)
        self._base = f"{'https' if parts.scheme == 'wss' else 'http'}://{parts.netloc}"
        self._config, self._name, self.token, self.lifetime_s = config, name, "", 0.0

    def join(self, **room: str) -> tuple[str, str]:
        """The token ('' if the server needs none) and the id of the room; a guest that has a token gets a new one."""
        api = Api(self._config, self._base, self.token or None)
        answer = api.post(f"{ROOMS}/join", {**room, "name": self._name})
        self.token, self.lifetime_s = str(answer["token"]), float(answer["expires_in_s"])
        return self.token, str(answer["room_id"])
