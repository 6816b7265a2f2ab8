"""Instances that differ in one thing: `python -m dragoman.tools.bench.instance_variants slowed|stamped`.

slowed   its database takes 50 ms longer to commit, as one far away or on a slow disk. SQLite holds its lock and
         PostgreSQL its transaction meanwhile, as they would if the commit itself took that long.
stamped  its turn ids are times: each is the moment at which the first utterance of the turn was cut, on the clock
         of this machine. A `job_assign` carries the turn id, so a node on this machine knows how long the job took
         to arrive, and nothing is added to the measured path.
"""

import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

COMMIT_MS = 50
SLOWED = ("dragoman.tools.bench.instance_variants", "slowed")
STAMPED = ("dragoman.tools.bench.instance_variants", "stamped")


def slow_sqlite() -> None:
    from dragoman.archive.sqlite import file

    take = file.Writer._take

    def slowed(self: Any, group: list[Any], most: int | None = None) -> None:
        take(self, group, most)
        if most is not None:  # a transaction, not a failure of one
            time.sleep(COMMIT_MS / 1e3)

    file.Writer._take = slowed  # type: ignore[method-assign]


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


def stamp_turns() -> None:
    from dragoman.protocol import ids

    ids.turn_id = lambda: str(time.monotonic_ns())


if __name__ == "__main__":
    from dragoman.instance.__main__ import main

    if sys.argv[1] == "slowed":
        slow_sqlite()
        slow_postgres()
    else:
        stamp_turns()
    main()
