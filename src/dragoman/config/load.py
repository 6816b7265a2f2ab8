"""File < environment < flags, then defaults, then one typed object, then the checks between settings.

Each source becomes a flat list of what it really sets, every value with where it stands, so that an error can say
*which file* or *which variable* is wrong. The sources are merged while they hold only what was set, so a default never
hides a value. Then each value is converted to the type of its setting. All problems that can be found are reported
together; a setting that is itself wrong is left out of the checks between settings.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from dragoman.config.catalog import ENV_PREFIX, MOVED, RETIRED, SECTIONS, SETTINGS, Setting, nearest, variable_of
from dragoman.config.checks import ConfigError, Problem, check
from dragoman.config.schema import Config

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


# -- values ----------------------------------------------------------------------------------------
# Text from the environment and the command line is parsed by the target type. Values from a file have types already and
# are not converted: `port = "5010"` in TOML is a mistake. A value is shown only where it cannot be a secret.

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SHOWN = 40


def typed(setting: Setting, given: Given) -> object | Problem:
    raw = given.value
    try:
        if isinstance(raw, str) and given.source.origin != "file":
            raw = parsed(setting, raw)
        value: object = msgspec.convert(raw, setting.annotation)
    except ValueError:  # msgspec's own errors are ValueErrors too
        found = _described(setting, raw)
        return Problem((setting.key,), f"{setting.key} must be {setting.allowed}, not {found} ({given.source}).")
    return value


def parsed(setting: Setting, text: str) -> object:
    """Raises ValueError if `text` is not of the setting's kind."""
    match setting.kind:
        case "boolean":
            if (word := text.strip().lower()) not in _WORDS:
                raise ValueError(text)
            return _WORDS[word]
        case "integer":
            return int(text)
        case "number":
            return float(text)
        case "list":
            return _list(text)
        case "text" | "choice":
            return text


def _list(text: str) -> object:
    """A JSON array, or values between commas."""
    if text.lstrip().startswith("["):
        return msgspec.json.decode(text)
    return [item.strip() for item in text.split(",") if item.strip()]


def _described(setting: Setting, value: object) -> str:
    kind = kind_of(value)
    if setting.secret or setting.url or value == "" or not isinstance(value, str | int | float):
        return kind
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    if len(shown) > _SHOWN:
        return kind
    return f"the string {shown}" if isinstance(value, str) else shown


def kind_of(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "a string" if value else "an empty string"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"a {type(value).__name__}"


_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and where each of its settings came from (all of them, defaults included)."""

    config: Config
    sources: Mapping[str, Source]
    old_keys: Mapping[str, str]  # settings that are in effect under an old name: that name, by the present one


def load(path: Path | None = None, env: Mapping[str, str] = _NONE, flags: Mapping[str, object] = _NONE) -> Config:
    """The configuration of `path`, overridden by `env`, overridden by `flags`; raises ConfigError."""
    return load_with_sources(path, env, flags).config


def load_with_sources(
    path: Path | None = None, env: Mapping[str, str] = _NONE, flags: Mapping[str, object] = _NONE
) -> Loaded:
    layers = [from_file(path)] if path is not None else []
    layers += [from_env(env), from_flags(flags)]
    problems = [problem for _, found in layers for problem in found]
    given = {item.key: item for items, _ in layers for item in items}

    config, refused = _build(given)
    wrong = {key for problem in refused for key in problem.keys}
    problems += refused
    problems += [problem for problem in check(config) if wrong.isdisjoint(problem.keys)]
    if problems:
        raise ConfigError(problems)
    return Loaded(
        config,
        {key: given[key].source if key in given else DEFAULT for key in SETTINGS},
        {key: item.old_key for key, item in given.items() if item.old_key},
    )


def _build(given: Mapping[str, Given]) -> tuple[Config, list[Problem]]:
    """A whole configuration even if some values are refused: those keep their defaults."""
    tree: dict[str, Any] = {}
    refused: list[Problem] = []
    for key, item in given.items():
        value = typed(SETTINGS[key], item)
        if isinstance(value, Problem):
            refused.append(value)
        else:
            _put(tree, key, value)
    return msgspec.convert(tree, Config), refused


def _put(tree: dict[str, Any], key: str, value: object) -> None:
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value
