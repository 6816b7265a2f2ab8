"""Erases what a chat user has written, and the account.

    end all sessions ─▶ remove the account ─▶ disconnect ─▶ wait until nothing of it is on its way to the database
        ─▶ tombstones, translations ─▶ claims, dead letters, notices in Redis

Messages that were accepted are rows soon, so the streams need not be changed: the erasure goes on until a look finds
nothing on its way and nothing that is not erased, twice. It may be repeated, and is to be repeated if it is not `done`:
the database may be unavailable for longer than an operator waits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from dragoman.archive import Archive, Removed
from dragoman.services.operations import NotThere
from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.chat.shards import Shards
from dragoman.store.chat.users import Users

BATCH = 200
WORK_S = 5.0  # of one call; the command repeats it
POLL_S = 0.25
QUIET_LOOKS = 2


@dataclass(frozen=True, slots=True)
class Erased:
    """What one call removed."""

    account: bool
    messages: int
    undelivered: int
    translations: int
    claims: int
    dead_letters: int
    notices: int
    done: bool


class Erasure:
    def __init__(
        self,
        archive: Archive,
        users: Users,
        shards: Shards,
        dead_letters: ChatDeadLetters,
        disconnect: Callable[[int], Awaitable[None]],
        *,
        work_s: float = WORK_S,
    ) -> None:
        self._archive, self._users, self._shards, self._dead_letters = archive, users, shards, dead_letters
        self._disconnect, self._work_s = disconnect, work_s

    async def erase(self, user: int) -> Erased:
        """Raises StoreError and ArchiveError; what was erased stays erased."""
        until = monotonic() + self._work_s
        await self._users.end_all_sessions(user)
        account = await self._archive.remove_user(user)
        await self._users.end_all_sessions(user)  # for a login in between
        removed, claims, quiet = Removed(), 0, 0
        while quiet < QUIET_LOOKS:
            busy = await self._is_busy(user)
            found, complete = await self._erase_rows(user, until)
            claims += await self._shards.drop_claims(user, found.keys)
            removed += found
            quiet = 0 if busy or found.messages or not complete else quiet + 1
            if monotonic() >= until:
                break
            if quiet < QUIET_LOOKS:
                await asyncio.sleep(POLL_S)
        letters, letter_keys = await self._dead_letters.erase(user)
        claims += await self._shards.drop_claims(user, letter_keys)
        notices = await self._users.drop_all_notices(user)
        return Erased(
            account, removed.messages, removed.undelivered, removed.translations, claims, letters, notices,
            quiet >= QUIET_LOOKS,
        )  # fmt: skip

    async def _is_busy(self, user: int) -> bool:
        """Whether it is connected, or a message of it is on its way to the database."""
        (owner,) = await self._users.owners([user])
        if owner:
            with suppress(NotThere):
                await self._disconnect(user)
        return bool(owner) or await self._shards.unsaved(user) > 0 or await self._shards.has_entries(user)

    async def _erase_rows(self, user: int, until: float) -> tuple[Removed, bool]:
        """Those of one look; False: there was no time for all of them."""
        total, after = Removed(), ""
        while True:
            found = await self._archive.erase(user, after, BATCH)
            total += found
            if found.messages < BATCH:
                return total, True
            after = found.keys[-1]
            if monotonic() >= until:
                return total, False
