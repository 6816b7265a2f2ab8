import json
import sys
import unicodedata

import pytest

from dragoman.visible import visible, visible_lines

STEERING = "".join(
    map(chr, [*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xE0041])
)


def test_nothing_that_steers_a_terminal_is_left() -> None:
    shown = visible(STEERING)
    assert shown.isascii()
    assert shown.isprintable()


def test_no_control_character_surrogate_or_separator_of_all_unicode_is_left() -> None:
    kept = [char for char in map(chr, range(sys.maxunicode + 1)) if visible(char) == char]
    assert {unicodedata.category(char) for char in kept}.isdisjoint({"Cc", "Cs", "Zl", "Zp"})


@pytest.mark.parametrize("text", ["你好，世界", "مرحبا", "नमस्ते", "👩‍👩‍👧", "a\u200fb", "C:\\new", "[red]"])
def test_text_of_any_script_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_an_escape_says_which_character_was_there() -> None:
    assert visible("a\x1b]52;c;QQ\x07\r\n\t\x9b\u202e") == "a\\u001b]52;c;QQ\\u0007\\r\\n\\t\\u009b\\u202e"


def test_json_stays_the_same_json() -> None:
    value = {"text": STEERING + "\ud800 é"}
    assert json.loads(visible(json.dumps(value, ensure_ascii=False))) == value


def test_lines_stay_lines_where_they_are_ours() -> None:
    assert visible_lines("a\x1b\nb\u2028") == "a\\u001b\nb\\u2028"
