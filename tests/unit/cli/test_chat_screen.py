"""What stands on a terminal after all that was written to it."""

import re

from dragoman.cli.chat_lines import Line
from dragoman.cli.chat_screen import Screen
from dragoman.client.chat import Sent
from dragoman.protocol.chat import AckType


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
