"""The settings as a flat list, read from the types of `schema.py`.

`SETTINGS` maps each dotted key to what is known about it; `SECTIONS` each dotted table name to its class. Both keep
the order of the schema. Everything that needs to go from a name to a type, a default or a text asks here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from dragoman.config.schema import Config
from dragoman.config.section import Limit, Section

ENV_PREFIX = "DRAGOMAN_"

# Names of earlier designs, refused wherever they stand, with what to use instead.
RETIRED: dict[str, str] = {
    "gap_timeout_ms": "it was replaced by speech.release.ack_timeout_ms; nothing waits for an index that no later "
    "result has overtaken",
    "timeout_node_id": "it was replaced by affinity_node_id, which each turn keeps for itself; there is nothing to set",
    "max_duration_node_id": "it was replaced by affinity_node_id, which each turn keeps for itself; there is nothing "
    "to set",
}

# Settings that have another name now. The old name sets the same value; `dragoman config check` names the new one.
MOVED: dict[str, str] = {
    "server.max_connections": "limits.connections",
    "server.max_connections_per_address": "limits.connections_per_address",
    "server.max_pre_session": "limits.pre_session_connections",
    "server.max_frame_bytes": "limits.frame_bytes",
    "server.max_frames_per_s": "limits.frames_per_s",
    "server.node_max_frames_per_s": "limits.node_frames_per_s",
    "server.out_queue_bytes": "limits.out_queue_bytes",
    "server.out_queue_age_s": "limits.out_queue_age_s",
    "speech.max_sessions": "limits.sessions",
    "speech.max_waiting_jobs": "limits.waiting_jobs",
    "chat.logins_per_minute": "limits.login_attempts_per_minute",
    "chat.max_frame_bytes": "limits.chat_frame_bytes",
    "chat.max_frames_per_s": "limits.chat_frames_per_s",
}

Kind = Literal["boolean", "integer", "number", "text", "choice", "list"]

_KINDS: dict[Any, Kind] = {bool: "boolean", int: "integer", float: "number", str: "text"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `annotation` is its full type for msgspec, `meta` its range and text."""

    key: str
    kind: Kind
    annotation: Any
    meta: msgspec.Meta
    default: Any
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return variable_of(self.key)

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def secret(self) -> bool:
        return "secret" in (self.meta.extra or {})

    @property
    def url(self) -> bool:
        return "url" in (self.meta.extra or {})

    @property
    def allowed(self) -> str:
        """What may stand there, in words that follow 'must be'."""
        match self.kind:
            case "boolean":
                return "true or false"
            case "choice":
                return "one of " + ", ".join(self.choices)
            case "list":
                return "a list of strings"
            case "text":
                return self._allowed_text()
            case "integer":
                return f"a whole number{self._range()}"
            case "number":
                return f"a number{self._range()}"

    @property
    def limit(self) -> Limit | None:
        """What it limits, if it is a limit."""
        found: Limit | None = (self.meta.extra or {}).get("limit")
        return found

    @property
    def allowed_briefly(self) -> str:
        """`allowed` in the fewest words, for a table; empty where the default already shows the kind."""
        match self.kind:
            case "choice":
                return ", ".join(self.choices)
            case "integer" | "number":
                return self._range().removeprefix(" from ")
            case _:
                return str((self.meta.extra or {}).get("allowed", ""))

    def _allowed_text(self) -> str:
        if in_words := (self.meta.extra or {}).get("allowed"):
            return str(in_words)
        return "a string that is not empty" if self.meta.min_length else "a string"

    def _range(self) -> str:
        low, high = self.meta.ge, self.meta.le
        return f" from {plain(low)} to {plain(high)}" if low is not None and high is not None else ""


def plain(number: int | float) -> str:
    """A number as people write it: 6.0 is 6."""
    return str(int(number)) if float(number).is_integer() else str(number)


def variable_of(key: str) -> str:
    return ENV_PREFIX + key.upper().replace(".", "__")


def _sections(section: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    for name, hint in get_type_hints(section).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield prefix + name, hint
            yield from _sections(hint, f"{prefix}{name}.")


def _settings(prefix: str, section: type[Section]) -> Iterator[Setting]:
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        hint = hints[field.name]
        if not (isinstance(hint, type) and issubclass(hint, Section)):
            yield _setting(f"{prefix}.{field.name}", hint, field.default)


def _setting(key: str, hint: Any, default: Any) -> Setting:
    bare, meta = get_args(hint)
    if get_origin(bare) is Literal:
        return Setting(key, "choice", hint, meta, default, get_args(bare))
    if get_origin(bare) is tuple:
        return Setting(key, "list", hint, meta, default)
    return Setting(key, _KINDS[bare], hint, meta, default)


SECTIONS: dict[str, type[Section]] = dict(_sections(Config))
SETTINGS: dict[str, Setting] = {
    setting.key: setting for name, section in SECTIONS.items() for setting in _settings(name, section)
}


def nearest(key: str) -> str | None:
    """The known setting or section that `key` was probably meant to be."""
    from difflib import get_close_matches  # only errors need it

    elsewhere = [known for known in SETTINGS if known.rpartition(".")[2] == key.rpartition(".")[2]]
    if len(elsewhere) == 1:
        return elsewhere[0]
    return next(iter(get_close_matches(key, elsewhere or [*SETTINGS, *SECTIONS], n=1, cutoff=0.6)), None)
