"""The archive in PostgreSQL: each call one piece of work on a connection of the pool; single messages share one."""

import time
from collections.abc import Sequence

from dragoman.archive.archive import Archive
from dragoman.archive.postgres import reads, writes
from dragoman.archive.postgres.group_commit import GroupCommit, Left
from dragoman.archive.postgres.server import LOCK_TIMEOUT_S, OnBegin, PostgresServer
from dragoman.archive.rows import Batch, check_key, check_text, fits, fitting, storable
from dragoman.archive.types import (
    Applied,
    Conversation,
    MemberState,
    Migration,
    NewMessage,
    Receipt,
    SaveOutcome,
    Stored,
    User,
)


class PostgresArchive(Archive):
    def __init__(self, url: str, *, pool: int = 8, timeout_s: float = 10.0) -> None:
        self._server = PostgresServer(url, pool=pool, timeout_s=timeout_s)
        self._group_commit = GroupCommit(self._save_free, self._save, min(LOCK_TIMEOUT_S, timeout_s))

    async def open(self) -> None:
        await self._server.read(lambda db: db.execute("SELECT 1"))

    async def close(self) -> None:
        await self._group_commit.close()
        await self._server.close()

    async def identity(self) -> str:
        return await self._server.read(reads.identity)

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
            return await self._server.write(lambda db: writes.save(db, batch, shard, fence, _now_ms()), on_begin)
        except writes.MissingConversations:
            return await self._server.write(
                lambda db: writes.save_and_create(db, batch, shard, fence, _now_ms()), on_begin
            )

    async def _save_free(self, rows: Sequence[NewMessage], on_begin: OnBegin | None = None) -> list[SaveOutcome | Left]:
        batch = Batch.of(rows)
        return await self._server.write(lambda db: writes.save_free(db, batch, _now_ms()), on_begin)

    async def fence(self, shard: int) -> int:
        return await self._server.read(lambda db: reads.fence(db, shard))

    async def find(self, from_user: int, client_msg_id: str) -> Stored | None:
        if not (fits(from_user) and storable(client_msg_id)):
            return None
        return await self._server.read(lambda db: reads.find(db, from_user, client_msg_id))

    async def messages(self, ids: Sequence[int]) -> dict[int, Stored]:
        return await self._server.read(lambda db: reads.messages(db, fitting(ids)))

    async def receipts(self, given: Sequence[Receipt]) -> list[Applied]:
        if not given:
            return []
        named = await self.messages([number for receipt in given for number in receipt.ids])
        return await self._server.write(lambda db: writes.receipts(db, given, named))

    async def undelivered(self, user: int, after: int = 0, limit: int = 100) -> list[Stored]:
        return await self._server.read(lambda db: reads.undelivered(db, user, after, limit))

    async def undelivered_users(self, users: Sequence[int], saved_before_ms: int) -> set[int]:
        return await self._server.read(lambda db: reads.undelivered_users(db, fitting(users), saved_before_ms))

    async def history(
        self, me: int, peer: int, *, limit: int, below_seq: int | None = None, below_id: int | None = None
    ) -> list[Stored]:
        return await self._server.read(lambda db: reads.history(db, me, peer, limit, below_seq, below_id))

    async def conversations(self, me: int, *, limit: int, before: tuple[int, int] | None = None) -> list[Conversation]:
        return await self._server.read(lambda db: reads.conversations(db, me, limit, before))

    async def member_state(self, me: int, peer: int) -> MemberState | None:
        return await self._server.read(lambda db: reads.member_state(db, me, peer))

    async def user_by_name(self, name: str) -> User | None:
        return await self._server.read(lambda db: reads.user_by_name(db, name)) if storable(name) else None

    async def create_user(self, name: str, password_hash: str) -> User:
        check_key(name, "The name")
        check_text(password_hash, "The password hash")
        return await self._server.write(lambda db: writes.create_user(db, name, password_hash, _now_ms()))

    async def set_password(self, user: int, password_hash: str) -> bool:
        check_text(password_hash, "The password hash")
        return fits(user) and await self._server.write(lambda db: writes.set_password(db, user, password_hash))

    async def remove_user(self, user: int) -> bool:
        return fits(user) and await self._server.write(lambda db: writes.remove_user(db, user))

    async def migrate(self) -> list[str]:
        return await self._server.migrate()

    async def migrations(self) -> list[Migration]:
        return await self._server.migrations()


def _now_ms() -> int:
    return int(time.time() * 1000)
