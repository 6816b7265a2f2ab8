"""Every limit is in one section and one table, with its answer and its metric; settings that moved keep old names."""

import re
from pathlib import Path

import pytest

from dragoman.config import ConfigError, load, load_with_sources
from dragoman.config.catalog import MOVED, SETTINGS
from dragoman.config.section import Limit
from dragoman.gateway.counters import Counters
from dragoman.protocol.chat import Reason
from dragoman.protocol.chat_http import Code
from dragoman.protocol.codes import Close, ErrorCode
from dragoman.services.metrics import Metrics
from support.tables import for_each

LIMITS: dict[str, Limit] = {key: setting.limit for key, setting in SETTINGS.items() if setting.limit}


def metric_names() -> set[str]:
    registry = Metrics().registry
    registry.register(Counters())
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in registry.collect()}


def test_every_setting_of_the_section_is_a_limit() -> None:
    assert {key for key in SETTINGS if key.startswith("limits.")} <= set(LIMITS)


def test_metric_of_every_limit_exists() -> None:
    assert {limit.metric.partition("{")[0] for limit in LIMITS.values()} <= metric_names()


@for_each(LIMITS)
def test_answer_of_a_limit_is_one_of_the_protocol(key: str) -> None:
    answer = LIMITS[key].answer
    for code in re.findall(r"(?:close|a node) (\d{4})\b", answer):
        assert int(code) in list(Close)
    for word in re.findall(r"\b[A-Z]+_[A-Z_]+\b", answer):
        assert word in list(ErrorCode)
    for word in re.findall(r"`ERROR (\w+)`", answer):
        assert word in list(Reason)
    for number in re.findall(r"\b(\d{5})\b", answer):
        assert int(number) in list(Code)
    for status in re.findall(r"HTTP (\d{3})", answer):
        assert f'status="{status}"' in LIMITS[key].metric


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_old_name_sets_the_same_value_in_every_source(old: str, new: str, tmp_path: Path) -> None:
    assert old not in SETTINGS
    default = SETTINGS[new].default
    value = default + 1
    section, _, name = old.rpartition(".")
    file = tmp_path / "config.toml"
    file.write_text(f"[{section}]\n{name} = {value}\n")
    expected = load(flags={new: value})
    assert expected != load()
    assert load(file) == expected
    assert load(env={"DRAGOMAN_" + old.upper().replace(".", "__"): str(value)}) == expected
    assert load(flags={old: value}) == expected
    assert load_with_sources(file).old_keys == {new: old}


def test_later_source_wins_whatever_name_it_uses(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[speech]\nmax_sessions = 7\n")
    loaded = load_with_sources(file, flags={"limits.sessions": 8})
    assert (loaded.config.limits.sessions, loaded.old_keys) == (8, {})


def test_source_that_sets_both_names_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[speech]\nmax_sessions = 7\n[limits]\nsessions = 8\n")
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert refused.value.sentences == (
        f"speech.max_sessions in {file} is the old name of limits.sessions, which is set as well: remove one.",
    )
