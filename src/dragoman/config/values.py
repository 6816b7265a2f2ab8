"""Converts a given value to the type of its setting, or reports what is allowed.

Text from the environment and the command line is parsed by the target type; values from a file have types already
and are not converted: `port = "5010"` in TOML is a mistake. The value itself is shown only where it cannot be a secret.
"""

import msgspec

from dragoman.config.catalog import Setting
from dragoman.config.errors import Problem
from dragoman.config.sources import Given

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
