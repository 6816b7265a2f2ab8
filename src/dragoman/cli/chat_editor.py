"""Edits the line being typed. Keys go in, finished lines come out; other modules read the keyboard and paint."""

import re
from dataclasses import dataclass

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
