"""The line a person types, key by key. Pure: text in, lines out; who reads keys and who paints is elsewhere."""

import re
from dataclasses import dataclass

END = "\x04"
_ESCAPE = re.compile(r"\x1b(?:\[([0-9;]*)([~A-Za-z])|O([A-Za-z])|$|.)")
_WORD = re.compile(r"\S*\s*$")


@dataclass(slots=True)
class Editor:
    text: str = ""
    at: int = 0  # where the cursor stands in it
    _rest: str = ""  # of an escape sequence that is not complete

    def feed(self, keys: str) -> list[str]:
        """Lines that were finished, and END where the person wants to leave."""
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
        """Arrows, Home, End, Delete; others mean nothing. Returns where the keys go on."""
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
