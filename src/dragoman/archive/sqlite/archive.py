"""The archive in a SQLite file: writes go to the writer thread, reads to a second thread with its own connection.

History therefore never waits for a commit. A reader sees what was committed when its statement began.
"""

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dragoman.archive.archive import Archive, conversations_by, now_ms
from dragoman.archive.rows import Batch
from dragoman.archive.sqlite import writes
from dragoman.archive.sqlite.file import Reader, SqliteFile, Writer
from dragoman.archive.types import Applied, Migration, NewMessage, Receipt, SaveOutcome

_UNDELIVERED_USERS = """
SELECT value FROM json_each($1) WHERE EXISTS
    (SELECT 1 FROM message WHERE to_user_id = value AND status = 0 AND saved_ms < $2)
"""
_CONVERSATIONS = conversations_by("CROSS JOIN")


class SqliteArchive(Archive):
    _messages, _undelivered_users, _conversations = writes.MESSAGES, _UNDELIVERED_USERS, _CONVERSATIONS
    _listed, _lock_shared = "IN (SELECT value FROM json_each($1))", ""

    def __init__(self, path: Path, *, busy_ms: int = 5000) -> None:
        self._file = SqliteFile(path, busy_ms=busy_ms)
        self._writer = Writer(self._file)
        self._reader = Reader(self._file)

    async def open(self) -> None:
        await self._writer.do(lambda db: None)

    async def close(self) -> None:
        await self._writer.close()
        await self._reader.close()

    async def save(
        self,
        rows: Sequence[NewMessage],
        *,
        shard: int | None = None,
        fence: int | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> list[SaveOutcome]:
        batch = Batch.of(rows)
        if not rows and fence is None:
            return []

        def write(db: sqlite3.Connection) -> list[SaveOutcome]:
            if on_begin is not None:
                on_begin()
            return writes.save(db, batch, shard, fence, now_ms())

        return await self._writer.do(write)

    async def receipts(self, given: Sequence[Receipt]) -> list[Applied]:
        return await self._writer.do(lambda db: writes.receipts(db, given)) if given else []

    async def migrate(self) -> list[str]:
        before = await self.migrations()
        await self.open()
        return [migration.name for migration in before if migration.applied_ms is None]

    async def migrations(self) -> list[Migration]:
        return await self._reader.migrations()

    async def _rows(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        return await self._reader.do(lambda db: _execute(db, statement, values).fetchall())

    async def _change(self, statement: str, *values: Any) -> int:
        return await self._writer.do(lambda db: _execute(db, statement, values).rowcount)

    async def _take(
        self, select: str, values: Sequence[Any], changes: Sequence[str]
    ) -> tuple[list[Sequence[Any]], list[int]]:
        def work(db: sqlite3.Connection) -> tuple[list[Sequence[Any]], list[int]]:
            rows = _execute(db, select, values).fetchall()
            ids = [row[0] for row in rows]
            return rows, [_execute(db, change, [ids]).rowcount for change in changes]

        return await self._writer.do(work)


def _execute(db: sqlite3.Connection, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
    """SQLite writes ?1 for $1, and takes a list as JSON."""
    return db.execute(
        statement.replace("$", "?"), [json.dumps(one) if isinstance(one, list) else one for one in values]
    )
