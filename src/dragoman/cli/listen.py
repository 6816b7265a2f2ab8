"""`dragoman listen`: joins a room and prints what is said in it, in one's own language.

On a terminal originals are dimmed, and typed lines are written into the room. Elsewhere each caption is one line. The
command ends with the room, or by Ctrl-C. A server with a secret gives a guest a token if the room allows guests.
"""

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import output
from dragoman.cli.output import Failure
from dragoman.cli.room import Guest, parse, server_of, user_name
from dragoman.cli.say import ClientToken, Urls, sentence_of
from dragoman.cli.settings import ConfigFile, Overrides, authority, option, session_url, settings
from dragoman.cli.terminal_io import read_stdin, signal_handlers

if TYPE_CHECKING:
    from dragoman.client import Room, RoomCaption

MAX_LINE_BYTES = 65536


def listen(
    ctx: typer.Context,
    room: Annotated[str, option("--room", metavar="ROOM", help="The room's six-digit code, id or link.")],
    config: ConfigFile = None,
    override: Overrides = None,
    lang: Annotated[str, typer.Option("--lang", metavar="LANG", help="Language to read, and to write in.")] = "en",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name that the others see.", show_default="the user's")
    ] = "",
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with everything said before.")] = False,
    originals: Annotated[
        bool, typer.Option(help="Also print what was said in other languages, as it was said.")
    ] = True,
    url: Urls = None,
    token: ClientToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each caption as one line of JSON.")] = False,
) -> int:
    """Join a room and print what is said in it, translated. Typed lines are written into the room.

    Example: dragoman listen --room 123456 --lang es
    """
    id, code = parse(room)
    loaded = settings(ctx, config, override).config
    urls = [session_url(one) for one in url or [server_of(room) or authority(loaded.server.host, loaded.server.port)]]
    name, guest = name or user_name("listener"), None
    if token is None:
        guest = Guest(loaded, urls[0], name)
        token, id = guest.join(room_id=id, code=code)

    from dragoman.client import Room, SessionError

    member = Room(
        urls,
        room=id,
        code=code,
        name=name,
        speaks=lang,
        originals=originals,
        from_start=from_start,
        token=token or None,
    )
    try:
        asyncio.run(Listener(member, lang, guest if token else None, as_json=as_json).run())
    except SessionError as error:
        raise Failure(sentence_of(error)) from None
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        output.discard()
        return 1
    return 0


class Listener:
    """Prints the captions of a room, and writes typed lines into it."""

    def __init__(self, room: "Room", lang: str, guest: Guest | None, *, as_json: bool) -> None:
        self._room, self._lang, self._guest, self._as_json = room, lang, guest, as_json
        self._console = output.console() if sys.stdout.isatty() and not as_json else None
        self._writes = sys.stdin is not None and sys.stdin.isatty()

    async def run(self) -> None:
        async with self._room as room:
            self._greet()
            reading = asyncio.ensure_future(self._read())
            typing = asyncio.ensure_future(self._type()) if self._writes else None
            renewing = asyncio.ensure_future(self._renew(self._guest)) if self._guest is not None else None
            try:
                with signal_handlers({SIGINT: reading.cancel, SIGTERM: reading.cancel}):
                    await asyncio.wait({reading, *([typing] if typing else [])}, return_when=asyncio.FIRST_COMPLETED)
                    if reading.done() and not reading.cancelled():
                        reading.result()
                        output.note(room.ended or "the room is over")
            finally:
                for task in filter(None, (reading, typing, renewing)):
                    task.cancel()
                    await asyncio.wait({task})

    def _greet(self) -> None:
        room, how = self._room, "type to write, " if self._writes else ""
        output.note(f"in room {room.code}, {how}Ctrl-C leaves")
        if room.unserved:
            output.note(f"no node translates into {room.unserved} now: captions are shown as they were said")
        if not room.complete:
            output.note("the room no longer has everything that was said in it")

    async def _renew(self, guest: Guest) -> None:
        """A new token in time for the next lost connection."""
        while True:
            await asyncio.sleep(guest.lifetime_s / 2)
            with suppress(Failure):  # the room says more, if there is more to say
                token, _ = await asyncio.to_thread(guest.join, room_id=self._room.id)
                self._room.use_token(token)

    async def _read(self) -> None:
        async for caption in self._room:
            self._print(caption)

    async def _type(self) -> None:
        """Write the lines of standard input into the room, until it ends."""
        from dragoman.client import SessionError

        buffer = b""
        async for data in read_stdin(MAX_LINE_BYTES):
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                if text := line.decode(errors="replace").strip():
                    try:
                        await self._room.write(text)
                    except SessionError as error:
                        output.note(f"not written: {error.message}")

    def _print(self, caption: "RoomCaption") -> None:
        if self._as_json:
            told = {name: value for name, value in asdict(caption).items() if name != "audio"}
            output.line(json.dumps(told, ensure_ascii=False))
        elif self._console is None:
            output.columns(*line_of(caption, self._lang))
        elif not (self._writes and caption.speaker_session == self._room.session_id):  # that line is on the screen
            name, mark, text = line_of(caption, self._lang)
            style = "dim" if mark else ""
            self._console.print(
                output.styled((f"{name}: ", f"bold {style}"), (f"{mark} " if mark else "", style), (text, style)),
                soft_wrap=True,
            )


def line_of(caption: "RoomCaption", lang: str) -> tuple[str, str, str]:
    """Speaker, mark and text. The mark says why the text is not in `lang`: its language, or what failed."""
    name, text = caption.speaker or "?", " ".join(caption.text.split())
    if caption.lost:
        return name, f"[lost: {caption.lost}]", ""
    if caption.untranslated:
        return name, f"[not translated: {caption.untranslated}]", text
    return name, "" if caption.translation is not None or caption.lang == lang else f"[{caption.lang}]", text
