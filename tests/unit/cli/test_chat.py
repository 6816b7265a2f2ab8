"""`dragoman chat`: its editor, its screen, and a chat on a pseudo-terminal."""

import asyncio
import os
import pty
import re
import termios
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import pytest

from dragoman.cli import chat_terminal, output
from dragoman.cli.chat import websocket_url
from dragoman.cli.chat_screen import (
    ASCII,
    END,
    NOTE,
    UNICODE,
    Editor,
    Line,
    Screen,
    clock,
    history_line,
    marks_of,
    printed,
)
from dragoman.cli.chat_terminal import Conversation, TerminalChat
from dragoman.cli.main import run
from dragoman.cli.output import USAGE
from dragoman.client.chat import SendFailed, Sent, StoredMessage
from dragoman.protocol.chat import AckType
from support.tables import for_each


def test_websocket_of_chat_follows_from_the_http_address() -> None:
    assert websocket_url("http://[::1]:5010") == "ws://[::1]:5010/ws"
    assert websocket_url("https://host/behind/a/proxy") == "wss://host/behind/a/proxy/ws"


@pytest.mark.parametrize("args", [[], ["--as", "alice"], ["--to", "bob"]])
def test_chat_requires_both_users(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", *args]) == USAGE
    assert "dragoman chat --as alice --to bob" in capsys.readouterr().err


def test_chat_without_a_server_fails_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "--as", "alice", "--to", "bob", "--url", "127.0.0.1:1"]) == 1
    assert "Start a server with dragoman demo, or give its address with --url." in capsys.readouterr().err


def typed(*keys: str) -> tuple[list[str], str, int]:
    editor = Editor()
    done = [line for part in keys for line in editor.feed(part)]
    return done, editor.text, editor.at


@for_each(
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
    ]
)
def test_keys_edit_the_line(keys: str, text: str, at: int) -> None:
    assert typed(keys) == ([], text, at)


def test_return_finishes_lines() -> None:
    assert typed("one\rtwo\nthr") == (["one", "two"], "thr", 3)


def test_ctrl_d_on_an_empty_line_is_the_end() -> None:
    assert typed("x\r\x04") == (["x", END], "", 0)


def test_escape_sequence_may_arrive_in_parts() -> None:
    assert typed("ab\x1b[", "D", "x") == ([], "axb", 2)
    assert typed("ab\x1b[3", "~x") == ([], "abx", 3)


def sent(text: str, *receipts: AckType) -> Sent:
    message = Sent(1, "c", 2, text, "TEXT")
    for receipt in receipts:
        message.add_receipt(receipt)
    return message


@for_each(
    [
        ((), "·"),
        ((AckType.ACCEPTED,), "✓"),
        ((AckType.SAVED,), "✓✓"),
        ((AckType.ACCEPTED, AckType.DELIVERED), "✓  →"),
        ((AckType.SAVED, AckType.DELIVERED), "✓✓ →"),
        ((AckType.SAVED, AckType.READ), "✓✓ ●"),
    ]
)
def test_marks_show_the_receipts_of_a_message(receipts: tuple[AckType, ...], marks: str) -> None:
    assert marks_of(sent("hi", *receipts), UNICODE) == marks


def test_marks_are_distinct_in_unicode_and_ascii() -> None:
    for symbols in (UNICODE, ASCII):
        assert len(set(symbols.values())) == len(symbols)
    assert "".join(ASCII.values()).isascii()


def test_refused_message_shows_the_reason() -> None:
    one = sent("hi")
    one.end(SendFailed("body_too_long", "too long"))
    assert printed(Line("alice", "hi", "12:00", one), UNICODE) == "✗     12:00 alice: hi  (body_too_long)"


def test_control_characters_of_a_message_are_escaped() -> None:
    assert printed(Line("bob", "a\x1b[2Jb\nc\x07"), UNICODE) == "      bob: a\\u001b[2Jb c\\u0007"


def test_note_has_no_user_name() -> None:
    assert printed(Line(NOTE, "offline"), UNICODE).strip() == "offline"


@for_each([("SAVED", "✓✓"), ("DELIVERED", "✓✓ →"), ("READ", "✓✓ ●")])
def test_history_shows_marks_for_own_messages_only(status: str, marks: str) -> None:
    mine = StoredMessage(1, 2, "hi", "c", 9, 1, status, 0)
    assert history_line(mine, 1, "alice", "bob", UNICODE).marks == marks
    theirs = history_line(mine, 2, "bob", "alice", UNICODE)
    assert (theirs.who, theirs.marks) == ("alice", "")


def test_clock_shows_hours_and_minutes() -> None:
    assert clock("2026-11-16T08:09:10Z") == "08:09"
    assert len(clock(1_700_000_000_000)) == 5
    assert clock(None) == ""


class FakeTerminal:
    """A terminal that never scrolls and knows only the control sequences that the screen writes."""

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


def screen(fake: FakeTerminal, encoding: str = "utf-8") -> Screen:
    return Screen(fake.write, fake.size, encoding)


