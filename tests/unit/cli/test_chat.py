"""`dragoman chat`: its lines, its editor and its screen, on a terminal of the system."""

import asyncio
import os
import pty
import re
import termios
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import pytest

from dragoman.cli import chat_terminal, output
from dragoman.cli.chat import base, socket
from dragoman.cli.chat_editor import END, Editor
from dragoman.cli.chat_lines import ASCII, NOTE, UNICODE, Line, clock, marks_of, printed, said_before
from dragoman.cli.chat_screen import Screen
from dragoman.cli.chat_terminal import Talk, Terminal
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.main import run
from dragoman.client.chat import SendFailed, Sent, StoredMessage
from dragoman.protocol.chat import AckType


@pytest.mark.parametrize(
    ("given", "http", "ws"),
    [
        ("localhost:5010", "http://localhost:5010", "ws://localhost:5010/ws"),
        ("http://host:5010/", "http://host:5010", "ws://host:5010/ws"),
        ("ws://host:5010/ws", "http://host:5010", "ws://host:5010/ws"),
        ("https://host/behind/a/proxy", "https://host/behind/a/proxy", "wss://host/behind/a/proxy/ws"),
        ("[::1]:5010", "http://[::1]:5010", "ws://[::1]:5010/ws"),
    ],
)
def test_an_address_may_be_given_in_many_ways(given: str, http: str, ws: str) -> None:
    assert base(given) == http
    assert socket(http) == ws


@pytest.mark.parametrize("given", ["", "ftp://host", "http://", "host:port", "a b", "host:0"])
def test_what_is_no_address_is_told(given: str) -> None:
    with pytest.raises(Failure, match="is not an address like http://"):
        base(given)


@pytest.mark.parametrize("args", [[], ["--as", "alice"], ["--to", "bob"]])
def test_a_chat_needs_two(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", *args]) == USAGE
    assert "dragoman chat --as alice --to bob" in capsys.readouterr().err


def test_no_server_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "--as", "alice", "--to", "bob", "--url", "127.0.0.1:1"]) == 1
    assert "Is it running? Try --url, or start one: dragoman demo." in capsys.readouterr().err


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


def sent_message(*receipts: AckType) -> Sent:
    one = Sent(1, "c", 2, "hi", "TEXT")
    for receipt in receipts:
        one.add_receipt(receipt)
    return one


@pytest.mark.parametrize(
    ("receipts", "marks"),
    [
        ((), "·"),
        ((AckType.ACCEPTED,), "✓"),
        ((AckType.SAVED,), "✓✓"),
        ((AckType.ACCEPTED, AckType.DELIVERED), "✓  →"),
        ((AckType.SAVED, AckType.DELIVERED), "✓✓ →"),
        ((AckType.SAVED, AckType.READ), "✓✓ ●"),
    ],
)
def test_marks_say_how_far_a_message_is(receipts: tuple[AckType, ...], marks: str) -> None:
    assert marks_of(sent_message(*receipts), UNICODE) == marks


def test_all_marks_differ_also_in_ascii() -> None:
    for signs in (UNICODE, ASCII):
        assert len(set(signs.values())) == len(signs)
    assert "".join(ASCII.values()).isascii()


def test_a_refused_message_says_why() -> None:
    one = sent_message()
    one.end(SendFailed("body_too_long", "too long"))
    assert printed(Line("alice", "hi", "12:00", one), UNICODE) == "✗     12:00 alice: hi  (body_too_long)"


def test_what_comes_from_afar_does_not_move_the_cursor() -> None:
    assert printed(Line("bob", "a\x1b[2Jb\nc\x07"), UNICODE) == "      bob: a\\u001b[2Jb c\\u0007"


def test_a_note_has_no_name() -> None:
    assert printed(Line(NOTE, "offline"), UNICODE).strip() == "offline"


@pytest.mark.parametrize(("status", "marks"), [("SAVED", "✓✓"), ("DELIVERED", "✓✓ →"), ("READ", "✓✓ ●")])
def test_history_shows_ours_with_marks_and_theirs_without(status: str, marks: str) -> None:
    mine = StoredMessage(1, 2, "hi", "c", 9, 1, status, 0)
    assert said_before(mine, 1, "alice", "bob", UNICODE).marks == marks
    theirs = said_before(mine, 2, "bob", "alice", UNICODE)
    assert (theirs.who, theirs.marks) == ("alice", "")


def test_times_are_shown_to_the_minute() -> None:
    assert clock("2026-11-16T08:09:10Z") == "08:09"
    assert len(clock(1_700_000_000_000)) == 5
    assert clock(None) == ""


