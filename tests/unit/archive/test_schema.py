import pytest

from dragoman.archive import WrongSchema
from dragoman.archive.schema import Mark, Script, overview, pending, scripts

ONE, TWO = Script("0001_one", "CREATE TABLE one (id INTEGER);"), Script("0002_two", "CREATE TABLE two (id INTEGER);")
KNOWN = [ONE, TWO]


def marks(*applied: Script) -> dict[str, Mark]:
    return {script.name: Mark(script.checksum, 5) for script in applied}


def test_what_the_database_does_not_have_is_pending_in_order() -> None:
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
