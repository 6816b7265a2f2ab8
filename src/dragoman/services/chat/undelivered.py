"""Undelivered messages: looked up for users that connect, and resent to connected users that do not acknowledge."""

import asyncio
from contextlib import suppress
from time import monotonic

from dragoman.archive import Archive, ArchiveError, Stored
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.local_users import ChatUser, LocalUsers
from dragoman.services.chat.receipts import Receipts
from dragoman.services.loops import Tasks
from dragoman.store.errors import StoreError

GATHER_S = 0.005
PAGES = 1  # of unacknowledged messages at a time: a silent receiver is not flooded
_ANY_TIME_MS = 2**62


class UndeliveredLookup:
    """Asks the archive what a user has not acknowledged, for many users at once whether there is anything at all.

    After a network failure thousands connect within seconds, and most have nothing undelivered. A look-up for each is a
    query and a change of threads: a third of what an AUTH costs. So the first user is looked up at once, and those that
    come within the next few milliseconds share one query.
    """

    def __init__(self, archive: Archive, tasks: Tasks) -> None:
        self._archive, self._tasks = archive, tasks
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self._running = False

    async def undelivered(self, user: int, after: int, limit: int) -> list[Stored]:
        if after or await self._has_any(user):
            return await self._archive.undelivered(user, after, limit)
        return []

    def _has_any(self, user: int) -> "asyncio.Future[bool]":
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((user, answer))
        if not self._running:
            self._running = True
            self._tasks.spawn(self._run(), "chat-undelivered")
        return answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._answer(waiting)
                await asyncio.sleep(GATHER_S)
        finally:
            self._running = False

    async def _answer(self, waiting: "list[tuple[int, asyncio.Future[bool]]]") -> None:
        users = [user for user, _ in waiting]
        try:
            # For one user, its rows are read without asking first.
            found = set(users) if len(users) == 1 else await self._archive.undelivered_users(users, _ANY_TIME_MS)
        except Exception as error:
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        for user, answer in waiting:
            if not answer.done():
                answer.set_result(user in found)


class Resender:
    """Resends what connected receivers have not acknowledged: after `after_s`, then with growing pauses.

    The archive is asked once for all of them, so that what was never pushed is sent as well.
    """

    def __init__(self, users: LocalUsers, archive: Archive, receipts: Receipts, tasks: Tasks, after_s: float) -> None:
        self._users, self._archive, self._receipts, self._tasks = users, archive, receipts, tasks
        self._after_s = after_s

    async def run_once(self) -> None:
        now = monotonic()
        due = {user.id: user for user in self._users if user.inbound.is_resend_due(now, self._after_s)}
        if not due:
            return
        try:
            silent = await self._archive.undelivered_users(list(due), now_ms() - int(self._after_s * 1000))
        except ArchiveError:
            return
        for id, user in due.items():
            if id in silent:
                user.inbound.back_off(self._after_s)
                self._tasks.spawn(self._resend(user), "chat-resend")
            else:
                user.inbound.reset_back_off()

    async def _resend(self, user: ChatUser) -> None:
        with suppress(StoreError):
            await self._receipts.apply_early(user.id)  # it may have sent them to an instance that died
        await user.inbound.resend(again=True, pages=PAGES)
