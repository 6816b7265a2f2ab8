"""One SQLite file: opening it, bringing its tables up to date, and the meaning of its errors.

WAL, so that readers never wait for the writer; `synchronous=FULL`, so that what was committed survives a power cut.
A connection is closed and opened anew after every error but those of a single row or a lock: a file that was on a full
disk, read-only or gone may be whole again.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TypeVar

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
