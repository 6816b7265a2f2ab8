"""Asks the archive what waits for a user, and of many who come at the same time for whom anything waits at all.

After a network was away thousands come in within seconds, and nothing waits for most of them. To look for each alone is
a trip to the database, and to the thread it is read on, which takes its turns with the loop: a third of what letting a
user in costs. So one is looked for at once, and who comes within the next few milliseconds is asked about with all the
others who did.
"""

import asyncio
from typing import Protocol

from dragoman.archive import Archive, Stored
from dragoman.services.loops import Tasks

GATHER_S = 0.005
_ANY_TIME_MS = 2**62


class Mail(Protocol):
    async def undelivered(self, user: int, after: int, limit: int) -> list[Stored]:
        """Rows for this user that it has not confirmed, lowest id first. Raises ArchiveError."""


class Mailroom:
    def __init__(self, archive: Archive, tasks: Tasks) -> None:
        self._archive, self._tasks = archive, tasks
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self._asking = False

    async def undelivered(self, user: int, after: int, limit: int) -> list[Stored]:
        if after or await self._anything_for(user):
            return await self._archive.undelivered(user, after, limit)
        return []

    def _anything_for(self, user: int) -> "asyncio.Future[bool]":
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((user, told))
        if not self._asking:
            self._asking = True
            self._tasks.spawn(self._ask(), "chat-mailroom")
        return told

    async def _ask(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._ask_for(waiting)
                await asyncio.sleep(GATHER_S)
        finally:
            self._asking = False

    async def _ask_for(self, waiting: "list[tuple[int, asyncio.Future[bool]]]") -> None:
        users = [user for user, _ in waiting]
        try:
            # Whoever is alone is better looked for than asked about.
            found = set(users) if len(users) == 1 else await self._archive.undelivered_users(users, _ANY_TIME_MS)
        except Exception as error:
            for _, told in waiting:
                if not told.done():
                    told.set_exception(error)
            return
        for user, told in waiting:
            if not told.done():
                told.set_result(user in found)
