import pytest

from dragoman.cli.chat_editor import END, Editor


def typed(*keys: str) -> tuple[list[str], str, int]:
    editor = Editor()
    done = [line for part in keys for line in editor.feed(part)]
    return done, editor.text, editor.at


@pytest.mark.parametrize(
    ("keys", "text", "at"),
    [
        ("hello", "hello", 5),
        ("helo\x1b[Dl", "hello", 4),
        ("x\x7f\x7fy", "y", 1),
        ("one two \x17", "one ", 4),
        ("one two\x15", "", 0),
        ("ab\x01\x0b", "", 0),
        ("ab\x01c\x05d", "cabd", 4),
        ("ab\x1b[H\x1b[3~", "b", 0),
        ("ab\x1bOH\x1bOFc", "abc", 3),
        ("\x1b[D\x1b[C", "", 0),
        ("a\x1b[Ab\x1b[5~c", "abc", 3),
        ("a\tb\x00\x07", "a b", 3),
        ("世界\x7f", "世", 1),
        ("half\x04", "half", 4),
    ],
)
def test_keys_do_what_they_do_elsewhere(keys: str, text: str, at: int) -> None:
    assert typed(keys) == ([], text, at)


def test_lines_are_finished_by_return_also_several_at_once() -> None:
    assert typed("one\rtwo\nthr") == (["one", "two"], "thr", 3)


def test_the_end_is_wanted_on_an_empty_line() -> None:
    assert typed("x\r\x04") == (["x", END], "", 0)


def test_a_sequence_may_come_in_pieces() -> None:
    assert typed("ab\x1b[", "D", "x") == ([], "axb", 2)
    assert typed("ab\x1b[3", "~x") == ([], "abx", 3)
