"""Passwords: argon2 in a thread, one at a time, in a queue that addresses share fairly.

One at a time, so that a flood of logins does not take the cores from speech and chat. Clients of one address that fill
the queue delay those of another address by one hash.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from dragoman.domain.limits.fair_queue import FairQueue

# 19 MiB, two passes, one lane: tens of ms of one core.
_hasher = PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)
# Of an unknown password. An unknown name is checked against it, so that it takes as long as a known one.
UNKNOWN_USER_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$0BzwWF4PZzo3UUPC+mvIAQ$EcQ3B9rnR9pVGxloaYWxgvTMyRAZ/kKiXrHRidKv0go"
)

_T = TypeVar("_T")


class Overloaded(Exception):
    """Too many passwords wait to be checked."""


class Hashing:
    def __init__(self, max_waiting: int = 64) -> None:
        """`max_waiting` includes the one that runs."""
        self._queue: FairQueue[asyncio.Future[bool]] = FairQueue(max_waiting - 1)
        self._busy = False

    async def hash(self, address: str, password: str) -> str:
        """Raises Overloaded."""
        return await self._run(address, _hash, password)

    async def matches(self, address: str, hashed: str, password: str) -> bool:
        """Raises Overloaded."""
        return await self._run(address, _matches, hashed, password)

    async def _run(self, address: str, work: Callable[..., _T], *args: str) -> _T:
        if self._busy:
            await self._wait(address)
        self._busy = True
        try:
            return await asyncio.to_thread(work, *args)
        finally:
            self._next()

    async def _wait(self, address: str) -> None:
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        displaced = self._queue.push(address, turn)
        if displaced is not None:
            displaced.set_result(False)
        try:
            if not await turn:
                raise Overloaded
        except asyncio.CancelledError:
            self._queue.remove(address, turn)
            if turn.done() and not turn.cancelled() and turn.result():
                self._next()
            raise

    def _next(self) -> None:
        """Stays busy when it hands the turn on, so that a newcomer cannot take it."""
        turn = self._queue.pop()
        while turn is not None and turn.done():
            turn = self._queue.pop()
        if turn is None:
            self._busy = False
        else:
            turn.set_result(True)


def _hash(password: str) -> str:
    return _hasher.hash(password)


def _matches(hashed: str, password: str) -> bool:
    try:
        return _hasher.verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False
