"""The way to a PostgreSQL: a pool of connections that are made when they are needed, and lost without harm.

- Every call has a time limit; a connection that exceeds it is cut, not asked to stop: a server that hangs would not
  hear it. What it was doing may still be committed.
- The first call brings the tables up to date, under a lock that all instances share.
- The server ends what we leave behind: a transaction of an instance that was frozen would block all others.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]

from dragoman.archive import schema
from dragoman.archive.schema import Mark
from dragoman.archive.types import ArchiveAway, ArchiveError, BadRow, Migration

T = TypeVar("T")


class Connection(Protocol):
    """What we use of a connection of asyncpg, which brings no types."""

    async def execute(self, sql: str, *values: Any) -> str: ...
    async def fetch(self, sql: str, *values: Any) -> list[Any]: ...
    async def fetchval(self, sql: str, *values: Any) -> Any: ...
    def terminate(self) -> None: ...


Work = Callable[[Connection], Awaitable[T]]
OnBegin = Callable[[], None]

_ATTEMPTS = 5
_APPLY_S = 600.0
# Any number will do, if it is always the same.
_MIGRATION_LOCK = 0x647261676F6D616E
LOCK_TIMEOUT_S = 5
SETTINGS = {
    "application_name": "dragoman",
    "lock_timeout": f"{LOCK_TIMEOUT_S}s",
    "idle_in_transaction_session_timeout": "15s",
    # Every statement here goes by an index, row by row. Left to its guesses about tables that were empty a moment ago,
    # the planner reads the whole of them, and stays with that.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "jit": "off",
}
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.UniqueViolationError)
_BAD = (
    asyncpg.DataError,
    asyncpg.exceptions.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    OverflowError,
    UnicodeError,
)


class PostgresServer:
    def __init__(self, url: str, *, pool: int, timeout_s: float) -> None:
        self._url = url
        self._size = pool
        self._timeout_s = timeout_s
        self._pool: asyncpg.Pool | None = None
        self._ready = False
        self._making = asyncio.Lock()
        self._closed = False

    async def read(self, work: Work[T]) -> T:
        with self._explained():
            return await self._once(work)

    async def write(self, work: Work[T], on_begin: OnBegin | None = None) -> T:
        """Run `work` in a transaction, again if it conflicted with another one.

        `on_begin` is called whenever a connection of the pool is assigned to it.
        """
        with self._explained():
            for left in reversed(range(_ATTEMPTS)):
                try:
                    return await self._once(lambda db: _transacted(db, work), on_begin)
                except _AGAIN:
                    if not left:
                        raise
        raise AssertionError("unreachable")

    async def migrate(self) -> list[str]:
        with self._explained():
            return await self._migrate()

    async def migrations(self) -> list[Migration]:
        with self._explained():
            async with self._alone(self._timeout_s) as db:
                return schema.overview(schema.scripts("postgres"), await _read_marks(db))

    async def close(self) -> None:
        self._closed = True
        if self._pool is not None:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._pool.close()
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._pool.terminate()

    # -- connections -----------------------------------------------------------------------------

    async def _once(self, work: Work[T], on_begin: OnBegin | None = None) -> T:
        pool = await self._connected()
        async with asyncio.timeout(self._timeout_s):
            db = await pool.acquire()
        if on_begin is not None:
            on_begin()
        limit = asyncio.get_running_loop().call_later(self._timeout_s, db.terminate)
        try:
            return await work(db)
        except (asyncpg.PostgresError, ArchiveError):
            raise
        except BaseException:
            # A caller that was cancelled leaves the connection in an unknown state.
            db.terminate()
            raise
        finally:
            limit.cancel()
            await pool.release(db)

    async def _connected(self) -> asyncpg.Pool:
        if self._pool is not None and self._ready:
            return self._pool
        async with self._making:
            if self._closed:
                raise ArchiveAway("The archive was closed.")
            if not self._ready:
                await self._migrate()
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._size,
                    timeout=self._timeout_s,
                    server_settings=SETTINGS,
                    reset=_leave_as_is,
                )
            return self._pool

    @contextlib.asynccontextmanager
    async def _alone(self, limit_s: float) -> AsyncIterator[Connection]:
        """A connection outside the pool, closed after `limit_s`."""
        db = await asyncpg.connect(self._url, timeout=self._timeout_s, server_settings=SETTINGS)
        limit = asyncio.get_running_loop().call_later(limit_s, db.terminate)
        try:
            yield db
        finally:
            limit.cancel()
            db.terminate()

    async def _migrate(self) -> list[str]:
        known = schema.scripts("postgres")
        async with self._alone(self._timeout_s) as db:
            waiting = schema.pending(known, await _read_marks(db))
        applied = []
        if waiting:
            async with self._alone(_APPLY_S) as db:
                applied = await _transacted(db, _apply)
        self._ready = True
        return applied

    # -- errors ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ArchiveError:
            raise
        except _BAD as error:
            raise BadRow(f"PostgreSQL cannot hold this: {_sentence(error)}.") from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            if isinstance(error, asyncpg.UndefinedTableError):
                self._ready = False
            raise ArchiveAway(f"PostgreSQL at {self._place()} cannot be used: {_sentence(error)}.") from error

    def _place(self) -> str:
        """Without user and password."""
        parts = urlsplit(self._url)
        return f"{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}"


async def _transacted(db: Connection, work: Work[T]) -> T:
    await db.execute("BEGIN")
    try:
        result = await work(db)
    except (asyncpg.PostgresError, ArchiveError):
        await db.execute("ROLLBACK")
        raise
    await db.execute("COMMIT")
    return result


async def _apply(db: Connection) -> list[str]:
    await db.execute("SET LOCAL lock_timeout = 0")
    await db.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
    await db.execute(schema.CREATE_TABLE)
    waiting = schema.pending(schema.scripts("postgres"), await _read_marks(db))
    for script in waiting:
        await db.execute(script.sql)
        now_ms = int(time.time() * 1000)
        await db.execute(f"INSERT INTO {schema.TABLE} VALUES ($1, $2, $3)", script.name, script.checksum, now_ms)
    return [script.name for script in waiting]


async def _read_marks(db: Connection) -> dict[str, Mark]:
    if await db.fetchval("SELECT to_regclass($1)", schema.TABLE) is None:
        return {}
    return {row["name"]: Mark(row["checksum"], row["applied_ms"]) for row in await db.fetch(schema.READ_TABLE)}


async def _leave_as_is(db: Connection) -> None:
    """A connection goes back as it is: nothing here changes a session, and asking costs a round trip."""


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text or ("it took too long" if isinstance(error, TimeoutError) else type(error).__name__)
