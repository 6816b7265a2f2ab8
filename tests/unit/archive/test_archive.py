"""The archive without a database: rows, schema, addresses and receipts."""

from pathlib import Path

import pytest

from dragoman.archive import (
    ArchiveError,
    BadRow,
    NewMessage,
    Receipt,
    SaveVerdict,
    Status,
    Stored,
    WrongSchema,
    archive_url,
    open_archive,
)
from dragoman.archive.archive import sqlite_path
from dragoman.archive.decide_receipts import ReceiptDecision, reach
from dragoman.archive.postgres import PostgresArchive
from dragoman.archive.rows import Batch, check, fitting, pair, storable, stored
from dragoman.archive.schema import Mark, Script, overview, pending, scripts
from dragoman.archive.sqlite import SqliteArchive
from dragoman.config.schema import Config, Embedded
from dragoman.config.schema_chat import Archive
from support.tables import for_each

SAVED, DELIVERED, READ = Status.SAVED, Status.DELIVERED, Status.READ


def message(number: int, status: Status = SAVED, *, to: int = 2, conversation: int = 7) -> Stored:
    return Stored(number, conversation, number, 1, to, "TEXT", "hello", f"c{number}", status, 5, 6)


def raised(decision: ReceiptDecision) -> dict[int, Status]:
    return {changed.id: changed.status for changed in decision.raised}


def test_delivered_raises_what_it_names() -> None:
    decision = ReceiptDecision([message(1), message(2), message(3, READ)])
    applied = decision.apply(Receipt(2, DELIVERED, (2, 3)))
    assert [changed.id for changed in applied.changed] == [2]
    assert raised(decision) == {2: DELIVERED}


def test_read_takes_along_what_was_delivered_before_it_and_nothing_else() -> None:
    rows = [message(1, DELIVERED), message(2), message(3, DELIVERED), message(4, DELIVERED)]
    decision = ReceiptDecision([*rows, message(5, DELIVERED, conversation=8)])
    applied = decision.apply(Receipt(2, READ, (3,)))
    assert [changed.id for changed in applied.changed] == [1, 3]
    assert raised(decision) == {1: READ, 3: READ}


def test_read_again_takes_along_what_was_delivered_meanwhile() -> None:
    decision = ReceiptDecision([message(1), message(2)])
    decision.apply(Receipt(2, READ, (2,)))
    decision.apply(Receipt(2, DELIVERED, (1,)))
    applied = decision.apply(Receipt(2, READ, (2,)))
    assert [(changed.id, changed.status) for changed in applied.changed] == [(1, READ)]


def test_message_to_another_receiver_differs_from_a_missing_one() -> None:
    applied = ReceiptDecision([message(1, to=3)]).apply(Receipt(2, READ, (1, 9)))
    assert (applied.not_allowed, applied.missing, applied.changed) == ([1], [9], [])


def test_receipts_reach_as_far_as_the_last_message_read() -> None:
    named = {number: message(number) for number in (1, 2, 3)} | {4: message(4, to=3)}
    reached = reach([Receipt(2, DELIVERED, (3, 4, 9)), Receipt(2, READ, (2, 1))], named)
    assert reached.read_upto == {(7, 2): 2}
    assert list(reached.ids) == [3, 2, 1]


def test_receipts_that_only_deliver_reach_into_a_lane_without_reading_it() -> None:
    assert reach([Receipt(2, DELIVERED, (1,))], {1: message(1)}).read_upto == {(7, 2): 0}


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


@for_each(
    [
        said(2**63),
        said(1, sender=-(2**63) - 1),
        said(1, receiver=1),
        said(1, client="a\0"),
        said(1, client="x" * 513),
        said(1, body="\0"),
        said(1, body="\udc00"),
    ]
)
def test_value_that_no_table_can_store_is_refused(row: NewMessage) -> None:
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


def test_existing_row_is_not_written_again() -> None:
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
        SaveVerdict.SAVED,
        SaveVerdict.SAVED,
        SaveVerdict.EXISTS,
        SaveVerdict.EXISTS,
        SaveVerdict.EXISTS,
        SaveVerdict.MISMATCH,
    ]
    assert [outcome.message.id for outcome in outcomes] == [1, 2, 1, 2, 90, 5]


ONE, TWO = Script("0001_one", "CREATE TABLE one (id INTEGER);"), Script("0002_two", "CREATE TABLE two (id INTEGER);")
KNOWN = [ONE, TWO]


def marks(*applied: Script) -> dict[str, Mark]:
    return {script.name: Mark(script.checksum, 5) for script in applied}


def test_rows_missing_in_the_database_stay_pending_in_order() -> None:
    assert pending(KNOWN, {}) == KNOWN
    assert pending(KNOWN, marks(ONE)) == [TWO]
    assert pending(KNOWN, marks(ONE, TWO)) == []


def test_a_migration_we_do_not_know_is_refused() -> None:
    with pytest.raises(WrongSchema, match="newer Dragoman"):
        pending([ONE], marks(ONE, TWO))


def test_another_file_under_the_same_name_is_refused() -> None:
    with pytest.raises(WrongSchema, match="checksum"):
        pending(KNOWN, {ONE.name: Mark("0" * 64, 5)})


def test_an_overview_names_what_is_known_and_what_is_there() -> None:
    found = [(migration.name, migration.applied_ms) for migration in overview([ONE], marks(TWO))]
    assert found == [("0001_one", None), ("0002_two", 5)]


def test_both_databases_have_the_same_migrations_in_plain_ascii() -> None:
    sqlite, postgres = scripts("sqlite"), scripts("postgres")
    assert [script.name for script in sqlite] == [script.name for script in postgres]
    assert all(script.sql.isascii() for script in (*sqlite, *postgres))


def test_with_no_url_it_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    odd = tmp_path / "a dir? with #odd %names"
    url = archive_url(Config(embedded=Embedded(data_dir=str(odd))))
    assert sqlite_path(url) == odd / "chat.sqlite3"


def test_a_url_that_is_set_is_taken_as_it_is() -> None:
    assert archive_url(Config(archive=Archive(url="postgresql://host/chat"))) == "postgresql://host/chat"


def test_three_slashes_are_relative_and_four_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///some/chat.db") == tmp_path / "some/chat.db"
    assert sqlite_path("sqlite:////var/lib/chat.db") == Path("/var/lib/chat.db")


@for_each(["sqlite://host/chat.db", "sqlite:///", "sqlite:"])
def test_a_sqlite_url_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(ArchiveError, match="sqlite:///path"):
        open_archive(url)


@for_each(["mysql://host/chat", "", "chat.db"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(ArchiveError, match=r"archive\.url"):
        open_archive(url)


def test_the_kind_follows_from_the_url(tmp_path: Path) -> None:
    assert isinstance(open_archive(f"sqlite:///{tmp_path}/chat.db"), SqliteArchive)
    assert isinstance(open_archive("postgresql://host/chat"), PostgresArchive)
    assert isinstance(open_archive("postgres://host/chat", Archive(pool=3)), PostgresArchive)