def test_marks_change_in_place_when_receipts_arrive() -> None:
    fake = FakeTerminal()
    shown = screen(fake)
    one, two = sent("one"), sent("two")
    shown.add(Line("a", "one", sent=one), Line("a", "two", sent=two))
    assert fake.lines == ["·     a: one", "·     a: two", "> "]
    one.add_receipt(AckType.SAVED)
    two.add_receipt(AckType.ACCEPTED)
    shown.paint()
    assert fake.lines == ["✓✓    a: one", "✓     a: two", "> "]
    one.add_receipt(AckType.READ)
    shown.paint()
    shown.add(Line("b", "hello"))
    assert fake.lines == ["✓✓ ●  a: one", "✓     a: two", "      b: hello", "> "]


def test_typed_line_stays_below_arriving_messages() -> None:
    fake = FakeTerminal()
    shown = screen(fake)
    shown.typed("half a li", 4)
    shown.add(Line("b", "hello"))
    assert fake.lines == ["      b: hello", "> half a li"]
    assert fake.column == len("> half")


def test_long_lines_are_wrapped_and_still_change_in_place() -> None:
    fake = FakeTerminal(columns=21)
    shown = screen(fake)
    one = sent("x" * 30)
    shown.add(Line("a", one.body, sent=one))
    assert all(len(row) < 21 for row in fake.lines)
    one.add_receipt(AckType.SAVED)
    shown.paint()
    assert fake.lines[0].startswith("✓✓")
    assert "".join(row.strip() for row in fake.lines[:-1]).count("x") == 30
    assert len(fake.lines) == 4


def test_lines_that_do_not_fit_are_printed_for_good_in_order() -> None:
    fake = FakeTerminal(rows=5)
    shown = screen(fake)
    sents = [sent(str(number)) for number in range(6)]
    for one in sents:
        shown.add(Line("a", one.body, sent=one))
    for one in sents:
        one.add_receipt(AckType.SAVED)
    shown.paint()
    assert [row[:2].strip() for row in fake.lines[:-1]] == ["·", "·", "·", "✓✓", "✓✓", "✓✓"]
    assert [row.rpartition(" ")[2] for row in fake.lines[:-1]] == list("012345")


def test_long_typed_line_shows_the_part_around_the_cursor() -> None:
    fake = FakeTerminal(columns=20)
    shown = screen(fake)
    shown.typed("abcdefghijklmnopqrstuvwxyz", 26)
    assert fake.lines[-1].endswith("z")
    assert len(fake.lines[-1]) < 20
    shown.typed("abcdefghijklmnopqrstuvwxyz", 0)
    assert fake.lines[-1].startswith("> abc")
    assert fake.column == 2


def test_ascii_terminal_gets_ascii_marks() -> None:
    fake = FakeTerminal()
    shown = screen(fake, "ascii")
    shown.add(Line("a", "grüße", sent=sent("x")))
    assert fake.lines[0] == ".     a: gr??e"


def test_close_keeps_all_lines_and_removes_the_prompt() -> None:
    fake = FakeTerminal()
    shown = screen(fake)
    shown.add(Line("a", "one", sent=sent("one")))
    shown.close()
    assert fake.lines == ["·     a: one", ""]


if TYPE_CHECKING:
    from dragoman.client.chat import Chat

LFLAG = 3
CTRL_D = b"\x04"


class _IdleChat:
    """A chat without messages."""

    user_id, unsaved = 1, 0

    async def messages(self) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


async def test_key_pressed_at_the_first_output_is_read_as_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in line mode would not pass Ctrl-D on as a key."""
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
            assert await TerminalChat(Conversation("ann", "ben", 2)).run(cast("Chat", _IdleChat()), []) == 0
        assert by_lines[0] is False
        assert termios.tcgetattr(terminal)[LFLAG] & termios.ICANON, "the mode of the terminal is restored"
    finally:
        os.close(keyboard)
        os.close(terminal)


# -- translations ----------------------------------------------------------------------------------


def test_translation_appears_under_its_message() -> None:
    fake = FakeTerminal()
    shown = screen(fake)
    line = Line("b", "good morning", awaits_translation=True)
    shown.add(line)
    shown.add(Line("b", "later"))
    shown.translated(line, "buenos días\x1b[2J")
    assert fake.lines[:3] == ["      b: good morning", "      buenos días\\u001b[2J", "      b: later"]


def test_erased_message_of_the_history_is_marked() -> None:
    stored = StoredMessage(2, 1, "", "c-1", 7, 1, "READ", 0, "", None)
    assert history_line(stored, 1, "ann", "ben", UNICODE).text == "(erased)"


def test_translation_of_a_message_that_scrolled_away_names_it() -> None:
    fake = FakeTerminal(rows=6)
    shown = screen(fake)
    line = Line("b", "a message that is quite long", awaits_translation=True)
    shown.add(line)
    shown.add(*(Line("b", f"line {number}", awaits_translation=True) for number in range(6)))
    shown.translated(line, "un mensaje")
    assert fake.lines[-3:-1] == ['      b: "a message that is q…"', "      un mensaje"]


@pytest.mark.parametrize("lang", ["no language", "x" * 36])
def test_language_that_is_none_is_refused(lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "--as", "alice", "--to", "bob", "--lang", lang]) == USAGE
    assert "is no language" in capsys.readouterr().err
