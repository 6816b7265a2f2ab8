"""The ledger finds what is planted, and nothing where all is well."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dragoman.tools.verify.chat_ledger import Answer, ChatLedger, Name
from support.tables import for_each

ALICE, BOB, CAROL = 1, 2, 3


@dataclass(frozen=True)
class Stored:
    id: int
    conversation: int
    seq: int
    from_user: int
    to_user: int
    client_msg_id: str
    body: str


def row(number: int, to: int = BOB) -> Stored:
    return Stored(100 + number, to, number, ALICE, to, f"c{number}", f"hi {number}")


def told(ledger: ChatLedger, number: int, to: int = BOB) -> None:
    """One message on the good way."""
    name = f"c{number}"
    ledger.sent(ALICE, name, to, f"hi {number}")
    ledger.accepted(ALICE, name, 100 + number)
    ledger.saved(ALICE, name, 100 + number)


def arrives(ledger: ChatLedger, number: int, to: int = BOB, id: int | None = None) -> None:
    known = id or 100 + number
    ledger.arrived(to, ALICE, f"c{number}", known)
    ledger.acknowledged(to, known)


def good(numbers: range = range(1, 4)) -> tuple[ChatLedger, list[Stored]]:
    ledger = ChatLedger()
    for number in numbers:
        told(ledger, number)
        arrives(ledger, number)
        ledger.receipt(ALICE, f"c{number}", "delivered")
    return ledger, [row(number) for number in numbers]


def kinds(violations: list[str]) -> set[str]:
    return {one.partition(":")[0] for one in violations}


def test_where_all_is_well_nothing_is_found() -> None:
    ledger, rows = good()
    assert ledger.check(rows) == []
    assert ledger.summary() == "3 sent, 3 accepted, 3 saved, 0 failed, 3 arrived, 0 duplicates, 0 lost"


def test_a_loss_is_found() -> None:
    ledger, rows = good()
    ledger.sent(ALICE, "c9", BOB, "hi 9")
    ledger.accepted(ALICE, "c9", 109)
    assert kinds(ledger.check(rows, all_answered=False)) == {"lost"}


def test_a_loss_within_the_durability_is_counted_instead() -> None:
    ledger, rows = good()
    ledger.sent(ALICE, "c9", BOB, "hi 9")
    ledger.accepted(ALICE, "c9", 109)
    assert ledger.check(rows, tolerated=lambda entry: entry.name.client_msg_id == "c9") == []
    assert [entry.name for entry in ledger.lost] == [Name(ALICE, "c9")]


def test_loss_of_a_saved_message_is_never_tolerated() -> None:
    ledger, rows = good()
    told(ledger, 9)
    assert "false saved" in kinds(ledger.check(rows, tolerated=lambda entry: True))


def test_a_dead_letter_is_no_loss_when_its_sender_knows() -> None:
    ledger, rows = good()
    ledger.sent(ALICE, "c9", BOB, "hi 9")
    ledger.accepted(ALICE, "c9", 109)
    ledger.failed(ALICE, "c9", "save_failed")
    assert ledger.check(rows, {Name(ALICE, "c9")}) == []


def test_dead_letter_without_a_notice_is_found() -> None:
    ledger, rows = good()
    ledger.sent(ALICE, "c9", BOB, "hi 9")
    ledger.accepted(ALICE, "c9", 109)
    assert kinds(ledger.check(rows, {Name(ALICE, "c9")}, all_answered=False)) == {"not notified"}


@for_each(
    [
        (lambda rows: rows[:2], "false saved"),
        (lambda rows: [*rows, replace(rows[2], id=999, seq=4)], "duplicate"),
        (lambda rows: [*rows, replace(rows[2], client_msg_id="c9", seq=4)], "duplicate"),
        (lambda rows: [*rows[:2], replace(rows[2], id=999)], "wrong id"),
        (lambda rows: [*rows, Stored(999, BOB, 4, ALICE, BOB, "who?", "hi")], "unknown origin"),
        (lambda rows: [*rows[:2], replace(rows[2], body="bye")], "altered"),
        (lambda rows: [*rows[:2], replace(rows[2], to_user=CAROL)], "altered"),
        (lambda rows: [*rows[:2], replace(rows[2], seq=5)], "gap"),
        (lambda rows: [*rows[:2], replace(rows[2], seq=2)], "gap"),
    ]
)
def test_wrong_rows_are_found(spoil: Callable[[list[Stored]], list[Stored]], kind: str) -> None:
    ledger, rows = good()
    assert kind in kinds(ledger.check(spoil(rows)))


def test_a_reorder_is_found() -> None:
    ledger = ChatLedger()
    for number in (1, 2, 3):
        told(ledger, number)
    for number in (1, 3, 2):
        arrives(ledger, number)
    assert kinds(ledger.check([row(number) for number in (1, 2, 3)])) == {"reorder"}


def test_doubles_do_not_count_as_a_reorder() -> None:
    ledger, rows = good()
    arrives(ledger, 1)
    assert ledger.check(rows) == []
    assert ledger.duplicates == 1


def test_an_order_of_acceptance_that_is_not_that_of_sending_is_found_if_asked_for() -> None:
    ledger = ChatLedger()
    for number, id in ((1, 102), (2, 101)):
        ledger.sent(ALICE, f"c{number}", BOB, f"hi {number}")
        ledger.saved(ALICE, f"c{number}", id)
    for number, id in ((2, 101), (1, 102)):
        arrives(ledger, number, id=id)
    rows = [replace(row(1), id=102, seq=2), replace(row(2), id=101, seq=1)]
    assert kinds(ledger.check(rows)) == {"reorder"}
    assert ledger.check(rows, order="accepted") == []


def test_a_message_that_never_came_is_found() -> None:
    ledger, rows = good()
    told(ledger, 4)
    assert kinds(ledger.check([*rows, row(4)])) == {"undelivered"}
    assert ledger.check([*rows, row(4)], all_arrived=False) == []


def test_one_message_under_two_ids_is_found() -> None:
    ledger, rows = good()
    arrives(ledger, 3, id=999)
    assert kinds(ledger.check(rows)) == {"duplicate"}


def test_message_resent_after_its_acknowledgement_is_found() -> None:
    ledger, rows = good()
    assert ledger.check(rows, ack_grace_s=0) == []
    ledger.arrived(BOB, ALICE, "c3", 103)
    (violation,) = ledger.check(rows, ack_grace_s=0)
    assert kinds([violation]) == {"sent again"}
    assert ledger.check(rows) == []  # it may have been on its way


def test_receipt_that_was_not_sent_is_found() -> None:
    ledger, rows = good()
    told(ledger, 4)
    ledger.arrived(BOB, ALICE, "c4", 104)
    ledger.receipt(ALICE, "c4", "read")
    assert kinds(ledger.check([*rows, row(4)])) == {"false receipt"}


def test_a_failure_that_is_a_row_is_found() -> None:
    ledger, rows = good()
    ledger.sent(ALICE, "c4", BOB, "hi 4")
    ledger.failed(ALICE, "c4", "save_failed")
    arrives(ledger, 4)
    assert kinds(ledger.check([*rows, row(4)])) == {"false failure"}


def test_a_sender_left_without_an_answer_is_found() -> None:
    ledger, rows = good()
    ledger.sent(ALICE, "c4", BOB, "hi 4")
    assert kinds(ledger.check(rows)) == {"unanswered"}
    assert ledger.check(rows, all_answered=False) == []


# -- the answers to each request -------------------------------------------------------------------


def exchange(ledger: ChatLedger, frames: str, number: int = 9, first_ts: int = 1) -> None:
    """R: a request; A, S, E: accepted, saved, an ERROR; |: the sender connects again. `ts` rises with each frame."""
    ledger.sent(ALICE, f"c{number}", BOB, f"hi {number}")
    told = {"A": Answer.ACCEPTED, "S": Answer.SAVED, "E": Answer.ERROR}
    connection = 1
    for ts, frame in enumerate(frames, first_ts):
        if frame == "R":
            ledger.requested(ALICE, f"c{number}", connection)
        elif frame == "|":
            connection += 1
        else:
            ledger.answered(ALICE, f"c{number}", connection, told[frame], ts)


@for_each(["RS", "RAS", "RASRAS", "RARSAS", "REE", "RERAS", "RAERAS", "RA|S", "RA|SRAS", "RAS|RAS", "R|ERAS", "RRASAS"])
def test_one_saved_for_each_request_after_its_accepted_is_in_order(frames: str) -> None:
    ledger, rows = good()
    exchange(ledger, frames)
    assert ledger.check(rows, all_answered=False) == []


@for_each(
    [
        ("RASS", "saved twice"),
        ("RSS", "saved twice"),
        ("RES", "saved twice"),
        ("RAES", "saved twice"),
        ("RERASS", "saved twice"),
        ("RA|SS", "saved twice"),
        ("RA|SRASS", "saved twice"),
        ("RSA", "accepted after saved"),
        ("RASA", "accepted after saved"),
        ("RESA", "accepted after saved"),
    ]
)
def test_a_saved_too_many_or_before_its_accepted_is_found(frames: str, kind: str) -> None:
    ledger, rows = good()
    exchange(ledger, frames)
    assert kind in kinds(ledger.check(rows, all_answered=False))


def test_a_ts_that_goes_back_between_accepted_and_saved_is_found() -> None:
    ledger, rows = good()
    ledger.sent(ALICE, "c9", BOB, "hi 9")
    ledger.requested(ALICE, "c9", 1)
    ledger.answered(ALICE, "c9", 1, Answer.ACCEPTED, 20)
    ledger.answered(ALICE, "c9", 1, Answer.SAVED, 19)
    assert kinds(ledger.check(rows, all_answered=False)) == {"ts went back"}


def test_the_ts_of_an_error_is_not_compared_because_it_may_have_waited_for_the_sender() -> None:
    ledger, rows = good()
    exchange(ledger, "RA|", first_ts=10)
    ledger.answered(ALICE, "c9", 2, Answer.ERROR, 5)
    assert ledger.check(rows, all_answered=False) == []


# -- a run in parts --------------------------------------------------------------------------------


def test_a_part_is_judged_by_its_own_messages() -> None:
    first, rows = good()
    second = first.next()
    told(second, 4)
    arrives(second, 4)
    assert first.check([*rows, row(4)]) == second.check([*rows, row(4)]) == []
    assert kinds(second.check(rows)) == {"false saved", "lost"}
    assert first.check(rows) == []


def test_an_answer_that_comes_a_part_too_late_is_written_where_it_belongs() -> None:
    first, rows = good()
    first.sent(ALICE, "c4", BOB, "hi 4")
    second = first.next()
    second.saved(ALICE, "c4", 104)
    arrives(second, 4)
    assert first.check([*rows, row(4)]) == []
    assert second.entries == {}


def test_message_acknowledged_in_an_earlier_part_and_resent_is_found() -> None:
    first, rows = good()
    second = first.next()
    second.arrived(BOB, ALICE, "c3", 103)
    assert kinds(second.check(rows, ack_grace_s=0)) == {"sent again"}


def test_acknowledgement_that_may_be_unread_is_ignored() -> None:
    ledger, rows = good()
    ledger.connection_lost(BOB, time.monotonic())
    ledger.arrived(BOB, ALICE, "c3", 103)
    assert ledger.check(rows, ack_grace_s=0) == []
    ledger.arrived(BOB, ALICE, "c3", 103)  # and it was acknowledged anew
    assert kinds(ledger.check(rows, ack_grace_s=0)) == {"sent again"}


def test_an_acknowledgement_from_long_before_the_connection_broke_counts() -> None:
    ledger, rows = good()
    ledger.connection_lost(BOB, time.monotonic() + 60)
    ledger.arrived(BOB, ALICE, "c3", 103)
    assert kinds(ledger.check(rows, ack_grace_s=0)) == {"sent again"}


def test_kept_messages_are_counted() -> None:
    ledger, rows = good()
    assert ledger.kept(rows) == 3
    assert ledger.kept(rows[1:]) == 2
