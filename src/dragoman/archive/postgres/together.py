"""Messages that are saved one by one, written many at a time.

    asked ─▶ waiting ─▶ what is free, in one transaction ─▶ answered
                ▲            │ held by another writer            ▲
                └────────────┤ (tried again, up to `patience_s`) │
                             └ no conversation yet ─▶ apart ─────┘

- While a transaction runs, what comes waits for the next one and shares its commit; nobody waits for company.
- Nobody waits for a conversation that somebody else holds, perhaps an instance that stands still in the middle: not
  the transaction, only what belongs into that conversation, and what has its place behind it (`order`).
- New conversations are made apart: two that make the same one wait for each other, and that cannot be seen before.
- One that can never be written must not cost the others their place: they are then written each alone.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dragoman.archive.errors import ArchiveAway, BadRow
from dragoman.archive.postgres.order import Behind, Left
from dragoman.archive.types import NewMessage, Outcome

Save = Callable[[Sequence[NewMessage]], Awaitable[Sequence[Outcome | Left]]]

# Beyond this many, the next transaction: they hold conversations that others want to write to.
MOST = 256
# Other writers have a conversation for some milliseconds.
AGAIN_S = 0.01


@dataclass(slots=True, eq=False)
class Asked:
    row: NewMessage
    answer: asyncio.Future[Outcome]
    on_begin: Callable[[], None] | None = None
    held_at: float | None = None

    def settle(self, outcome: Outcome) -> None:
        if not self.answer.done():
            self.answer.set_result(outcome)

    def refuse(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Together:
    def __init__(self, save_free: Save, save: Save, patience_s: float) -> None:
        """`save_free` leaves what it would have to wait for, `save` leaves nothing."""
        self._save_free, self._save, self._patience_s = save_free, save, patience_s
        self._waiting: deque[Asked] = deque()
        self._apart: list[Asked] = []
        self._writing: asyncio.Task[None] | None = None
        self._making: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # something came, or what others are behind is done

    async def save(self, row: NewMessage, on_begin: Callable[[], None] | None = None) -> Outcome:
        """Returns when it is committed. Who leaves early does not know whether it was."""
        asked = Asked(row, asyncio.get_running_loop().create_future(), on_begin)
        self._waiting.append(asked)
        self._changed.set()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="archive-together")
        return await asked.answer

    async def close(self) -> None:
        """What waits is still written."""
        while tasks := {task for task in (self._writing, self._making) if task is not None and not task.done()}:
            await asyncio.wait(tasks)

    # -- what is free ----------------------------------------------------------------------------

    async def _write(self) -> None:
        left: list[Asked] = []
        try:
            while self._waiting:
                if len(self._waiting) == len(left):
                    await self._pause()
                self._changed.clear()
                # What was left takes nobody's place: it may be left again and again.
                most = len(left) + MOST
                taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
                left = self._patient(await self._turn(taken))
                self._waiting.extendleft(reversed(left))
        finally:
            self._writing = None

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(AGAIN_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _turn(self, taken: list[Asked]) -> list[Asked]:
        """Write what can be written; answers what has to be tried again, in its order."""
        lefts: dict[Asked, Left] = {}
        behind, group = Behind(asked.row for asked in self._apart), list[Asked]()
        for asked in taken:
            if asked.row in behind:
                behind.add(asked.row)
                lefts[asked] = Left.HELD
            else:
                group.append(asked)
        if group:
            lefts |= await self._written(group, self._save_free)
        self._set_apart([asked for asked in group if lefts.get(asked) is Left.NEW])
        return [asked for asked in taken if lefts.get(asked) is Left.HELD]

    def _patient(self, left: list[Asked]) -> list[Asked]:
        now, staying = asyncio.get_running_loop().time(), []
        for asked in left:
            if asked.held_at is None:
                asked.held_at = now
            if now - asked.held_at < self._patience_s:
                staying.append(asked)
            else:
                asked.refuse(ArchiveAway(f"For {self._patience_s:g} s another writer has had this conversation."))
        return staying

    # -- new conversations -----------------------------------------------------------------------

    def _set_apart(self, group: list[Asked]) -> None:
        self._apart += group
        if self._apart and self._making is None:
            self._making = asyncio.create_task(self._make(), name="archive-new-conversations")

    async def _make(self) -> None:
        try:
            while self._apart:
                group = self._apart[:MOST]
                await self._written(group, self._save)
                del self._apart[: len(group)]
                self._changed.set()
        finally:
            self._making = None

    # -- one transaction -------------------------------------------------------------------------

    async def _written(self, group: list[Asked], save: Save) -> dict[Asked, Left]:
        """Answer them all, but for what is left."""
        lefts: dict[Asked, Left] = {}
        for asked in group:
            if asked.on_begin is not None:
                asked.on_begin()
        try:
            answers = await save([asked.row for asked in group])
        except Exception as error:  # whoever asked deals with it; the next group is written all the same
            if isinstance(error, BadRow) and len(group) > 1:
                return await self._each_alone(group, save)
            for asked in group:
                asked.refuse(error)
        else:
            for asked, answer in zip(group, answers, strict=True):
                if isinstance(answer, Left):
                    lefts[asked] = answer
                else:
                    asked.settle(answer)
        return lefts

    async def _each_alone(self, group: list[Asked], save: Save) -> dict[Asked, Left]:
        lefts, behind = dict[Asked, Left](), Behind()
        for asked in group:
            lefts |= {asked: Left.HELD} if asked.row in behind else await self._written([asked], save)
            if asked in lefts:
                behind.add(asked.row)
        return lefts
