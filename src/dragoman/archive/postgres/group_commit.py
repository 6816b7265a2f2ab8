"""Group commit: messages that are saved one by one share a transaction.

    save ─▶ waiting ─▶ what is free, in one transaction ─▶ answered
               ▲            │ its conversation is locked        ▲
               └────────────┤ (tried again, up to `timeout_s`)  │
                            └ no conversation yet ─▶ creating ──┘

- While a transaction runs, new messages wait for the next one and share its commit. None waits for others to come.
- The transaction does not wait for a conversation that another writer has locked, perhaps an instance that is paused.
  Only the messages of that conversation wait, and those that come after them (`Behind`).
- New conversations are created apart: two transactions that create the same one wait for each other, and that cannot be
  seen in advance.
- A message that can never be written does not fail the others: they are then written one by one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dragoman.archive.rows import pair
from dragoman.archive.types import ArchiveAway, BadRow, NewMessage, SaveOutcome


class Left(Enum):
    """Why a message was not written, although it can be."""

    LOCKED = "another writer has locked its conversation, or it comes after one that was left"
    NEW = "it has no conversation yet"


class Behind:
    """Whether a message must be written after one of these: it is in the same conversation, or of the same sender."""

    def __init__(self, rows: Iterable[NewMessage] = ()) -> None:
        self._pairs: set[tuple[int, int]] = set()
        self._senders: set[int] = set()
        for row in rows:
            self.add(row)

    def add(self, row: NewMessage) -> None:
        self._pairs.add(pair(row))
        self._senders.add(row.from_user)

    def __contains__(self, row: NewMessage) -> bool:
        return row.from_user in self._senders or pair(row) in self._pairs


OnBegin = Callable[[], None]
Save = Callable[[Sequence[NewMessage], OnBegin], Awaitable[Sequence[SaveOutcome | Left]]]

# Messages of one transaction: it locks conversations that others want to write to.
MAX_GROUP = 256
# Other writers lock a conversation for some milliseconds.
RETRY_S = 0.01


@dataclass(slots=True, eq=False)
class PendingSave:
    row: NewMessage
    outcome: asyncio.Future[SaveOutcome]
    on_begin: OnBegin | None = None
    locked_at: float | None = None

    def succeed(self, outcome: SaveOutcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def fail(self, error: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


class GroupCommit:
    def __init__(self, save_free: Save, save: Save, timeout_s: float) -> None:
        """`save_free` leaves what it would have to wait for; `save` leaves nothing."""
        self._save_free, self._save, self._timeout_s = save_free, save, timeout_s
        self._waiting: deque[PendingSave] = deque()
        self._creating_for: list[PendingSave] = []
        self._writing: asyncio.Task[None] | None = None
        self._creating: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # a message came, or a conversation was created

    async def save(self, row: NewMessage, on_begin: OnBegin | None = None) -> SaveOutcome:
        """Returns when it is committed. A caller that is cancelled does not know whether it was."""
        pending = PendingSave(row, asyncio.get_running_loop().create_future(), on_begin)
        self._waiting.append(pending)
        self._changed.set()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="archive-group-commit")
        return await pending.outcome

    async def close(self) -> None:
        """Messages that wait are still written."""
        while tasks := {task for task in (self._writing, self._creating) if task is not None and not task.done()}:
            await asyncio.wait(tasks)

    # -- what is free ----------------------------------------------------------------------------

    async def _write(self) -> None:
        left: list[PendingSave] = []
        try:
            while self._waiting:
                if len(self._waiting) == len(left):
                    await self._pause()
                self._changed.clear()
                # Messages that were left do not count: they may be left again and again.
                most = len(left) + MAX_GROUP
                taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
                left = self._not_timed_out(await self._turn(taken))
                self._waiting.extendleft(reversed(left))
        finally:
            self._writing = None

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RETRY_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _turn(self, taken: list[PendingSave]) -> list[PendingSave]:
        """Write what can be written; returns what has to be tried again, in its order."""
        lefts: dict[PendingSave, Left] = {}
        behind, group = Behind(pending.row for pending in self._creating_for), list[PendingSave]()
        for pending in taken:
            if pending.row in behind:
                behind.add(pending.row)
                lefts[pending] = Left.LOCKED
            else:
                group.append(pending)
        if group:
            lefts |= await self._written(group, self._save_free)
        self._create_for([pending for pending in group if lefts.get(pending) is Left.NEW])
        return [pending for pending in taken if lefts.get(pending) is Left.LOCKED]

    def _not_timed_out(self, left: list[PendingSave]) -> list[PendingSave]:
        now, staying = asyncio.get_running_loop().time(), []
        for pending in left:
            if pending.locked_at is None:
                pending.locked_at = now
            if now - pending.locked_at < self._timeout_s:
                staying.append(pending)
            else:
                pending.fail(ArchiveAway(f"Another writer has locked this conversation for {self._timeout_s:g} s."))
        return staying

    # -- new conversations -----------------------------------------------------------------------

    def _create_for(self, group: list[PendingSave]) -> None:
        self._creating_for += group
        if self._creating_for and self._creating is None:
            self._creating = asyncio.create_task(self._create(), name="archive-new-conversations")

    async def _create(self) -> None:
        try:
            while self._creating_for:
                group = self._creating_for[:MAX_GROUP]
                await self._written(group, self._save)
                del self._creating_for[: len(group)]
                self._changed.set()
        finally:
            self._creating = None

    # -- one transaction -------------------------------------------------------------------------

    async def _written(self, group: list[PendingSave], save: Save) -> dict[PendingSave, Left]:
        """Answer all but those that are left."""
        lefts: dict[PendingSave, Left] = {}

        def begin() -> None:
            for pending in group:
                if pending.on_begin is not None:
                    pending.on_begin()

        try:
            answers = await save([pending.row for pending in group], begin)
        except Exception as error:  # for the callers; the next group is written all the same
            if isinstance(error, BadRow) and len(group) > 1:
                return await self._each_alone(group, save)
            for pending in group:
                pending.fail(error)
        else:
            for pending, answer in zip(group, answers, strict=True):
                if isinstance(answer, Left):
                    lefts[pending] = answer
                else:
                    pending.succeed(answer)
        return lefts

    async def _each_alone(self, group: list[PendingSave], save: Save) -> dict[PendingSave, Left]:
        lefts, behind = dict[PendingSave, Left](), Behind()
        for pending in group:
            lefts |= {pending: Left.LOCKED} if pending.row in behind else await self._written([pending], save)
            if pending in lefts:
                behind.add(pending.row)
        return lefts
