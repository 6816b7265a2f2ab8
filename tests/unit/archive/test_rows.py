import pytest

from dragoman.archive import BadRow, NewMessage, Status, Stored, Verdict
from dragoman.archive.rows import Batch, check, fitting, pair, storable, stored


def said(number: int, client: str = "c", sender: int = 1, receiver: int = 2, body: str = "hello") -> NewMessage:
    return NewMessage(number, client, sender, receiver, "TEXT", body, 5)


def kept(row: NewMessage, seq: int = 1) -> Stored:
    return Stored(
        row.id, 7, seq, row.from_user, row.to_user, row.msg_type, row.body, row.client_msg_id, Status.SAVED, 5, 6
    )


def test_a_row_of_the_table_becomes_a_message() -> None:
    message = stored((1, 7, 3, 1, 2, "TEXT", "hello", "c", 2, 5, 6))
    assert (message.seq, message.status, message.saved_ms) == (3, Status.READ, 6)


def test_the_pair_of_a_conversation_is_the_same_in_both_directions() -> None:
    assert pair(said(1, sender=9, receiver=4)) == pair(said(2, sender=4, receiver=9)) == (4, 9)


def test_numbers_beyond_a_column_are_left_out_and_others_kept_once() -> None:
    assert fitting([3, 2**63, 3, -(2**63), -(2**63) - 1, 2**63 - 1]) == [3, -(2**63), 2**63 - 1]


@pytest.mark.parametrize(
    "row",
    [
        said(2**63),
        said(1, sender=-(2**63) - 1),
        said(1, receiver=1),
        said(1, client="a\0"),
        said(1, client="x" * 513),
        said(1, body="\0"),
        said(1, body="\udc00"),
    ],
)
def test_what_no_table_can_hold_is_refused(row: NewMessage) -> None:
    with pytest.raises(BadRow):
        check(row)


def test_text_of_every_language_is_held() -> None:
    check(said(1, body="مرحبا 世界 🙂 \x01\x7f\n"))
    assert storable("世界")
    assert not storable("\ud800")


def test_a_batch_writes_the_first_of_each_client_id() -> None:
    rows = [said(1), said(2), said(3, sender=4), said(4, "other")]
    assert Batch.of(rows).firsts == [rows[0], rows[2], rows[3]]


def test_a_batch_with_one_number_for_two_messages_is_refused() -> None:
    with pytest.raises(BadRow, match="two messages"):
        Batch.of([said(1), said(1, "other")])


def test_what_is_there_by_client_id_or_by_number_is_not_written() -> None:
    batch = Batch.of([said(1, "a"), said(2, "b"), said(3, "c")])
    there = [kept(said(99, "a")), kept(said(3, "z", sender=8))]
    assert batch.missing(there) == [batch.rows[1]]


def test_every_row_gets_its_outcome() -> None:
    rows = [said(1, "a"), said(2, "b"), said(1, "a"), said(3, "b", body="other"), said(4, "d"), said(5, "e")]
    batch = Batch.of(rows)
    there = [kept(said(90, "d")), kept(said(5, "z", sender=8))]
    saved = [kept(row) for row in batch.missing(there)]
    outcomes = batch.outcomes(saved, there)
    assert [outcome.verdict for outcome in outcomes] == [
        Verdict.SAVED,
        Verdict.SAVED,
        Verdict.EXISTS,
        Verdict.EXISTS,
        Verdict.EXISTS,
        Verdict.MISMATCH,
    ]
    assert [outcome.message.id for outcome in outcomes] == [1, 2, 1, 2, 90, 5]
