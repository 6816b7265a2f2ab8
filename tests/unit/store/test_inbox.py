import pytest

from dragoman.store.inbox import Entry, Tally


def test_an_entry_is_read_back_from_its_fields() -> None:
    fields = [b"v", b"1", b"type", b"job_assign", b"trace_id", b"t", b"size", b"4", b"data", b"\x00\xff{}"]
    assert Entry.parse(b"5-0", fields) == Entry("5-0", "job_assign", b"\x00\xff{}", "t", 4)


def test_an_entry_of_a_later_release_says_so() -> None:
    entry = Entry.parse(b"5-0", [b"v", b"2", b"type", b"job_assign", b"data", b"x"])
    assert entry.newer
    assert entry.kind == "job_assign"


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        [b"type", b"job_assign", b"data", b"x"],
        [b"v", b"one", b"type", b"job_assign", b"data", b"x"],
        [b"v", b"0", b"type", b"job_assign", b"data", b"x"],
        [b"v", b"1", b"type", b"job_assign"],
        [b"v", b"1", b"data", b"x"],
        [b"v", b"1", b"type", b"\xff\xfe", b"data", b"x"],
        [b"v", b"1", b"type", b"job_assign", b"size", b"big", b"data", b"x"],
        [b"v", b"1", b"type", b"job_assign", b"data"],
    ],
)
def test_what_cannot_be_understood_has_no_kind(fields: list[bytes] | None) -> None:
    entry = Entry.parse(b"5-0", fields)
    assert entry.kind == ""
    assert entry.id == "5-0"
    assert not entry.newer


def test_a_tally_balances_when_all_that_came_is_done_dead_or_waiting() -> None:
    assert Tally().balanced
    assert Tally(added=6, done=3, dead=1, waiting=2).balanced
    assert not Tally(added=6, done=3, dead=1, waiting=1).balanced
