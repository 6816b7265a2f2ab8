"""An instance whose database takes 50 ms longer to commit: one far away, or on a disk that is not fast.

SQLite holds its lock meanwhile, PostgreSQL its transaction, as they would if the commit itself took that long.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

COMMIT_MS = 50


def slow_sqlite() -> None:
    from dragoman.archive.sqlite import threads

    take = threads.Writer._take

    def slowed(self: Any, group: list[Any], most: int | None = None) -> None:
        take(self, group, most)
        if most is not None:  # a transaction, not a failure of one
            time.sleep(COMMIT_MS / 1e3)

    threads.Writer._take = slowed  # type: ignore[method-assign]


def slow_postgres() -> None:
    from dragoman.archive.postgres import server

    transacted = server._transacted

    async def slowed(db: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def then_wait(db: Any) -> Any:
            result = await work(db)
            await db.execute(f"SELECT pg_sleep({COMMIT_MS / 1e3})")
            return result

        return await transacted(db, then_wait)

    server._transacted = slowed


if __name__ == "__main__":
    from dragoman.instance.__main__ import main

    slow_sqlite()
    slow_postgres()
    main()
