"""Sends again what online receivers have not confirmed: after a while, then with growing pauses.

The archive is the truth: it is asked once for everybody connected here, so that also what was never pushed goes out.
"""

from contextlib import suppress
from time import monotonic

from dragoman.archive import Archive, ArchiveError
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.user import ChatUser
from dragoman.services.loops import Tasks
from dragoman.store.errors import StoreError

LONGEST_S = 300.0
PAGES = 1  # of unconfirmed messages at a time: who does not answer is not buried in them


class Resender:
    def __init__(self, users: LocalUsers, archive: Archive, receipts: Receipts, tasks: Tasks, after_s: float) -> None:
        self._users, self._archive, self._receipts, self._tasks = users, archive, receipts, tasks
        self._after_s = after_s
        users.on_catch_up = self.catch_up

    async def run_once(self) -> None:
        now = monotonic()
        due = {user.id: user for user in self._users if self._due(user, now)}
        if not due:
            return
        try:
            silent = await self._archive.undelivered_users(list(due), now_ms() - int(self._after_s * 1000))
        except ArchiveError:
            return
        for id, user in due.items():
            if id in silent:
                user.resend_pause_s = min(2 * self._pause_s(user), LONGEST_S)
                self._tasks.spawn(self._send_again(user), "chat-resend")
            else:
                user.resend_pause_s = 0.0

    async def _send_again(self, user: ChatUser) -> None:
        with suppress(StoreError):
            await self._receipts.apply_early(user.id)  # it may have confirmed them to an instance that died
        await user.inbound.catch_up(again=True, pages=PAGES)

    def _due(self, user: ChatUser, now: float) -> bool:
        inbound = user.inbound
        return not inbound.catching_up and now >= inbound.caught_up_at + self._pause_s(user)

    def _pause_s(self, user: ChatUser) -> float:
        """Since it was last sent everything. Who answers is not made to wait for what it misses later."""
        answers = user.confirmed_at > user.inbound.caught_up_at
        return self._after_s if answers else max(user.resend_pause_s, self._after_s)

    def catch_up(self, user: ChatUser) -> None:
        """It missed something: send what it has not been sent."""
        user.inbound.hold()  # at once: what is pushed next is newer
        self._tasks.spawn(user.inbound.begin(), "chat-catch-up")
