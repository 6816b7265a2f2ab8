"""Reads the YAML that our compose file is written in: a part of the language, so that no parser has to be installed.

Maps and lists by indentation, `- scalar` items, JSON in flow (`["a", "b"]`, `{}`), strings plain or in double quotes,
comments, an anchor on a map (`name: &anchor`) and its merge (`<<: *anchor`). Whatever else stands there is refused: a
file that this reads means the same to every YAML parser.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_KEY = re.compile(r"(?P<key>[\w<.-]+):(?: +(?P<rest>.+))?$")
_PLAIN = re.compile(r"-{0,2}[\w./][\w./:@ +-]*$")
_ANCHOR = re.compile(r"&(\w+)$")


class NotPlain(Exception):
    """A line that is YAML perhaps, but not this kind of it."""


def loads(text: str) -> dict[str, Any]:
    reader = _Reader(text)
    tree = reader.block(0)
    if reader.lines or not isinstance(tree, dict):
        raise NotPlain(f"not a map: {reader.lines[:1]}")
    return tree


class _Reader:
    def __init__(self, text: str) -> None:
        stripped = [(number, _without_comment(line)) for number, line in enumerate(text.splitlines(), 1)]
        self.lines = [(number, len(line) - len(line.lstrip()), line.strip()) for number, line in stripped if line]
        self.anchors: dict[str, dict[str, Any]] = {}

    def block(self, indent: int) -> Any:
        return self._list(indent) if self.lines[0][2].startswith("- ") else self._map(indent)

    def _list(self, indent: int) -> list[Any]:
        items = []
        while self.lines and self.lines[0][1] == indent and self.lines[0][2].startswith("- "):
            number, _, line = self.lines.pop(0)
            item = line[2:].strip()
            if match := _KEY.match(item):  # a map of one key: enough for what we write
                items.append({match["key"]: _scalar(match["rest"] or "", number)})
            else:
                items.append(_scalar(item, number))
        return items

    def _map(self, indent: int) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        merged: Mapping[str, Any] = {}
        while self.lines and self.lines[0][1] == indent:
            number, _, line = self.lines.pop(0)
            match = _KEY.match(line)
            if match is None or match["key"] in tree:
                raise NotPlain(f"line {number}: {line}")
            if match["key"] == "<<":
                merged = self.anchors[(match["rest"] or "").removeprefix("*")]
            else:
                tree[match["key"]] = self._value(match["rest"], indent, number)
        if self.lines and self.lines[0][1] > indent:
            raise NotPlain(f"line {self.lines[0][0]}: indented too far")
        return {**merged, **tree}

    def _value(self, rest: str | None, indent: int, number: int) -> Any:
        anchor = _ANCHOR.match(rest or "")
        if rest and anchor is None:
            return _scalar(rest, number)
        if not self.lines or self.lines[0][1] <= indent:
            raise NotPlain(f"line {number}: nothing below it")
        below = self.block(self.lines[0][1])
        if anchor is not None:
            self.anchors[anchor[1]] = below
        return below


def _without_comment(line: str) -> str:
    """Comments begin after a space, outside of quotes."""
    if line.lstrip().startswith("#"):
        return ""
    outside = re.match(r'(?:"(?:[^"\\]|\\.)*"|(?<!\s)#|[^"#])*', line)
    return outside[0].rstrip() if outside else ""


def _scalar(text: str, number: int) -> Any:
    if text.startswith(('"', "[", "{")):
        return json.loads(text)
    if text in ("true", "false"):
        return text == "true"
    if text.isdecimal():
        return int(text)
    # Words that other parsers take for something else than a string must be quoted.
    if not _PLAIN.match(text) or ": " in text or text.lower() in ("yes", "no", "on", "off", "null", "~"):
        raise NotPlain(f"line {number}: {text}")
    return text
