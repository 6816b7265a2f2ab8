"""Removes messages: those older than `chat.retention_days`, and what one user has written, with the account.

The instance that has shard 0 deletes old messages, in batches. Between two batches it waits nine times as long as the
last one took, so that the database has at most a tenth of its time for this, whatever it is.

An erasure goes in this order:

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

import structlog

from dragoman.archive import Archive, ArchiveError, Removed
from dragoman.domain.chat.message_ids import first_id_of
from dragoman.services.chat.inbound import now_ms
from dragoman.services.metrics import Metrics
from dragoman.services.operations import NotThere
from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.chat.shards import Shards
from dragoman.store.chat.users import Users

log = structlog.get_logger(__name__)

RETENTION_S = 60.0
EXPIRE_BATCH = 50
REST = 9
DAY_MS = 86_400_000


class Retention:
    def __init__(self, archive: Archive, is_ours: Callable[[], bool], metrics: Metrics, days: float) -> None:
        self._archive, self._is_ours, self._metrics = archive, is_ours, metrics
        self._age_ms = int(days * DAY_MS)

    async def run_once(self) -> None:
        """Until nothing is too old, or another instance does it."""
        if not self._age_ms:
            return
        before_ms = now_ms() - self._age_ms
        deleted = undelivered = 0
        while self._is_ours():
            began = monotonic()
            try:
                removed = await self._archive.expire(first_id_of(before_ms), before_ms, EXPIRE_BATCH)
            except ArchiveError as error:
                log.warning("old messages are not deleted", error=str(error), limited=True)
                break
            self._metrics.chat_expired.inc(removed.messages)
            self._metrics.chat_expired_undelivered.inc(removed.undelivered)
            deleted, undelivered = deleted + removed.messages, undelivered + removed.undelivered
            if removed.messages < EXPIRE_BATCH:
                break
            await asyncio.sleep(REST * (monotonic() - began))
        if deleted:
            log.info("old messages were deleted", messages=deleted, undelivered=undelivered)


# -- erasure ---------------------------------------------------------------------------------------


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
