"""The output of `dragoman say`: a transcript on a terminal, lines elsewhere, JSON for programs.

`dragoman say --room` prints each caption as one line when it is in the log of the room. Ctrl-C stops sending, waits for
the captions of what was sent and leaves; a second Ctrl-C ends the command at once.
"""

import asyncio
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any

from dragoman.cli import output
from dragoman.cli.terminal_io import signal_handlers
from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.client import Event, Line, Room, RoomCaption

BACKFILLED = "backfilled"
SKIPPED = "skipped: no result in time after a later utterance"


def output_for(total_ms: int | None, as_json: bool) -> "LineOutput":
    """The output that fits standard output."""
    if as_json:
        return JsonOutput()
    return ScreenOutput(total_ms) if sys.stdout.isatty() else LineOutput()


class LineOutput:
    """Prints each line when it is final, for files and pipes."""

    def __init__(self) -> None:
        from dragoman.client import Transcript

        self.transcript = Transcript()
        self.lost = 0  # utterances that were rejected, or lost with a session

    def __enter__(self) -> None:
        """Called before the first event."""

    def __exit__(self, *_: object) -> None:
        """Called after the last event."""

    @property
    def translated(self) -> int:
        return sum(line.result is not None for line in self.transcript.lines)

    @property
    def failed(self) -> int:
        without = (line.failure is not None or line.ended == "skipped" for line in self.transcript.lines)
        return sum(without) + self.lost

    def event(self, event: "Event") -> None:
        from dragoman.client import Rejected, Renewed

        self.lost += isinstance(event, Rejected | Renewed)
        line = self.transcript.add(event)
        if line is not None:
            self.line(line)
        elif note := _note(event):
            self.note(note)

    def line(self, line: "Line") -> None:
        if line.done:
            self._print(line)

    def _print(self, line: "Line") -> None:
        output.line(_text(line))

    def note(self, note: str) -> None:
        output.note(note)

    def sent(self, sent_ms: int) -> None:
        """Show how much was sent."""

    def sent_all(self) -> None:
        """Show that only results are outstanding."""

    def sum_up(self) -> None:
        """Print the numbers of translated and failed utterances."""
        failed = f", {self.failed} failed" if self.failed else ""
        count = f"{self.translated} utterance{'' if self.translated == 1 else 's'} translated"
        output.error(f"{count if self.translated or failed else 'Nothing was recognised'}{failed}.")


def _text(line: "Line") -> str:
    if line.failure is not None:
        text = f"failed: {line.failure.message} ({line.failure.code})"
    elif line.ended:
        text = SKIPPED if line.ended == "skipped" else f"{line.text_asr}  (no speech)"
    elif line.result is None:
        text = f"{line.text_asr} …"
    else:
        text = f"{line.text_asr}  →  {line.text_translated}" + (f"  ({BACKFILLED})" if line.backfilled else "")
    text += f"  [{line.job_id}]" if line.job_id else ""
    return visible(f"{line.index:>4}  {' '.join(text.splitlines())}")


def _note(event: "Event") -> str:
    from dragoman.client import Detected, Rejected, Renewed, Resumed, Throttled

    match event:
        case Throttled(action=action, message=why):
            return f"paused by the server: {why or action}"
        case Resumed(sent_again=again, missing=missing):
            lost = f"; {missing} chunks were lost" if missing else ""
            return f"reconnected; {again} chunks were sent again{lost}"
        case Renewed():
            return "the session was lost and a new one was opened; results that were outstanding are lost"
        case Rejected(code=code, message=message):
            return f"the server answers: {message} ({code})"
        case Detected(lang=lang):
            return f"detected language: {lang}"
    return ""


class JsonOutput(LineOutput):
    def event(self, event: "Event") -> None:
        super().event(event)
        output.line(json.dumps({"event": type(event).__name__.lower(), **_fields(event)}, ensure_ascii=False))

    def line(self, line: "Line") -> None:
        """Printed as an event."""

    def note(self, note: str) -> None:
        """Printed as an event."""

    def sum_up(self) -> None:
        output.line(json.dumps({"event": "end", "translated": self.translated, "failed": self.failed}))


def _fields(event: "Event") -> dict[str, object]:
    from dragoman.client import Result

    if not isinstance(event, Result):
        return asdict(event)
    names = ("session_id", "index", "job_id", "text_asr", "text_translated", "backfilled", "tts_format")
    return {name: getattr(event, name) for name in names} | {"tts_bytes": len(event.tts_audio)}


class ScreenOutput(LineOutput):
    """Shows the lines in the order of the speech, above a progress bar.

    Lines that no longer fit are printed for good, oldest first. A result for such a line is printed when it arrives.
    """

    def __init__(self, total_ms: int | None) -> None:
        from rich.live import Live

        super().__init__()
        self._console = output.console()
        self._total_ms = total_ms
        self._sent_ms = 0
        self._activity = "sending"
        self._last_printed: Line | None = None
        self._live = Live(console=self._console, get_renderable=self._live_part, refresh_per_second=8, transient=True)

    def __enter__(self) -> None:
        self._live.start(refresh=True)

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        for line in self._shown():
            self._print(line)

    def line(self, line: "Line") -> None:
        if self._last_printed is not None and line <= self._last_printed:
            super().line(line)
        shown = self._shown()
        too_many = len(shown) - max(1, self._console.height - 4)
        for gone in shown[: max(0, too_many)]:
            self._print(gone)
            self._last_printed = gone

    def note(self, note: str) -> None:
        self._activity = note

    def sent(self, sent_ms: int) -> None:
        self._sent_ms, self._activity = sent_ms, "sending"

    def sent_all(self) -> None:
        self._activity = "waiting for the last results"

    def _print(self, line: "Line") -> None:
        # `rich` prints it above the live part.
        self._console.print(_text(line), soft_wrap=True, style=_style(line))

    def _live_part(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        bar = Table.grid(padding=(0, 1))
        total = self._total_ms or None
        of = f" of {total / 1000:.1f}" if total else ""
        bar.add_row(
            ProgressBar(total, self._sent_ms, width=30, pulse=total is None),
            f"{self._sent_ms / 1000:.1f}{of} s",
            _row(self._activity, "dim"),
        )
        return Group(*(_row(_text(one), _style(one)) for one in self._shown()), bar)

    def _shown(self) -> "list[Line]":
        """The lines of the live part; a copy, because another thread renders it."""
        lines, last = self.transcript.lines, self._last_printed
        return lines[0 if last is None else bisect_right(lines, last) :]


def _row(text: str, style: str) -> Any:
    row = output.styled((text, style))
    row.no_wrap, row.overflow = True, "ellipsis"
    return row


def _style(line: "Line") -> str:
    if line.failure is not None or line.ended == "skipped":
        return "red"
    return "dim" if line.result is None else "yellow" if line.backfilled else ""


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