class Paper:
    """A terminal that never scrolls: it knows what the screen writes, and nothing else."""

    def __init__(self, columns: int = 40, rows: int = 10) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""]
        self.row = self.column = 0

    def size(self) -> tuple[int, int]:
        return self.columns, self.rows

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\d*[A-Zm]|\r|\n|[^\x1b\r\n]+", re.sub(r"\x1b\[\d+m", "", text)):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part.startswith("\x1b["):
                self._move(part[-1], int(part[2:-1] or 1))
            else:
                before = self.lines[self.row][: self.column]
                self.lines[self.row] = before + part + self.lines[self.row][self.column + len(part) :]
                self.column += len(part)

    def _move(self, what: str, count: int) -> None:
        if what == "A":
            self.row -= count
        elif what == "C":
            self.column += count
        elif what == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]


def screen(paper: Paper, encoding: str = "utf-8") -> Screen:
    return Screen(paper.write, paper.size, encoding)


def sent(text: str) -> Sent:
    return Sent(1, "c", 2, text, "TEXT")


def test_marks_change_in_place() -> None:
    paper = Paper()
    shown = screen(paper)
    one, two = sent("one"), sent("two")
    shown.add(Line("a", "one", sent=one), Line("a", "two", sent=two))
    assert paper.lines == ["·     a: one", "·     a: two", "> "]
    one.add_receipt(AckType.SAVED)
    two.add_receipt(AckType.ACCEPTED)
    shown.paint()
    assert paper.lines == ["✓✓    a: one", "✓     a: two", "> "]
    one.add_receipt(AckType.READ)
    shown.paint()
    shown.add(Line("b", "hello"))
    assert paper.lines == ["✓✓ ●  a: one", "✓     a: two", "      b: hello", "> "]


def test_what_is_typed_stays_below_what_arrives() -> None:
    paper = Paper()
    shown = screen(paper)
    shown.typed("half a li", 4)
    shown.add(Line("b", "hello"))
    assert paper.lines == ["      b: hello", "> half a li"]
    assert paper.column == len("> half")


def test_long_lines_are_wrapped_and_still_change_in_place() -> None:
    paper = Paper(columns=21)
    shown = screen(paper)
    one = sent("x" * 30)
    shown.add(Line("a", one.body, sent=one))
    assert all(len(row) < 21 for row in paper.lines)
    one.add_receipt(AckType.SAVED)
    shown.paint()
    assert paper.lines[0].startswith("✓✓")
    assert "".join(row.strip() for row in paper.lines[:-1]).count("x") == 30
    assert len(paper.lines) == 4


def test_what_does_not_fit_is_printed_for_good_in_order() -> None:
    paper = Paper(rows=5)
    shown = screen(paper)
    sents = [sent(str(number)) for number in range(6)]
    for one in sents:
        shown.add(Line("a", one.body, sent=one))
    for one in sents:
        one.add_receipt(AckType.SAVED)
    shown.paint()
    assert [row[:2].strip() for row in paper.lines[:-1]] == ["·", "·", "·", "✓✓", "✓✓", "✓✓"]
    assert [row.rpartition(" ")[2] for row in paper.lines[:-1]] == list("012345")


def test_a_long_line_of_input_shows_what_is_around_the_cursor() -> None:
    paper = Paper(columns=20)
    shown = screen(paper)
    shown.typed("abcdefghijklmnopqrstuvwxyz", 26)
    assert paper.lines[-1].endswith("z")
    assert len(paper.lines[-1]) < 20
    shown.typed("abcdefghijklmnopqrstuvwxyz", 0)
    assert paper.lines[-1].startswith("> abc")
    assert paper.column == 2


def test_a_terminal_that_knows_only_ascii_gets_ascii() -> None:
    paper = Paper()
    shown = screen(paper, "ascii")
    shown.add(Line("a", "grüße", sent=sent("x")))
    assert paper.lines[0] == ".     a: gr??e"


def test_closing_leaves_everything_and_no_prompt() -> None:
    paper = Paper()
    shown = screen(paper)
    shown.add(Line("a", "one", sent=sent("one")))
    shown.close()
    assert paper.lines == ["·     a: one", ""]


if TYPE_CHECKING:
    from dragoman.client.chat import Chat

LFLAG = 3
CTRL_D = b"\x04"


class _Nobody:
    """A chat in which nothing is said."""

    user_id, unsaved = 1, 0

    async def messages(self) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


async def test_a_key_pressed_at_the_first_sight_of_the_chat_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that still gathers lines makes something else of Ctrl-D than a key."""
    keyboard, terminal = pty.openpty()
    by_lines: list[bool] = []

    def shown(text: str) -> None:
        if not by_lines:
            os.write(keyboard, CTRL_D)
        by_lines.append(bool(termios.tcgetattr(terminal)[LFLAG] & termios.ICANON))

    monkeypatch.setattr(chat_terminal, "STDIN_FD", terminal)
    monkeypatch.setattr(output, "paint", shown)
    try:
        async with asyncio.timeout(60):
            assert await Terminal(Talk("ann", "ben", 2)).hold(cast("Chat", _Nobody()), []) == 0
        assert by_lines[0] is False
        assert termios.tcgetattr(terminal)[LFLAG] & termios.ICANON, "the terminal is as it was"
    finally:
        os.close(keyboard)
        os.close(terminal)
