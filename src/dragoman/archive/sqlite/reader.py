"""The thread of this process that reads from a SQLite file, on a connection of its own."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dragoman.archive.errors import ArchiveAway
from dragoman.archive.sqlite.file import SqliteFile
from dragoman.archive.types import Migration

T = TypeVar("T")


class Reader:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, "archive reader")
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._closed = False

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._on_thread(lambda: self._read(work))

    async def migrations(self) -> list[Migration]:
        return await self._on_thread(self._file.look)

    async def close(self) -> None:
        if not self._closed:
            await self._on_thread(self._drop)
            self._closed = True
            self._thread.shutdown(wait=False)

    async def _on_thread(self, step: Callable[[], T]) -> T:
        if self._closed:
            raise ArchiveAway("The archive was closed.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._explain, step)

    # -- on the thread ---------------------------------------------------------------------------

    def _explain(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except Exception as error:
            told = self._file.explained(error)
            if isinstance(error, sqlite3.OperationalError | OSError):
                self._drop()
            if told is error:
                raise
            raise told from error

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db = self._connection()
        return self._file.patiently(lambda: work(db))

    def _connection(self) -> sqlite3.Connection:
        """The open connection, unless the file is not the one it was opened on."""
        if self._db is not None and self._file.inode() != self._inode:
            self._drop()
        if self._db is None:
            self._db = self._file.connect()
            self._db.execute("PRAGMA query_only = ON")
            self._inode = self._file.inode()
        return self._db

    def _drop(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
