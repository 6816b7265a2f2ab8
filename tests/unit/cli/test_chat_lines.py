import pytest

from dragoman.cli.chat_lines import ASCII, NOTE, UNICODE, Line, clock, marks_of, printed, said_before
from dragoman.client.chat import SendFailed, Sent, StoredMessage
from dragoman.protocol.chat import AckType


def sent(*receipts: AckType) -> Sent:
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
    assert marks_of(sent(*receipts), UNICODE) == marks


def test_all_marks_differ_also_in_ascii() -> None:
    for signs in (UNICODE, ASCII):
        assert len(set(signs.values())) == len(signs)
    assert "".join(ASCII.values()).isascii()


def test_a_refused_message_says_why() -> None:
    one = sent()
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
