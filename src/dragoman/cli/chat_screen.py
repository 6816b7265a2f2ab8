"""Paints a terminal chat: lines that may still change above the line that is typed; what is settled scrolls away.

The moving part is repainted in place as a whole. Lines leave it at its top only, so they stay in order: printed for
good when nothing about them will change, or when there is no room for them.
"""

from collections.abc import Callable

from rich.cells import cell_len, chop_cells

from dragoman.cli.chat_lines import ASCII, MARKS_WIDTH, NOTE, UNICODE, Line, printed

PROMPT = "> "
LEAST_COLUMNS, LEAST_ROWS = 20, 4
_CLEAR_BELOW, _DIM, _RED, _PLAIN = "\x1b[J", "\x1b[2m", "\x1b[31m", "\x1b[0m"
_INDENT = " " * (MARKS_WIDTH + 1)


class Screen:
    def __init__(self, write: Callable[[str], object], size: Callable[[], tuple[int, int]], encoding: str) -> None:
        """`size` answers columns and rows."""
        self.signs = UNICODE if _can_say("".join(UNICODE.values()), encoding) else ASCII
        self._encoding = encoding
        self._write, self._size = write, size
        self._lines: list[Line] = []
        self._above = 0  # rows of the moving part above the one with the cursor
        self._typed, self._at = "", 0

    def add(self, *lines: Line) -> None:
        self._lines += lines
        self.paint()

    def typed(self, text: str, at: int) -> None:
        self._typed, self._at = text, at
        self.paint()

    def paint(self) -> None:
        """The moving part anew, where it stands."""
        columns, rows = self._fitting()
        out = [f"\x1b[{self._above}A" if self._above else "", "\r", _CLEAR_BELOW]
        room = rows - 2
        shown = [self._rows(line, columns) for line in self._lines]
        while self._lines and (self._lines[0].settled or sum(map(len, shown)) > room):
            out += [f"{row}\r\n" for row in shown.pop(0)]
            self._lines.pop(0)
        moving = [row for line in shown for row in line]
        out += [f"{row}\r\n" for row in moving]
        prompt, before = self._prompt(columns)
        out += [prompt, "\r", f"\x1b[{before}C" if before else ""]
        self._above = len(moving)
        self._emit("".join(out))

    def close(self) -> None:
        """All for good; the cursor below it."""
        columns, _ = self._fitting()
        rows = [row for line in self._lines for row in self._rows(line, columns)]
        up = f"\x1b[{self._above}A" if self._above else ""
        self._emit("".join([up, "\r", _CLEAR_BELOW, *(f"{row}\r\n" for row in rows)]))
        self._lines, self._above = [], 0

    def _fitting(self) -> tuple[int, int]:
        columns, rows = self._size()
        return max(columns, LEAST_COLUMNS), max(rows, LEAST_ROWS)

    def _rows(self, line: Line, columns: int) -> list[str]:
        """One row of the screen each, never as wide as it: a terminal may wrap a full one."""
        first, *others = chop_cells(printed(line, self.signs), columns - 1) or [""]
        rows = [first]
        if others:
            rest = "".join(others)
            rows += [_INDENT + part for part in chop_cells(rest, columns - 1 - len(_INDENT))]
        style = _RED if line.sent is not None and line.sent.failed else _DIM if line.who == NOTE else ""
        return [f"{style}{row}{_PLAIN}" if style else row for row in rows]

    def _prompt(self, columns: int) -> tuple[str, int]:
        """The typed line, cut to what is around the cursor, and the cells before the cursor."""
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


def _can_say(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True
