"""What `dragoman say` shows: a transcript on a terminal, lines elsewhere, JSON for programs."""

import json
import sys
from bisect import bisect_right
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dragoman.cli import output
from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.client import Event, Line

LATE = "back-filled"
SKIPPED = "skipped: its result did not come in time after a later one"


def show_for(total_ms: int | None, as_json: bool) -> "Show":
    """What suits standard output."""
    if as_json:
        return JsonLines()
    return Screen(total_ms) if sys.stdout.isatty() else Show()


class Show:
    """Each line when it is settled, as it arrives: for files and pipes."""

    def __init__(self) -> None:
        from dragoman.client import Transcript

        self.transcript = Transcript()
        self.lost = 0  # what was not taken, or went with a session

    def __enter__(self) -> None:
        """Before the first event."""

    def __exit__(self, *_: object) -> None:
        """After the last one."""

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
        output.line(_words(line))

    def note(self, note: str) -> None:
        output.note(note)

    def spoke(self, spoken_ms: int) -> None:
        """So much was spoken until now."""

    def said_all(self) -> None:
        """Only answers are to come."""

    def sum_up(self) -> None:
        failed = f", {self.failed} failed" if self.failed else ""
        count = f"{self.translated} utterance{'' if self.translated == 1 else 's'} translated"
        output.error(f"{count if self.translated or failed else 'Nothing was recognised'}{failed}.")


def _words(line: "Line") -> str:
    if line.failure is not None:
        told = f"failed: {line.failure.message} ({line.failure.code})"
    elif line.ended:
        told = SKIPPED if line.ended == "skipped" else f"{line.text_asr}  (nothing was said)"
    elif line.result is None:
        told = f"{line.text_asr} …"
    else:
        told = f"{line.text_asr}  →  {line.text_translated}" + (f"  ({LATE})" if line.backfilled else "")
    told += f"  [{line.job_id}]" if line.job_id else ""
    return visible(f"{line.index:>4}  {' '.join(told.splitlines())}")


def _note(event: "Event") -> str:
    from dragoman.client import Detected, Rejected, Renewed, Resumed, Throttled

    match event:
        case Throttled(action=action, message=why):
            return f"the server asks us to wait: {why or action}"
        case Resumed(sent_again=again, missing=missing):
            lost = f"; {missing} chunks are lost" if missing else ""
            return f"the connection was lost and is back; {again} chunks were sent again{lost}"
        case Renewed():
            return "the session was lost; a new one goes on, and what was not answered is gone"
        case Rejected(code=code, message=message):
            return f"the server says: {message} ({code})"
        case Detected(lang=lang):
            return f"the language is {lang}"
    return ""


class JsonLines(Show):
    def event(self, event: "Event") -> None:
        super().event(event)
        output.line(json.dumps({"event": type(event).__name__.lower(), **_fields(event)}, ensure_ascii=False))

    def line(self, line: "Line") -> None:
        """It is told by its event."""

    def note(self, note: str) -> None:
        """It is told by its event."""

    def sum_up(self) -> None:
        output.line(json.dumps({"event": "end", "translated": self.translated, "failed": self.failed}))


def _fields(event: "Event") -> dict[str, object]:
    from dragoman.client import Result

    if not isinstance(event, Result):
        return asdict(event)
    names = ("session_id", "index", "job_id", "text_asr", "text_translated", "backfilled", "tts_format")
    return {name: getattr(event, name) for name in names} | {"tts_bytes": len(event.tts_audio)}


class Screen(Show):
    """Lines in the order they were spoken, above a bar of how far we are.

    What no longer fits is printed for good, oldest first. A line that belongs among those is printed late.
    """

    def __init__(self, total_ms: int | None) -> None:
        from rich.live import Live

        super().__init__()
        self._console = output.console()
        self._total_ms = total_ms
        self._spoken_ms = 0
        self._doing = "speaking"
        self._last_printed: Line | None = None
        self._live = Live(console=self._console, get_renderable=self._picture, refresh_per_second=8, transient=True)

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
        self._doing = note

    def spoke(self, spoken_ms: int) -> None:
        self._spoken_ms, self._doing = spoken_ms, "speaking"

    def said_all(self) -> None:
        self._doing = "waiting for the last answers"

    def _print(self, line: "Line") -> None:
        # Above what is shown.
        self._console.print(_words(line), soft_wrap=True, style=_style(line))

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        bar = Table.grid(padding=(0, 1))
        total = self._total_ms or None
        of = f" of {total / 1000:.1f}" if total else ""
        bar.add_row(
            ProgressBar(total, self._spoken_ms, width=30, pulse=total is None),
            f"{self._spoken_ms / 1000:.1f}{of} s",
            _row(self._doing, "dim"),
        )
        return Group(*(_row(_words(one), _style(one)) for one in self._shown()), bar)

    def _shown(self) -> "list[Line]":
        """What can still be moved; a copy, since the picture is painted in a thread of its own."""
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
