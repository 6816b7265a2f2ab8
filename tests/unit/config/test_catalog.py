import re

import msgspec
import pytest

from dragoman.config.catalog import SECTIONS, SETTINGS, Setting, nearest, plain
from support.tables import for_each

every_setting = for_each(SETTINGS.values(), lambda setting: setting.key)


@every_setting
def test_every_setting_is_documented_in_a_sentence(setting: Setting) -> None:
    assert setting.description.endswith(".")
    assert setting.description[0].isupper() or setting.description.startswith("`")
    assert "|" not in setting.description  # it would end the cell of the table


@every_setting
def test_every_number_has_both_bounds_and_a_default_within(setting: Setting) -> None:
    if setting.kind in ("integer", "number"):
        assert setting.meta.ge is not None
        assert setting.meta.le is not None
        assert " to " in setting.allowed_briefly
    assert msgspec.convert(setting.default, setting.annotation) == setting.default


@every_setting
def test_units_decide_the_kind_of_number(setting: Setting) -> None:
    if setting.name.endswith("_per_s"):
        return
    if setting.name.endswith(("_s", "_seconds")):
        assert setting.kind == "number"
    if setting.name.endswith(("_ms", "_bytes")):
        assert setting.kind == "integer"


@every_setting
def test_every_variable_leads_back_to_its_setting(setting: Setting) -> None:
    assert re.fullmatch(r"DRAGOMAN_[A-Z0-9_]+", setting.variable)
    assert setting.variable.removeprefix("DRAGOMAN_").lower().replace("__", ".") == setting.key


def test_every_section_says_what_it_is_about() -> None:
    assert all(section.__doc__ for section in SECTIONS.values())
    assert list(SECTIONS)[:4] == ["server", "scheduler", "scheduler.phase2", "scheduler.phase2.redis"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("server.prot", "server.port"),
        ("servr.port", "server.port"),
        ("pause_ms", "speech.pause_ms"),
        ("server.pause_ms", "speech.pause_ms"),
        ("scheduler.redis.url", "scheduler.phase2.redis.url"),
        ("scheduler.phase2.node_snapshot.enable", "scheduler.phase2.node_snapshot.enabled"),
        ("speach", "speech"),
        ("zzz.qqq", None),
    ],
)
def test_the_nearest_known_name_is_found(typed: str, meant: str | None) -> None:
    assert nearest(typed) == meant


def test_numbers_are_written_as_people_write_them() -> None:
    assert [plain(6.0), plain(0.5), plain(7)] == ["6", "0.5", "7"]
