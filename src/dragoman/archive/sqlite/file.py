"""One SQLite file: opening it, bringing its tables up to date, and the meaning of its errors.

WAL, so that readers never wait for the writer; `synchronous=FULL`, so that what was committed survives a power cut.
A connection is closed and opened anew after every error but those of a single row or a lock: a file that was on a full
disk, read-only or gone may be whole again.

Two threads of this process use the file, each with a connection of its own: one reads, one writes. The writer puts
everything that waits when it gets the lock into one transaction, so that it shares the commit and the wait for the
disk. Each piece has a SAVEPOINT: one that fails, fails alone. No caller is answered before the commit.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from dragoman.archive import schema
from dragoman.archive.schema import Mark
from dragoman.archive.types import ArchiveAway, ArchiveError, BadRow, Migration

T = TypeVar("T")

# Short, because a writer asks again until `busy_ms`: SQLite's own pauses grow to 100 ms.
_POLL_MS = 8
_SETTINGS = (
    "synchronous = FULL",
    # The upper part of every index stays in memory, and the log is folded in every 16 MB: a quarter less work a row.
    "cache_size = -32768",
    "wal_autocheckpoint = 4000",
)
_LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED")

_making = Lock()


class SqliteFile:
    def __init__(self, path: Path, *, busy_ms: int) -> None:
        self.path = path
        self.busy_ms = busy_ms

    def connect(self) -> sqlite3.Connection:
        """Open the file, made if need be, with tables that are up to date."""
        self._make()
        db = self._open(f"file:{self._quoted()}?mode=rw")
        try:
            self.retry_while_locked(lambda: _use_wal(db))
            for setting in _SETTINGS:
                db.execute(f"PRAGMA {setting}")
            self.migrate(db)
        except BaseException:
            db.close()
            raise
        return db

    def look(self) -> list[Migration]:
        """What we know and what is in the file, which is neither made nor changed."""
        known = schema.scripts("sqlite")
        if not self.path.exists():
            return schema.overview(known, {})
        db = self._open(f"file:{self._quoted()}?mode=ro")
        try:
            return schema.overview(known, read_marks(db))
        finally:
            db.close()

    def inode(self) -> int:
        """Which file the path leads to now; 0 for none."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return 0

    def migrate(self, db: sqlite3.Connection) -> list[str]:
        """The names of what was applied now. Nothing is locked when nothing is to be done."""
        known = schema.scripts("sqlite")
        if not schema.pending(known, read_marks(db)):
            return []
        self.retry_while_locked(lambda: db.execute("BEGIN EXCLUSIVE"))
        try:
            db.execute(schema.CREATE_TABLE)
            waiting = schema.pending(known, read_marks(db))
            for script in waiting:
                _run(db, script.sql)
                now_ms = int(time.time() * 1000)
                db.execute(f"INSERT INTO {schema.TABLE} VALUES (?, ?, ?)", (script.name, script.checksum, now_ms))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return [script.name for script in waiting]

    def retry_while_locked(self, step: Callable[[], T]) -> T:
        """Repeat a step while another process holds the lock, up to `busy_ms`."""
        until = time.monotonic() + self.busy_ms / 1000
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                if not is_locked(error) or time.monotonic() >= until:
                    raise

    def explained(self, error: Exception) -> Exception:
        """`understood` for what concerns the database or its data; anything else is a bug, and stays what it is."""
        known = ArchiveError | sqlite3.Error | OverflowError | UnicodeError | OSError
        return self.understood(error) if isinstance(error, known) else error

    def understood(self, error: Exception) -> ArchiveError:
        """What an error of SQLite, or of the file system below it, means to callers."""
        if isinstance(error, ArchiveError):
            return error
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError | UnicodeError):
            return BadRow(f"SQLite cannot hold this: {_sentence(error)}.")
        if isinstance(error, sqlite3.Error) and is_locked(error):
            return ArchiveAway(f"{self.path} was locked by another process for {self.busy_ms} ms.")
        return ArchiveAway(f"{self.path} cannot be used: {_sentence(error)}.")

    def _make(self) -> None:
        # Readable by its owner alone: it holds messages.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Never opened once it is there: closing a file gives up all locks this process has on it, those of SQLite's own
        # connections too. The next process to leave would then take itself for the last and remove the log in use.
        with _making:
            try:
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                pass

    def _quoted(self) -> str:
        return str(self.path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")

    def _open(self, uri: str) -> sqlite3.Connection:
        db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256)
        db.execute(f"PRAGMA busy_timeout = {_POLL_MS}")
        return db


def is_locked(error: sqlite3.Error) -> bool:
    name = getattr(error, "sqlite_errorname", None) or ""
    return name.startswith(_LOCKED)


def _sentence(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).rstrip(".")


def read_marks(db: sqlite3.Connection) -> dict[str, Mark]:
    there = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (schema.TABLE,)).fetchone()
    if there is None:
        return {}
    return {name: Mark(checksum, applied_ms) for name, checksum, applied_ms in db.execute(schema.READ_TABLE)}


def _use_wal(db: sqlite3.Connection) -> None:
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise OSError(f"its file system allows no write-ahead log (journal mode {mode})")


def _run(db: sqlite3.Connection, sql: str) -> None:
    """Statement by statement, each ending its line: `executescript` would commit what is open first."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            db.execute(statement)
            statement = ""
    if statement.strip():
        db.execute(statement)


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
