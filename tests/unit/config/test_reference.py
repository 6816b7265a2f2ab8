import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.config import Config, load
from dragoman.config.catalog import RETIRED, SETTINGS
from dragoman.config.reference import example, limits_markdown, markdown, toml_value

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("file", "made", "command"),
    [
        ("docs/reference/configuration.md", markdown, "dragoman config doc > docs/reference/configuration.md"),
        ("docs/reference/limits.md", limits_markdown, "dragoman config doc --limits > docs/reference/limits.md"),
        ("config.example.toml", example, "dragoman config doc --example > config.example.toml"),
    ],
)
def test_the_files_are_what_the_types_say(file: str, made: Callable[[], str], command: str) -> None:
    assert (ROOT / file).read_text() == made(), f"make it anew: {command}"


def test_the_reference_names_every_setting_and_every_retired_name() -> None:
    text = markdown()
    for setting in SETTINGS.values():
        assert f"## `[{setting.section}]`" in text
        assert f"| `{setting.name}` | `{toml_value(setting.default)}` |" in text
    assert all(f"- `{name}`: " in text for name in RETIRED)


def test_the_example_as_it_is_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(example())
    assert load(path) == Config()


def test_the_example_with_every_line_in_effect_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(re.sub(r"(?m)^# (?=\w+ = )", "", example()))
    assert path.read_text().count(" = ") >= len(SETTINGS)
    assert load(path) == Config()


def test_values_are_written_as_toml() -> None:
    values: list[object] = [True, 5, 6.0, 0.5, 'a"b', ("x", "y"), []]
    assert [toml_value(value) for value in values] == ["true", "5", "6", "0.5", '"a\\"b"', '["x", "y"]', "[]"]
