"""Where settings come from: a TOML file, the environment, the flags of a command.

Each source becomes a flat list of what it really sets, every value with where it stands, so that the next layer can
say *which file* or *which variable* is wrong. Names are checked here, values are not (see `values.py`).
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.config.catalog import ENV_PREFIX, MOVED, RETIRED, SECTIONS, SETTINGS, nearest, variable_of
from dragoman.config.errors import Problem

Origin = Literal["default", "file", "env", "flag"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value stands; `place` is the file's path or the variable's name."""

    origin: Origin
    place: str = ""

    def __str__(self) -> str:
        match self.origin:
            case "default":
                return "default"
            case "flag":
                return "the command line"
            case _:
                return self.place


DEFAULT = Source("default")
FLAG = Source("flag")


@dataclass(frozen=True, slots=True)
class Given:
    """A value that a source sets, as it is written there; `old_key` is the name it has there, if that is an old one."""

    key: str
    value: object
    source: Source
    old_key: str = ""


def from_file(path: Path) -> tuple[list[Given], list[Problem]]:
    try:
        tree = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        return [], [Problem((), f"{path} cannot be read: {(error.strerror or 'unknown error').lower()}.")]
    except UnicodeDecodeError:
        return [], [Problem((), f"{path} cannot be read: it is not UTF-8 text.")]
    except ValueError as error:  # TOMLDecodeError, or a number too long for Python
        return [], [Problem((), f"{path} is not valid TOML: {_lower_first(str(error))}.")]
    return _sorted(_flatten(tree, Source("file", str(path))))


def from_flags(flags: Mapping[str, object]) -> tuple[list[Given], list[Problem]]:
    """Dotted names or nested dicts; None is a flag that was not given."""
    return _sorted(_flatten(flags, FLAG))


def from_env(env: Mapping[str, str]) -> tuple[list[Given], list[Problem]]:
    """Variables like DRAGOMAN_SPEECH__PAUSE_MS; one that is empty sets only texts and lists."""
    return _sorted(item for name, text in sorted(env.items()) for item in _variable(name, text))


def _sorted(items: Iterator[Given | Problem]) -> tuple[list[Given], list[Problem]]:
    given: list[Given] = []
    problems: list[Problem] = []
    for item in items:
        if isinstance(item, Given):
            given.append(item)
        else:
            problems.append(item)
    return given, problems + list(_twice(given))


def _twice(given: list[Given]) -> Iterator[Problem]:
    """One source must not set a value under its old and its new name: neither is the later one."""
    new = {item.key for item in given if not item.old_key}
    for item in given:
        if item.old_key and item.key in new:
            name = _called(item.old_key, item.source)
            yield Problem((item.key,), f"{name} is the old name of {item.key}, which is set as well: remove one.")


def _flatten(tree: Mapping[str, object], source: Source, prefix: str = "") -> Iterator[Given | Problem]:
    for name, value in tree.items():
        key = prefix + name
        if value is None:
            continue
        if name.rpartition(".")[2] in RETIRED:
            yield _retired(key, source)
        elif key in SETTINGS:
            yield Given(key, value, source)
        elif key in MOVED:
            yield Given(MOVED[key], value, source, old_key=key)
        elif key in SECTIONS and isinstance(value, Mapping):
            yield from _flatten(value, source, key + ".")
        elif key in SECTIONS:
            yield Problem((key,), f"{_called(key, source)} is a section, [{key}], and cannot have a value itself.")
        else:
            yield _unknown(key, source)


def _variable(name: str, text: str) -> Iterator[Given | Problem]:
    if not name.startswith(ENV_PREFIX):
        return
    key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
    source = Source("env", name)
    if key.rpartition(".")[2] in RETIRED:
        yield _retired(key, source)
    elif setting := SETTINGS.get(MOVED.get(key, key)):
        if text or setting.kind in ("text", "list"):
            yield Given(setting.key, text, source, old_key=key if key in MOVED else "")
    elif "." in key:
        yield _unknown(key, source)
    elif (meant := _SINGLE_UNDERSCORES.get(key)) and not text.startswith("tcp://"):
        # Others own names without '__' too: Kubernetes gives every pod of a namespace with a service called `dragoman`
        # variables like DRAGOMAN_PORT=tcp://…. Only what is plainly one of ours misspelt is a mistake.
        yield Problem((meant,), f"{name} is not a setting; did you mean {variable_of(meant)}?")


_SINGLE_UNDERSCORES = {key.replace(".", "_"): key for key in SETTINGS}


def _retired(key: str, source: Source) -> Problem:
    return Problem((key,), f"{_called(key, source)} is no longer a setting: {RETIRED[key.rpartition('.')[2]]}.")


def _unknown(key: str, source: Source) -> Problem:
    sentence = f"{_called(key, source)} is not a setting"
    if (meant := nearest(key)) is None:
        return Problem((key,), f"{sentence}; `dragoman config doc` lists them all.")
    name = variable_of(meant) if source.origin == "env" else meant
    return Problem((key,), f"{sentence}; did you mean {name}?")


def _called(key: str, source: Source) -> str:
    match source.origin:
        case "env":
            return source.place
        case "flag":
            return f"{key} on {source}"
        case _:
            return f"{key} in {source}"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
