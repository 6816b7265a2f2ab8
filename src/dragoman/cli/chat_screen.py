"""The screen and the line editor of a terminal chat.

One line for each message, with marks for its receipts, above the line being typed:

    ·      sent             ✓      accepted by the server               ✓✓     saved in the database
    ✓✓ →   delivered        ✓✓ ●   read                                 ✗      refused, with the reason

A message can be delivered before or after it is saved, so each has its own mark. Lines that may still change are
repainted in place; a line leaves this part at its top only, so lines keep their order. It is printed for good when
nothing about it can change, or when there is no room for it.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, chop_cells

from dragoman.visible import visible

if TYPE_CHECKING:
    from dragoman.client.chat import Sent, StoredMessage


MARKS_WIDTH = 5
UNICODE = {"sent": "·", "accepted": "✓", "saved": "✓✓", "delivered": "→", "read": "●", "failed": "✗"}
ASCII = {"sent": ".", "accepted": "+", "saved": "++", "delivered": ">", "read": "*", "failed": "x"}
NOTE = "-"
GONE = "(erased)"  # instead of the text of a message whose sender was erased
PROMPT = "> "
MIN_COLUMNS, MIN_ROWS = 20, 4
_CLEAR_BELOW, _DIM, _RED, _PLAIN = "\x1b[J", "\x1b[2m", "\x1b[31m", "\x1b[0m"
_INDENT = " " * (MARKS_WIDTH + 1)


@dataclass(slots=True)
class Line:
    """A message of `who`, or a note. `sent` is set for a message that was sent from this chat."""

    who: str
    text: str
    at: str = ""
    sent: "Sent | None" = None
    marks: str = ""  # of a message from the history
    translation: str | None = None
    awaits_translation: bool = False

    @property
    def is_final(self) -> bool:
        """Whether nothing about the line can change any more."""
        if self.awaits_translation:
            return False
        return self.sent is None or bool(self.sent.read) or self.sent.failed is not None


def marks_of(sent: "Sent", symbols: dict[str, str]) -> str:
    if sent.failed is not None:
        return symbols["failed"]
    kept = "saved" if sent.saved else "accepted" if sent.accepted else "sent"
    theirs = "read" if sent.read else "delivered" if sent.delivered else ""
    return f"{symbols[kept]:<2} {symbols[theirs]}" if theirs else symbols[kept]


def legend(symbols: dict[str, str]) -> str:
    return "  ".join(f"{symbol} {state}" for state, symbol in symbols.items())


def printed(line: Line, symbols: dict[str, str]) -> str:
    """The line as text; it may be wider than the screen."""
    marks = line.marks if line.sent is None else marks_of(line.sent, symbols)
    reason = f"  ({line.sent.failed})" if line.sent is not None and line.sent.failed else ""
    who = f"{line.who}: " if line.who != NOTE else ""
    text = visible(" ".join(f"{who}{line.text}{reason}".splitlines()))
    return f"{marks:<{MARKS_WIDTH}} {line.at + ' ' if line.at else ''}{text}"


def history_line(stored: "StoredMessage", me: int, my_name: str, their_name: str, symbols: dict[str, str]) -> Line:
    mine = stored.from_user == me
    marks = ""
    if mine:
        theirs = {"DELIVERED": "delivered", "READ": "read"}.get(stored.status, "")
        marks = f"{symbols['saved']:<2} {symbols[theirs]}" if theirs else symbols["saved"]
    return Line(
        my_name if mine else their_name, stored.body or GONE, clock(stored.created_at), None, marks, stored.translation
    )


def clock(moment: Any) -> str:
    """Hours and minutes of a time in ms, or of a date and time as text."""
    if isinstance(moment, int | float):
        return time.strftime("%H:%M", time.localtime(moment / 1000))
    _, _, time_of_day = str(moment or "").replace("T", " ").partition(" ")
    return time_of_day[:5]


def now() -> str:
    return time.strftime("%H:%M")


class Screen:
    def __init__(self, write: Callable[[str], object], size: Callable[[], tuple[int, int]], encoding: str) -> None:
        """`size` returns columns and rows."""
        self.symbols = UNICODE if _can_encode("".join(UNICODE.values()), encoding) else ASCII
        self._encoding = encoding
        self._write, self._size = write, size
        self._lines: list[Line] = []
        self._above = 0  # rows of the live part above the row of the cursor
        self._typed, self._at = "", 0

    def add(self, *lines: Line) -> None:
        self._lines += lines
        self.paint()

    def translated(self, line: Line, text: str) -> None:
        """Under the original, or, if that has been printed for good, below everything, with the beginning of it."""
        line.awaits_translation = False
        if any(one is line for one in self._lines):
            line.translation = text
        else:
            start = line.text if len(line.text) <= 20 else f"{line.text[:19]}…"
            self._lines.append(Line(NOTE, f'{line.who}: "{start}"', translation=text))
        self.paint()

    def typed(self, text: str, at: int) -> None:
        self._typed, self._at = text, at
        self.paint()

    def paint(self) -> None:
        """Repaint the live part in place."""
        columns, rows = self._usable_size()
        out = [f"\x1b[{self._above}A" if self._above else "", "\r", _CLEAR_BELOW]
        max_rows = rows - 2
        shown = [self._rows(line, columns) for line in self._lines]
        while self._lines and (self._lines[0].is_final or sum(map(len, shown)) > max_rows):
            out += [f"{row}\r\n" for row in shown.pop(0)]
            self._lines.pop(0)
        live = [row for line in shown for row in line]
        out += [f"{row}\r\n" for row in live]
        prompt, before = self._prompt(columns)
        out += [prompt, "\r", f"\x1b[{before}C" if before else ""]
        self._above = len(live)
        self._emit("".join(out))

    def close(self) -> None:
        """Print all lines for good and put the cursor below them."""
        columns, _ = self._usable_size()
        rows = [row for line in self._lines for row in self._rows(line, columns)]
        up = f"\x1b[{self._above}A" if self._above else ""
        self._emit("".join([up, "\r", _CLEAR_BELOW, *(f"{row}\r\n" for row in rows)]))
        self._lines, self._above = [], 0

    def _usable_size(self) -> tuple[int, int]:
        columns, rows = self._size()
        return max(columns, MIN_COLUMNS), max(rows, MIN_ROWS)

    def _rows(self, line: Line, columns: int) -> list[str]:
        """The rows of a line, each narrower than the screen: a terminal may wrap a full row."""
        first, *others = chop_cells(printed(line, self.symbols), columns - 1) or [""]
        rows = [first]
        if others:
            rest = "".join(others)
            rows += [_INDENT + part for part in chop_cells(rest, columns - 1 - len(_INDENT))]
        style = _RED if line.sent is not None and line.sent.failed else _DIM if line.who == NOTE else ""
        rows = [f"{style}{row}{_PLAIN}" if style else row for row in rows]
        if line.translation is not None:
            text = visible(" ".join(line.translation.splitlines()))
            rows += [_INDENT + part for part in chop_cells(text, columns - 1 - len(_INDENT)) or [""]]
        return rows

    def _prompt(self, columns: int) -> tuple[str, int]:
        """The typed line, cut to the part around the cursor, and the number of cells before the cursor."""
        room = columns - 1 - len(PROMPT)
        before, after = self._typed[: self._at], self._typed[self._at :]
        while cell_len(before) > room:
            before = before[1:]
        shown = before
        for char in after:
            if cell_len(shown + char) > room:
                break
            shown += char
        return PROMPT + shown, len(PROMPT) + cell_len(before)

    def _emit(self, text: str) -> None:
        self._write(text.encode(self._encoding, "replace").decode(self._encoding))


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


# -- chat editor -----------------------------------------------------------------------------------
#
# Edits the line being typed. Keys go in, finished lines come out; other modules read the keyboard and paint.


END = "\x04"
_ESCAPE = re.compile(r"\x1b(?:\[([0-9;]*)([~A-Za-z])|O([A-Za-z])|$|.)")
_WORD = re.compile(r"\S*\s*$")


@dataclass(slots=True)
class Editor:
    text: str = ""
    at: int = 0  # position of the cursor
    _rest: str = ""  # an incomplete escape sequence

    def feed(self, keys: str) -> list[str]:
        """Process keys. Returns the finished lines, and END for Ctrl-D on an empty line."""
        keys, self._rest = self._rest + keys, ""
        done: list[str] = []
        position = 0
        while position < len(keys):
            if keys[position] == "\x1b":
                if _unfinished(keys[position:]):
                    self._rest = keys[position:]
                    break
                position = self._escape(keys, position)
            else:
                done += self._key(keys[position])
                position += 1
        return done

    def _key(self, key: str) -> list[str]:
        match key:
            case "\r" | "\n":
                line, self.text, self.at = self.text, "", 0
                return [line]
            case "\x04":
                return [END] if not self.text else []
            case "\x7f" | "\x08":
                self._cut(max(self.at - 1, 0), self.at)
            case "\x15":
                self._cut(0, self.at)
            case "\x0b":
                self._cut(self.at, len(self.text))
            case "\x17":
                found = _WORD.search(self.text[: self.at].rstrip())
                self._cut(found.start() if found else 0, self.at)
            case "\x01":
                self.at = 0
            case "\x05":
                self.at = len(self.text)
            case _:
                self._insert(" " if key == "\t" else key)
        return []

    def _insert(self, char: str) -> None:
        if char.isprintable():
            self.text = self.text[: self.at] + char + self.text[self.at :]
            self.at += 1

    def _cut(self, start: int, end: int) -> None:
        self.text, self.at = self.text[:start] + self.text[end:], start

    def _escape(self, keys: str, position: int) -> int:
        """Process an escape sequence: arrows, Home, End, Delete; others are ignored. Returns the position after it."""
        found = _ESCAPE.match(keys, position)
        if found is None:
            return position + 1
        match found[1] or "", found[2] or found[3]:
            case "", "D":
                self.at = max(self.at - 1, 0)
            case "", "C":
                self.at = min(self.at + 1, len(self.text))
            case ("", "H") | ("1", "~"):
                self.at = 0
            case ("", "F") | ("4", "~"):
                self.at = len(self.text)
            case "3", "~":
                self._cut(self.at, min(self.at + 1, len(self.text)))
        return found.end()


def _unfinished(keys: str) -> bool:
    return re.fullmatch(r"\x1b(\[[0-9;]*|O)", keys) is not None
