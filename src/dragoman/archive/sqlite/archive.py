"""The archive in a SQLite file: writes go to the writer thread, reads to a second thread with its own connection.

History therefore never waits for a commit. A reader sees what was committed when its statement began.
"""

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.archive.archive import Archive
from dragoman.archive.rows import Batch, check_key, check_text, fits, fitting, storable
from dragoman.archive.sqlite import reads, writes
from dragoman.archive.sqlite.file import SqliteFile
from dragoman.archive.sqlite.threads import Reader, Writer
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


class SqliteArchive(Archive):
    def __init__(self, path: Path, *, busy_ms: int = 5000) -> None:
        self._file = SqliteFile(path, busy_ms=busy_ms)
        self._writer = Writer(self._file)
        self._reader = Reader(self._file)

    async def open(self) -> None:
        await self._writer.do(lambda db: None)

    async def close(self) -> None:
        await self._writer.close()
        await self._reader.close()

    async def identity(self) -> str:
        return await self._reader.do(reads.identity)

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
            return writes.save(db, batch, shard, fence, _now_ms())

        return await self._writer.do(write)

    async def fence(self, shard: int) -> int:
        return await self._reader.do(lambda db: reads.fence(db, shard))

    async def find(self, from_user: int, client_msg_id: str) -> Stored | None:
        if not (fits(from_user) and storable(client_msg_id)):
            return None
        return await self._reader.do(lambda db: reads.find(db, from_user, client_msg_id))

    async def messages(self, ids: Sequence[int]) -> dict[int, Stored]:
        return await self._reader.do(lambda db: reads.messages(db, fitting(ids)))

    async def receipts(self, given: Sequence[Receipt]) -> list[Applied]:
        return await self._writer.do(lambda db: writes.receipts(db, given)) if given else []

    async def undelivered(self, user: int, after: int = 0, limit: int = 100) -> list[Stored]:
        return await self._reader.do(lambda db: reads.undelivered(db, user, after, limit))

    async def undelivered_users(self, users: Sequence[int], saved_before_ms: int) -> set[int]:
        return await self._reader.do(lambda db: reads.undelivered_users(db, fitting(users), saved_before_ms))

    async def history(
        self, me: int, peer: int, *, limit: int, below_seq: int | None = None, below_id: int | None = None
    ) -> list[Stored]:
        return await self._reader.do(lambda db: reads.history(db, me, peer, limit, below_seq, below_id))

    async def conversations(self, me: int, *, limit: int, before: tuple[int, int] | None = None) -> list[Conversation]:
        return await self._reader.do(lambda db: reads.conversations(db, me, limit, before))

    async def member_state(self, me: int, peer: int) -> MemberState | None:
        return await self._reader.do(lambda db: reads.member_state(db, me, peer))

    async def user_by_name(self, name: str) -> User | None:
        return await self._reader.do(lambda db: reads.user_by_name(db, name)) if storable(name) else None

    async def create_user(self, name: str, password_hash: str) -> User:
        check_key(name, "The name")
        check_text(password_hash, "The password hash")
        return await self._writer.do(lambda db: writes.create_user(db, name, password_hash, _now_ms()))

    async def set_password(self, user: int, password_hash: str) -> bool:
        check_text(password_hash, "The password hash")
        return fits(user) and await self._writer.do(lambda db: writes.set_password(db, user, password_hash))

    async def remove_user(self, user: int) -> bool:
        return fits(user) and await self._writer.do(lambda db: writes.remove_user(db, user))

    async def migrate(self) -> list[str]:
        before = await self.migrations()
        await self.open()
        return [migration.name for migration in before if migration.applied_ms is None]

    async def migrations(self) -> list[Migration]:
        return await self._reader.migrations()


def _now_ms() -> int:
    return int(time.time() * 1000)
