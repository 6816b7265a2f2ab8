"""Messages that are saved one by one, written many at a time.

While a transaction runs, what comes waits for the next one and shares its commit; nobody waits for company. One that
can never be written must not cost the others their place: they are then written each alone.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dragoman.archive.errors import BadRow
from dragoman.archive.types import NewMessage, Outcome

Save = Callable[[Sequence[NewMessage]], Awaitable[list[Outcome]]]

# Beyond this many, the next transaction: they hold conversations that others want to write to.
MOST = 256


@dataclass(slots=True, eq=False)
class Asked:
    row: NewMessage
    answer: asyncio.Future[Outcome]


class Together:
    def __init__(self, save: Save) -> None:
        self._save = save
        self._waiting: deque[Asked] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def save(self, row: NewMessage) -> Outcome:
        """Returns when it is committed. Who leaves early does not know whether it was."""
        asked = Asked(row, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="archive-together")
        return await asked.answer

    async def close(self) -> None:
        """What waits is still written."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write(self) -> None:
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
                if not await self._written(group):
                    for asked in group:
                        await self._written([asked])
        finally:
            self._writing = None

    async def _written(self, group: list[Asked]) -> bool:
        """False: one of several cannot be written, and nothing was."""
        try:
            outcomes = await self._save([asked.row for asked in group])
        except Exception as error:  # whoever asked deals with it; the next group is written all the same
            if isinstance(error, BadRow) and len(group) > 1:
                return False
            _refuse(group, error)
        else:
            for asked, outcome in zip(group, outcomes, strict=True):
                if not asked.answer.done():
                    asked.answer.set_result(outcome)
        return True


def _refuse(group: list[Asked], error: Exception) -> None:
    for asked in group:
        if not asked.answer.done():
            asked.answer.set_exception(error)
