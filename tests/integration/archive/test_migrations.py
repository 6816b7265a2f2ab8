"""Tables made and changed by numbered files, on both databases."""

import asyncio
from pathlib import Path

import pytest

from dragoman.archive import WrongSchema, open_archive, schema
from dragoman.archive.schema import Dialect, Script
from integration.archive.letters import letter, verdicts
from support.databases import ask

NAMES = [script.name for script in schema.scripts("sqlite")]


def dialect(url: str) -> Dialect:
    return "sqlite" if url.startswith("sqlite") else "postgres"


def one_more(monkeypatch: pytest.MonkeyPatch, url: str, sql: str) -> None:
    known = [*schema.scripts(dialect(url)), Script("0999_later", sql)]
    monkeypatch.setattr(schema, "scripts", lambda dialect: known)


async def test_looking_changes_nothing_and_migrating_is_done_once(sql_url: str) -> None:
    archive = open_archive(sql_url)
    try:
        for _ in range(2):
            assert [(migration.name, migration.applied_ms) for migration in await archive.migrations()] == [
                (name, None) for name in NAMES
            ]
        assert await archive.migrate() == NAMES
        assert await archive.migrate() == []
        assert all(migration.applied_ms for migration in await archive.migrations())
    finally:
        await archive.close()


async def test_both_databases_have_the_same_migrations() -> None:
    assert [script.name for script in schema.scripts("postgres")] == NAMES


async def test_several_that_open_an_empty_database_at_once_migrate_it_once(sql_url: str) -> None:
    archives = [open_archive(sql_url) for _ in range(6)]
    try:
        await asyncio.gather(*(archive.open() for archive in archives))
        assert verdicts(await archives[3].save([letter(1, 2)])) == ["saved"]
    finally:
        await asyncio.gather(*(archive.close() for archive in archives))
    assert await ask(sql_url, f"SELECT count(*) FROM {schema.TABLE}") == [(len(NAMES),)]


async def test_first_call_migrates_an_unopened_database(sql_url: str) -> None:
    archive = open_archive(sql_url)
    try:
        assert await archive.undelivered(1) == []
    finally:
        await archive.close()


async def test_a_database_of_a_newer_release_is_refused(sql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        one_more(newer, sql_url, "CREATE TABLE later (id INTEGER PRIMARY KEY);\nCREATE INDEX l ON later (id);")
        archive = open_archive(sql_url)
        assert await archive.migrate() == [*NAMES, "0999_later"]
        await archive.close()
    archive = open_archive(sql_url)
    try:
        with pytest.raises(WrongSchema, match=r"newer Dragoman.*0999_later"):
            await archive.open()
        with pytest.raises(WrongSchema, match="newer Dragoman"):
            await archive.undelivered(1)
        assert [migration.name for migration in await archive.migrations()][-1] == "0999_later"
    finally:
        await archive.close()


async def test_a_migration_that_fails_leaves_nothing_behind(sql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        one_more(broken, sql_url, "CREATE TABLE half (id INTEGER PRIMARY KEY);\nCREATE TABLE half (id INTEGER);")
        archive = open_archive(sql_url)
        with pytest.raises(Exception, match="half"):
            await archive.open()
        assert {migration.applied_ms for migration in await archive.migrations()} == {None}
        await archive.close()
    archive = open_archive(sql_url)
    assert await archive.migrate() == NAMES
    await archive.close()


async def test_tables_made_by_another_file_are_refused(sql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = open_archive(sql_url)
    await archive.open()
    await archive.close()
    edited = [Script(script.name, script.sql + "\n-- edited") for script in schema.scripts(dialect(sql_url))]
    monkeypatch.setattr(schema, "scripts", lambda dialect: edited)
    archive = open_archive(sql_url)
    with pytest.raises(WrongSchema, match="checksum"):
        await archive.open()
    await archive.close()


async def test_database_has_one_unique_id(sql_url: str, tmp_path: Path) -> None:
    archives = [open_archive(url) for url in (sql_url, sql_url, f"sqlite:///{tmp_path}/other.sqlite3")]
    try:
        seen = [await archive.identity() for archive in archives]
        assert seen[0] == seen[1] != seen[2]
        assert all(len(identity) == 32 for identity in seen)
    finally:
        await asyncio.gather(*(archive.close() for archive in archives))


async def test_a_database_of_an_earlier_release_gets_its_id_once(sql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        known = schema.scripts(dialect(sql_url))[:1]
        earlier.setattr(schema, "scripts", lambda dialect: known)
        before = open_archive(sql_url)
        await before.open()
        await before.close()
    await ask(sql_url, "INSERT INTO message VALUES (7, 1, 1, 1, 2, 'TEXT', 'hello', 'c-7', 0, 1, 1)")
    archives = [open_archive(sql_url) for _ in range(4)]
    try:
        assert len(set(await asyncio.gather(*(archive.identity() for archive in archives)))) == 1
        assert list(await archives[0].messages([7])) == [7]
    finally:
        await asyncio.gather(*(archive.close() for archive in archives))


async def test_a_database_that_lost_its_id_is_refused(sql_url: str) -> None:
    archive = open_archive(sql_url)
    try:
        await archive.open()
        await ask(sql_url, "DELETE FROM identity")
        with pytest.raises(WrongSchema, match="identity"):
            await archive.identity()
    finally:
        await archive.close()
