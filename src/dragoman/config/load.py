"""File < environment < flags, then defaults, then one typed object, then the checks between settings.

The sources are merged while they hold only what was set, so a default never hides a value. All problems that can be
found are reported together; a setting that is itself wrong is left out of the checks between settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from dragoman.config.catalog import SETTINGS
from dragoman.config.checks import check
from dragoman.config.errors import ConfigError, Problem
from dragoman.config.schema import Config
from dragoman.config.sources import DEFAULT, Given, Source, from_env, from_file, from_flags
from dragoman.config.values import typed

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
