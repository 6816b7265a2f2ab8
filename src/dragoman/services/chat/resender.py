"""Sends again what online receivers have not confirmed: after a while, then with growing pauses.

The archive is the truth: it is asked once for everybody connected here, so that also what was never pushed goes out.
"""

from time import monotonic

from dragoman.archive import Archive, ArchiveError
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.user import ChatUser
from dragoman.services.loops import Tasks

LONGEST_S = 300.0
PAGES = 1  # of unconfirmed messages at a time: who does not answer is not buried in them


class Resender:
    def __init__(self, users: LocalUsers, archive: Archive, tasks: Tasks, after_s: float) -> None:
        self._users, self._archive, self._tasks, self._after_s = users, archive, tasks, after_s
        users.on_catch_up = self.catch_up

    async def run_once(self) -> None:
        now = monotonic()
        due = {user.id: user for user in self._users if user.resend_at <= now and not user.inbound.catching_up}
        if not due:
            return
        try:
            silent = await self._archive.undelivered_users(list(due), now_ms() - int(self._after_s * 1000))
        except ArchiveError:
            return
        for id, user in due.items():
            if id in silent:
                # The first time soon, then each time twice as late.
                user.resend_pause_s = min(max(user.resend_pause_s * 2, self._after_s), LONGEST_S)
                user.resend_at = now + user.resend_pause_s
                self._tasks.spawn(user.inbound.catch_up(again=True, pages=PAGES), "chat-resend")
            else:
                user.resend_pause_s = 0.0

    def catch_up(self, user: ChatUser) -> None:
        """It missed something: send what it has not been sent."""
        self._tasks.spawn(user.inbound.catch_up(), "chat-catch-up")
