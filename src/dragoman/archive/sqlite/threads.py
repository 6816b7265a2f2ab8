"""The two threads of this process that use a SQLite file, each with a connection of its own: one reads, one writes.

The writer puts everything that waits when it gets the lock into one transaction, so that it shares the commit and the
wait for the disk. Each piece has a SAVEPOINT: one that fails, fails alone. No caller is answered before the commit.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from dragoman.archive.sqlite.file import SqliteFile, is_locked
from dragoman.archive.types import ArchiveAway, Migration

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

# Beyond this many, the next transaction: other processes want to write too.
_PIECES = 256


class _Connected:
    """Has a connection that is made when it is needed, by the one thread that uses it."""

    def __init__(self, file: SqliteFile, *settings: str) -> None:
        self._file, self._settings = file, settings
        self._db: sqlite3.Connection | None = None
        self._inode = 0

    def _connection(self) -> sqlite3.Connection:
        """The open connection, unless the file is not the one it was opened on."""
        if self._db is not None and self._file.inode() != self._inode:
            self._drop()
        if self._db is None:
            self._db = self._file.connect()
            for setting in self._settings:
                self._db.execute(f"PRAGMA {setting}")
            self._inode = self._file.inode()
        return self._db

    def _drop(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None


class Reader(_Connected):
    def __init__(self, file: SqliteFile) -> None:
        super().__init__(file, "query_only = ON")
        self._thread = ThreadPoolExecutor(1, "archive reader")
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
            meaning = self._file.explained(error)
            if isinstance(error, sqlite3.OperationalError | OSError):
                self._drop()
            if meaning is error:
                raise
            raise meaning from error

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db = self._connection()
        return self._file.retry_while_locked(lambda: work(db))


@dataclass(slots=True, eq=False)
class Piece(Generic[T]):
    work: Work[T]
    future: asyncio.Future[T]
    result: T | None = None
    error: Exception | None = None

    def answer(self) -> None:
        """On the loop of the caller."""
        if self.future.done():  # the caller was cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(cast(T, self.result))


class Writer(_Connected):
    def __init__(self, file: SqliteFile) -> None:
        super().__init__(file)
        self._waiting: deque[Piece[Any]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    async def do(self, work: Work[T]) -> T:
        """Run `work` on the connection, inside a transaction; return when that is committed."""
        piece: Piece[T] = Piece(work, asyncio.get_running_loop().create_future())
        with self._wake:
            if self._closing:
                raise ArchiveAway("The archive was closed.")
            self._waiting.append(piece)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="archive writer", daemon=True)
                self._thread.start()
            self._wake.notify()
        return await piece.future

    async def close(self) -> None:
        """Finish what waits, then close the file."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # -- on the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            group: list[Piece[Any]] = []
            try:
                self._transact(group)
            except Exception as error:
                self._fail(group, error)
            _answer(group)
        self._drop()

    def _wait(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closing)
            return bool(self._waiting)

    def _transact(self, group: list[Piece[Any]]) -> None:
        db = self._connection()
        self._file.retry_while_locked(lambda: db.execute("BEGIN IMMEDIATE"))
        self._take(group, _PIECES)
        for piece in group:
            self._apply(db, piece)
        db.execute("COMMIT")

    def _apply(self, db: sqlite3.Connection, piece: Piece[Any]) -> None:
        db.execute("SAVEPOINT piece")
        try:
            piece.result = piece.work(db)
        except Exception as error:
            if not db.in_transaction:  # a full disk rolls everything back by itself
                raise
            piece.error = self._file.explained(error)
            db.execute("ROLLBACK TO piece")
        db.execute("RELEASE piece")

    def _take(self, group: list[Piece[Any]], most: int | None = None) -> None:
        with self._wake:
            while self._waiting and (most is None or len(group) < most):
                group.append(self._waiting.popleft())

    def _fail(self, group: list[Piece[Any]], error: Exception) -> None:
        """Nothing of the group was committed. What waits behind it would only wait as long for the same answer."""
        self._take(group)
        meaning = self._file.understood(error)
        for piece in group:
            piece.error = piece.error or meaning
        if self._db is not None and self._db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
        if not (isinstance(error, sqlite3.Error) and is_locked(error)):
            self._drop()


def _answer(group: list[Piece[Any]]) -> None:
    """One call into the loop for all: waking a loop costs more than answering."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Piece[Any]]] = {}
    for piece in group:
        by_loop.setdefault(piece.future.get_loop(), []).append(piece)
    for loop, pieces in by_loop.items():
        # A loop that was closed meanwhile needs no answer.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer_all, pieces)


def _answer_all(pieces: list[Piece[Any]]) -> None:
    for piece in pieces:
        piece.answer()
