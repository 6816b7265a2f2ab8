"""What every table of the configuration is, which settings are limits, and the shape of names used in Redis keys."""

from dataclasses import dataclass
from functools import cache
from typing import get_type_hints

import msgspec
from msgspec import Meta

# A key prefix or id with a brace would move every key of it to another slot of a Cluster, one with '|' would break
# the owner value `<instance>|<connection>`.
NAME = r"^[A-Za-z0-9_.:-]{1,120}$"
NAME_IN_WORDS = "1 to 120 letters, digits or any of . _ : -"


@dataclass(frozen=True, slots=True)
class Limit:
    """What a setting limits: a row of docs/reference/limits.md."""

    per: str  # whose use is counted
    answer: str  # what the client gets that reaches it
    metric: str  # what counts that


def quota(low: float, high: float, description: str, *, per: str, answer: str, metric: str) -> Meta:
    """The metadata of a number that is a limit."""
    return Meta(ge=low, le=high, description=description, extra={"limit": Limit(per, answer, metric)})


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration. Its repr, which may end in a log line or a traceback, shows no secret."""

    def __repr__(self) -> str:
        hidden = _hidden_fields(type(self))
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = ", ".join(f"{name}={'…' if value and name in hidden else repr(value)}" for name, value in values)
        return f"{type(self).__name__}({shown})"


@cache
def _hidden_fields(section: type[Section]) -> frozenset[str]:
    hints = get_type_hints(section, include_extras=True)
    metas = ((name, meta) for name, hint in hints.items() for meta in getattr(hint, "__metadata__", ()))
    return frozenset(name for name, meta in metas if {"secret", "url"} & set(meta.extra or ()))
