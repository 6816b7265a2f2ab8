"""`dragoman say --room`: speaks into a room, and prints what its captions are.

Each caption is one line when it is in the log of the room. Ctrl-C stops sending, waits for the captions of what was
sent and leaves; a second Ctrl-C ends the command at once.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any

from dragoman.cli import output
from dragoman.cli.terminal_io import signal_handlers
from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.client import Event, Room, RoomCaption

Speak = Callable[["Room"], Coroutine[Any, Any, None]]


class RoomSpeaker:
    def __init__(self, speak: Speak, *, as_json: bool) -> None:
        """`speak` sends everything, and cuts."""
        self._speak, self._as_json = speak, as_json
        self.captions = self.failed = 0
        self.interrupted = False

    async def run(self, member: "Room") -> None:
        async with member as room:
            speaking = asyncio.ensure_future(self._speak(room))
            reading = asyncio.ensure_future(self._read(room))
            running = asyncio.current_task()

            def interrupt() -> None:
                if self.interrupted and running is not None:
                    running.cancel()
                self.interrupted = True
                speaking.cancel()

            output.note(f"in room {room.code}, Ctrl-C ends the speech and leaves")
            try:
                with signal_handlers({SIGINT: interrupt, SIGTERM: interrupt}):
                    await asyncio.wait({speaking, reading}, return_when=asyncio.FIRST_COMPLETED)
                    if speaking.done() and not speaking.cancelled():
                        speaking.result()
                    if not reading.done():
                        await room.wait_said()
            finally:
                speaking.cancel()
                await asyncio.wait({speaking})
        with suppress(asyncio.CancelledError):
            await reading

    async def _read(self, room: "Room") -> None:
        """Its own captions."""
        async for caption in room:
            if caption.speaker_session == room.session_id and caption.translation is None and not caption.untranslated:
                self.captions += not caption.lost
                self.failed += bool(caption.lost)
                self._print(caption)

    def _print(self, caption: "RoomCaption") -> None:
        if self._as_json:
            told = {name: value for name, value in asdict(caption).items() if name != "audio"}
            output.line(json.dumps(told, ensure_ascii=False))
        else:
            text = f"[lost: {caption.lost}]" if caption.lost else " ".join(caption.text.split())
            output.line(visible(f"{caption.seq:>4}  {text}  [{caption.id}]"))

    def on_event(self, event: "Event") -> None:
        """What the session reports beside captions: an utterance that failed is not always in the log."""
        from dragoman.client import Failed, Rejected, Renewed, Throttled

        match event:
            case Failed(code=code, message=message, index=index):
                self.failed += 1
                output.note(f"utterance {index} failed: {message} ({code})")
            case Rejected(code=code, message=message):
                self.failed += 1
                output.note(f"the server answers: {message} ({code})")
            case Throttled(action=action, message=why):
                output.note(f"paused by the server: {why or action}")
            case Renewed():
                output.note("the session was lost and a new one was opened; what was being said is lost")

    def sum_up(self) -> None:
        failed = f", {self.failed} failed" if self.failed else ""
        count = f"{self.captions} caption{'' if self.captions == 1 else 's'}"
        output.error(f"{count if self.captions or failed else 'Nothing was recognised'}{failed}.")
