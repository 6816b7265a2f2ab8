"""The archive in PostgreSQL: each call one piece of work on a connection of the pool; single messages share one."""

from collections.abc import Sequence
from typing import Any

from dragoman.archive.archive import Archive, conversations_by, now_ms
from dragoman.archive.postgres import writes
from dragoman.archive.postgres.group_commit import GroupCommit, Left
from dragoman.archive.postgres.server import LOCK_TIMEOUT_S, Connection, OnBegin, PostgresServer
from dragoman.archive.rows import Batch
from dragoman.archive.types import Applied, Migration, NewMessage, Receipt, SaveOutcome

_UNDELIVERED_USERS = """
SELECT asked.id FROM unnest($1::bigint[]) AS asked(id)
CROSS JOIN LATERAL
    (SELECT FROM message WHERE to_user_id = asked.id AND status = 0 AND saved_ms < $2 LIMIT 1) AS something
"""
_CONVERSATIONS = conversations_by("JOIN")


class PostgresArchive(Archive):
    _messages, _undelivered_users, _conversations = writes.MESSAGES, _UNDELIVERED_USERS, _CONVERSATIONS
    _listed, _lock_shared = "= ANY($1::bigint[])", "FOR SHARE"

    def __init__(self, url: str, *, pool: int = 8, timeout_s: float = 10.0) -> None:
        self._server = PostgresServer(url, pool=pool, timeout_s=timeout_s)
        self._group_commit = GroupCommit(self._save_free, self._save, min(LOCK_TIMEOUT_S, timeout_s))

    async def open(self) -> None:
        await self._server.read(lambda db: db.execute("SELECT 1"))

    async def close(self) -> None:
        await self._group_commit.close()
        await self._server.close()

    async def save(
        self,
        rows: Sequence[NewMessage],
        *,
        shard: int | None = None,
        fence: int | None = None,
        on_begin: OnBegin | None = None,
    ) -> list[SaveOutcome]:
        if len(rows) == 1 and fence is None:
            return [await self._group_commit.save(rows[0], on_begin)]
        return await self._save(rows, on_begin, shard, fence)

    async def _save(
        self,
        rows: Sequence[NewMessage],
        on_begin: OnBegin | None = None,
        shard: int | None = None,
        fence: int | None = None,
    ) -> list[SaveOutcome]:
        batch = Batch.of(rows)
        if not rows and fence is None:
            return []
        try:
            return await self._server.write(lambda db: writes.save(db, batch, shard, fence, now_ms()), on_begin)
        except writes.MissingConversations:
            return await self._server.write(
                lambda db: writes.save_and_create(db, batch, shard, fence, now_ms()), on_begin
            )

    async def _save_free(self, rows: Sequence[NewMessage], on_begin: OnBegin | None = None) -> list[SaveOutcome | Left]:
        batch = Batch.of(rows)
        return await self._server.write(lambda db: writes.save_free(db, batch, now_ms()), on_begin)

    async def receipts(self, given: Sequence[Receipt]) -> list[Applied]:
        if not given:
            return []
        named = await self.messages([number for receipt in given for number in receipt.ids])
        return await self._server.write(lambda db: writes.receipts(db, given, named))

    async def migrate(self) -> list[str]:
        return await self._server.migrate()

    async def migrations(self) -> list[Migration]:
        return await self._server.migrations()

    async def _rows(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        return await self._server.read(lambda db: db.fetch(statement, *values))

    async def _change(self, statement: str, *values: Any) -> int:
        return _count(await self._server.write(lambda db: db.execute(statement, *values)))

    async def _take(
        self, select: str, values: Sequence[Any], changes: Sequence[str]
    ) -> tuple[list[Sequence[Any]], list[int]]:
        async def work(db: Connection) -> tuple[list[Sequence[Any]], list[int]]:
            rows = await db.fetch(f"{select} FOR UPDATE SKIP LOCKED", *values)
            ids = [row[0] for row in rows]
            return rows, [_count(await db.execute(change, ids)) for change in changes]

        return await self._server.write(work)


def _count(done: str) -> int:
    """How many rows a command has changed, as its answer says."""
    return int(done.rpartition(" ")[2])
