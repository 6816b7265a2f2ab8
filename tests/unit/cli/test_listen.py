"""`dragoman room` and `dragoman listen`: how a room is named, and how a caption is printed."""

from typing import Any

import pytest

from dragoman.cli.listen import line_of
from dragoman.cli.output import Failure
from dragoman.cli.room import parse
from dragoman.client import RoomCaption
from support.tables import for_each

ID = "3f6c1c1e-7c1b-4b8e-9d52-3d1a6c0b7a11"


@for_each(
    [
        ("123456", ("", "123456")),
        (" 123456 ", ("", "123456")),
        (ID, (ID, "")),
        (f"/room/{ID}", (ID, "")),
        (f"http://127.0.0.1:5010/room/{ID}", (ID, "")),
        (f"https://rooms.example.com/room/{ID}?lang=es#top", (ID, "")),
        ("1234567", ("1234567", "")),  # not a code: six digits
    ]
)
def test_room_is_named_by_its_code_its_id_or_its_link(text: str, expected: tuple[str, str]) -> None:
    assert parse(text) == expected


@for_each(
    ["", "a b", "http://example.com/", f"http://example.com/rooms/{ID}", f"ftp://example.com/room/{ID}", "x" * 65]
)
def test_everything_else_is_not_a_room(text: str) -> None:
    with pytest.raises(Failure, match="is not a room"):
        parse(text)


def caption(lang: str = "en", original: str = "good\nmorning", **fields: Any) -> RoomCaption:
    return RoomCaption("c1", 1, "Ann", "s-1", lang=lang, original=original, **fields)


@for_each(
    [
        (caption(), ("Ann", "[en]", "good morning")),
        (caption(lang="es", original="hola"), ("Ann", "", "hola")),
        (caption(translation="buenos días"), ("Ann", "", "buenos días")),
        (caption(untranslated="timeout"), ("Ann", "[not translated: timeout]", "good morning")),
        (caption(original="", lost="failed"), ("Ann", "[lost: failed]", "")),
    ]
)
def test_mark_says_why_a_caption_is_not_in_ones_own_language(said: RoomCaption, line: tuple[str, str, str]) -> None:
    assert line_of(said, "es") == line
