"""Revokes tokens and principals for the whole cluster, and keeps this instance's copy of the list.

A change is written to Redis and announced, so that it takes effect everywhere at once. Each instance also asks for the
version of the list twice a second, in case it missed an announcement. While Redis is unavailable, nothing can be
revoked, and the copy stays in force. A Redis that has lost the latest changes gets them back from the copies.
"""

import asyncio
from collections.abc import Callable
from time import time

import structlog

from dragoman.domain.revocation import Revocation, RevocationList
from dragoman.protocol.peer import Announcement, RevocationChanged
from dragoman.services.loops import Tasks
from dragoman.services.routing.router import Announcer
from dragoman.store.revocations import Revocations

log = structlog.get_logger(__name__)

POLL_S = 0.5


class RevocationService:
    def __init__(self, copy: RevocationList, store: Revocations, announcer: Announcer, tasks: Tasks) -> None:
        self.copy, self._store, self._announcer, self._tasks = copy, store, announcer, tasks
        self._listeners: list[Callable[[], None]] = []
        self._reading = asyncio.Lock()
        announcer.subscribe(self._announced)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """`listener` is called after each change of the copy."""
        self._listeners.append(listener)

    async def run_once(self) -> None:
        async with self._reading:
            known = self.copy.version
            version, entries = await self._store.read(known)
            has_lost = version < known
            if has_lost:
                log.warning("Redis has lost revocations; they are written again", known=known, found=version)
                await self._restore()
                version, entries = await self._store.read(-1)
            # An announcement may have brought a later version meanwhile.
            if entries is not None and (has_lost or version > self.copy.version):
                self.copy.replace(version, entries)
                self._changed()

    async def revoke(self, name: str, until_ms: int, by: str) -> Revocation:
        """Raises RevocationsFull."""
        entry = Revocation(int(time() * 1000), by, until_ms)
        version = await self._store.revoke(name, entry)
        self._announcer.announce(RevocationChanged(version, name, True, entry.at_ms, by, until_ms))
        return entry

    async def allow(self, name: str) -> bool:
        """False: the name is not on the list."""
        version = await self._store.allow(name)
        if version is not None:
            self._announcer.announce(RevocationChanged(version, name, False))
        return version is not None

    async def _restore(self) -> None:
        for name, entry in self.copy.entries(time()):
            await self._store.revoke(name, entry)

    def _announced(self, message: Announcement) -> None:
        if not isinstance(message, RevocationChanged):
            return
        entry = Revocation(message.at_ms, message.by, message.until_ms) if message.revoked else None
        if self.copy.change(message.version, message.name, entry):
            self._changed()
        else:
            self._tasks.spawn(self.run_once(), "read-revocations")

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()
