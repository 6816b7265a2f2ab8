from pathlib import Path

from dragoman.store.keys import TABLE
from dragoman.store.keys_doc import LIVES, markdown

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_what_the_table_says() -> None:
    command = "python -m dragoman.store.keys_doc > docs/redis-keys.md"
    assert (ROOT / "docs/redis-keys.md").read_text(encoding="utf-8") == markdown(), f"make it anew: {command}"


def test_the_page_has_every_key_once() -> None:
    text = markdown()
    assert [row.name for row in TABLE if text.count(f"| `{row.name}` |") != 1] == []


def test_no_cell_breaks_its_row() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert {row.count("|") for row in rows} == {7}


def test_every_time_to_live_is_explained() -> None:
    assert {row.life for row in TABLE if row.expires} - set(LIVES) == set(), "say in LIVES how long that is"
