from pathlib import Path

import pytest

from dragoman.instance.chat import load_words
from dragoman.instance.redis_check import CannotStart


def test_words_are_read_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes("\ufeffdarn\r\n\n  傻瓜 \nc++ now".encode())
    assert load_words(file) == ["darn", "傻瓜", "c++ now"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"chat\.words_file '.*none\.txt' cannot be read: No such file"):
        load_words(tmp_path / "none.txt")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.bin"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CannotStart, match="is not UTF-8 text"):
        load_words(file)


def test_a_line_that_is_no_word_is_named(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("darn\n" + "x" * 65)
    with pytest.raises(CannotStart, match="line 2: a word may have 64 letters"):
        load_words(file)


def test_too_many_words_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("darn\n" * 100_001)
    with pytest.raises(CannotStart, match="100001 words"):
        load_words(file)
