import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat.word_filter import MASK, WordFilter

letters = st.text(st.sampled_from("abAB. *([世界é"), max_size=6)


@pytest.mark.parametrize(
    ("body", "cleaned"),
    [
        ("a darn day", "a *** day"),
        ("a DaRn day", "a *** day"),
        ("darnation darned darn", "*** *** ***"),
        ("你好傻瓜世界", "你好***世界"),
        ("c++ and c+", "*** and c+"),
        ("ÉCLAIR", "***"),
        ("nothing of it", "nothing of it"),
        ("", ""),
    ],
)
def test_listed_words_become_three_stars(body: str, cleaned: str) -> None:
    words = WordFilter(["darn", "darned", "darnation", "傻瓜", "C++", "éclair", ""])
    assert words.clean(body) == cleaned


def test_the_longest_of_several_words_at_one_place_wins() -> None:
    assert WordFilter(["ab", "abcd", "a"]).clean("abcd abc ax") == "*** ***c ***x"


def test_places_are_kept_where_lower_case_is_longer() -> None:
    assert WordFilter(["bad"]).clean("İİ BAD İ") == "İİ *** İ"


def test_a_body_without_listed_words_is_the_same_object() -> None:
    body = "quite harmless"
    assert WordFilter(["bad"]).clean(body) is body
    assert WordFilter().clean(body) is body


def test_blanks_around_a_word_do_not_count() -> None:
    assert WordFilter([" bad\r", "  "]).clean("bad  x") == "***  x"


@given(st.lists(letters, max_size=6), st.lists(letters, max_size=6).map("".join))
def test_it_does_what_an_alternation_of_all_words_longest_first_would_do(words: list[str], body: str) -> None:
    listed = sorted({word.strip().lower() for word in words if word.strip()}, key=len, reverse=True)
    plain = re.sub("|".join(map(re.escape, listed)), MASK, body, flags=re.IGNORECASE) if listed else body
    assert WordFilter(words).clean(body) == plain


def test_a_word_as_long_as_a_line_compiles() -> None:
    word = "x" * 64
    nested = WordFilter([word[:length] for length in range(1, 65)])
    assert nested.clean(f"a{word}b") == "a***b"
