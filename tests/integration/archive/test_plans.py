"""No statement goes through a whole table, whatever the planner knows of it: on tables that were never filled."""

import re
from collections.abc import Iterator
from types import ModuleType

import asyncpg  # type: ignore[import-untyped]
import pytest

from dragoman.archive import archive as both
from dragoman.archive import open_archive
from dragoman.archive.postgres import archive as postgres_archive
from dragoman.archive.postgres import writes as postgres_writes
from dragoman.archive.postgres.server import SETTINGS
from dragoman.archive.sqlite import archive as sqlite_archive
from dragoman.archive.sqlite import writes as sqlite_writes
from dragoman.tools.postgres import PostgresServer
from support.databases import ask

_VERBS = ("SELECT", "INSERT", "UPDATE", "WITH")


def statements(*modules: ModuleType) -> Iterator[tuple[str, str]]:
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, str) and value.lstrip().startswith(_VERBS):
                yield f"{module.__name__}.{name}", value


async def test_postgres_goes_by_indexes_alone(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    archive = open_archive(url)
    await archive.open()
    await archive.close()
    connection = await asyncpg.connect(url, server_settings=SETTINGS)
    try:
        if connection.get_server_version().major < 16:
            pytest.skip("EXPLAIN (GENERIC_PLAN) came with PostgreSQL 16")
        found = list(statements(both, postgres_archive, postgres_writes))
        assert len(found) > 15
        for name, sql in found:
            plan = await explained(connection, sql)
            assert "Seq Scan" not in plan, f"{name}\n{plan}"
            # An index that is read without a condition is read from end to end.
            assert len(re.findall("Index(?: Only)? Scan", plan)) == plan.count("Index Cond:"), f"{name}\n{plan}"
    finally:
        await connection.close()


async def explained(connection: asyncpg.Connection, sql: str) -> str:
    # Asked directly, the server would want values for the parameters.
    await connection.execute(
        "CREATE OR REPLACE FUNCTION pg_temp.plan(sql text) RETURNS SETOF text LANGUAGE plpgsql AS "
        "$f$ BEGIN RETURN QUERY EXECUTE 'EXPLAIN (GENERIC_PLAN) ' || sql; END $f$"
    )
    return "\n".join(row[0] for row in await connection.fetch("SELECT * FROM pg_temp.plan($1)", sql))


async def test_sqlite_goes_by_indexes_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('plans')}/chat.sqlite3"
    archive = open_archive(url)
    await archive.open()
    await archive.close()
    found = list(statements(both, sqlite_archive, sqlite_writes))
    assert len(found) > 15
    for name, sql in found:
        plan = [row[3] for row in await ask(url, f"EXPLAIN QUERY PLAN {re.sub('[?$][0-9]+|[?]', '0', sql)}")]
        scanned = [line for line in plan if line.startswith("SCAN")]
        # What may be gone through: the list we were given, and what was already narrowed down.
        narrow = ("SCAN json_each", "SCAN said", "SCAN c", "SCAN newest", "SCAN CONSTANT")
        assert all(line.startswith(narrow) for line in scanned), name
