"""A Lua file is a typed function: its header names its keys and arguments, and this loader binds them.

    -- Take one slot of a node for a job.
    --
    -- KEYS  reserved  zset  job ids by expiry, ms
    -- ARGV  job       str
    --       now       now   '' = Redis TIME (only tests pass a number)
    --       limit     int   slots the node has
    --
    -- Returns 'OK' or 'FULL'.

    verdict = await RESERVE_SLOT(redis, reserved=keys.reserved(node), job=job, limit=4)

The same header makes the locals inside the script (`reserved`, `job`, `now`, `limit`), so order and
count cannot drift between the two sides. Kinds of arguments: `str`, `int` (tonumber'd), `now` (may be
left out: Redis TIME in ms), `list` (last one only: the rest of ARGV as a table). A last key of type `keys`
is the rest of KEYS as a table.

`-- USES  room` puts room.lua of the same folder before the script: its keys and arguments come first, then its locals
and functions. So scripts share code, and each is still one text.

Scripts are addressed by content (EVALSHA), so two releases can run side by side on one Redis.
"""

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_HEADER_LINE = re.compile(r"^--\s(?P<kind>KEYS|ARGV|    )\s\s?(?P<name>[a-z_]+)\s+(?P<type>[a-z]+)\b")
_USES = re.compile(r"^--\sUSES\s\s(?P<name>[a-z_]+)$", re.MULTILINE)
_KINDS = {"str", "int", "now", "list"}
_NOW = (
    "local {name} = tonumber(ARGV[{i}]) if not {name} then local t = redis.call('TIME') "
    "{name} = t[1] * 1000 + math.floor(t[2] / 1000) end"
)

CHECKED_CALLS = 1000  # calls of a script whose keys are checked to share a slot

ALL: dict[str, "Script"] = {}
"""Every script that was loaded, by name: what a new connection loads before anything else."""


class Evaluator(Protocol):
    """What a script needs of a Redis client."""

    def evaluate(self, script: "Script", keys: list[str], args: list[Any]) -> "asyncio.Future[Any]": ...


class ScriptError(Exception):
    """A script was called, or written, against its own header."""


@dataclass(frozen=True, slots=True)
class Header:
    keys: tuple[str, ...]
    args: tuple[tuple[str, str], ...]  # (name, kind)
    rest: str = ""  # the key that stands for the rest of KEYS


def read_sources(path: Path) -> list[str]:
    """The text of a Lua file after the texts that it uses."""
    source = path.read_text(encoding="utf-8")
    found = _USES.search(source)
    return [*(read_sources(path.with_stem(found["name"])) if found else []), source]


def parse_headers(sources: Sequence[str], name: str) -> Header:
    """One header for a script and what it uses."""
    headers = [parse_header(source, name) for source in sources]
    keys = tuple(key for header in headers for key in header.keys)
    return Header(keys, tuple(arg for header in headers for arg in header.args), headers[-1].rest)


def on_one_line(source: str) -> str:
    """Without comments, so that it can stand before the first line of the script that uses it."""
    lines = (line.strip() for line in source.splitlines())
    return " ".join(line for line in lines if line and not line.startswith("--"))


def parse_header(source: str, name: str) -> Header:
    keys: list[str] = []
    args: list[tuple[str, str]] = []
    section = rest = ""
    for line in source.splitlines():
        if not line.startswith("--"):
            break
        found = _HEADER_LINE.match(line)
        if found is None:
            section = ""
            continue
        section = found["kind"].strip() or section
        if section == "KEYS":
            if rest:
                raise ScriptError(f"{name}: {rest} stands for the rest of KEYS, so {found['name']} cannot follow it")
            if found["type"] == "keys":
                rest = found["name"]
            else:
                keys.append(found["name"])
        elif section == "ARGV":
            args.append((found["name"], found["type"]))
    for i, (arg, kind) in enumerate(args):
        if kind not in _KINDS or (kind == "list" and i != len(args) - 1):
            raise ScriptError(f"{name}: argument {arg} has kind {kind!r}; kinds are {sorted(_KINDS)}, list only last")
    return Header(tuple(keys), tuple(args), rest)


def prologue(header: Header) -> str:
    """The locals the script body uses, on one line so that error messages keep their line numbers."""
    parts = [f"local {key} = KEYS[{i}]" for i, key in enumerate(header.keys, 1)]
    if header.rest:
        first = len(header.keys) + 1
        parts.append(
            f"local {header.rest} = {{}} for i = {first}, #KEYS do {header.rest}[i - {first - 1}] = KEYS[i] end"
        )
    for i, (arg, kind) in enumerate(header.args, 1):
        if kind == "int":
            parts.append(f"local {arg} = tonumber(ARGV[{i}])")
        elif kind == "now":
            parts.append(_NOW.format(name=arg, i=i))
        elif kind == "list":
            parts.append(f"local {arg} = {{}} for i = {i}, #ARGV do {arg}[#{arg} + 1] = ARGV[i] end")
        else:
            parts.append(f"local {arg} = ARGV[{i}]")
    return " ".join(parts)


def tag_of(key: str) -> str:
    """The part of a key that decides its slot."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            return key[start + 1 : end]
    return key


class Script:
    """One .lua file, callable by the names in its header."""

    def __init__(self, name: str, source: str, *, uses: Sequence[str] = (), register: bool = True) -> None:
        header = parse_headers([*uses, source], name)
        self.name = name
        self.source = " ".join([prologue(header), *map(on_one_line, uses), source])
        self.sha = hashlib.sha1(self.source.encode()).hexdigest()
        self.key_names = header.keys
        self.arg_names = tuple(arg for arg, _ in header.args)
        self._rest = header.args[-1][0] if header.args and header.args[-1][1] == "list" else ""
        self._plain = tuple(arg for arg in self.arg_names if arg != self._rest)
        self._rest_of_keys = header.rest
        self._all = frozenset(self.key_names) | frozenset(self.arg_names) | ({header.rest} if header.rest else set())
        self._checks_left = CHECKED_CALLS
        # What callers give: only tests pass a `now`.
        self._usual = self._all - {arg for arg, kind in header.args if kind == "now"}
        if register:
            ALL[name] = self

    @classmethod
    def beside(cls, module_file: str, name: str) -> "Script":
        """The script `name`.lua in the folder of the module that uses it."""
        *uses, source = read_sources(Path(module_file).parent / f"{name}.lua")
        return cls(name, source, uses=uses)

    def __call__(self, redis: Evaluator, **values: Any) -> "asyncio.Future[Any]":
        if values.keys() != self._usual:
            self._check(values)
        keys = [values[key] for key in self.key_names]
        if self._rest_of_keys:
            keys += values[self._rest_of_keys]
        args = [values.get(arg, "") for arg in self._plain]
        if self._rest:
            args += values[self._rest]
        if self._checks_left:
            self._checks_left -= 1
            self._check_slots(keys)
        return redis.evaluate(self, keys, args)

    def _check_slots(self, keys: list[str]) -> None:
        """What is wrong about the tags of a script's keys is wrong from its first calls on, and costs time in each."""
        for key in keys[1:]:
            if tag_of(key) != tag_of(keys[0]):
                raise ScriptError(f"{self.name}: {keys[0]} and {key} are in different slots")

    def _check(self, values: dict[str, Any]) -> None:
        """Only a `now` may be left out, and nothing may be given that the header does not name."""
        if not self._all.issuperset(values):
            raise ScriptError(f"{self.name} has no {sorted(values.keys() - self._all)}; it takes {sorted(self._all)}")
        if missing := self._usual - values.keys():
            raise ScriptError(f"{self.name} needs {min(missing)}")
