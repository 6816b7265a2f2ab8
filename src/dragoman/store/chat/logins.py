"""Attempts to log in and invite codes, counted and kept for the whole cluster.

Two limits. One name from one address has so many attempts a minute. One name from all addresses together that never
logged in as this name has so many attempts an hour: it slows down guessing from many addresses, and cannot lock out an
address that the owner of the name has used before.

Keys hold digests: names, addresses and codes cannot be read in Redis.
"""

from enum import StrEnum
from secrets import token_urlsafe

from dragoman.store.attempts import Attempts, digest
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

WINDOW_MS = 60_000
NAME_WINDOW_MS = 3_600_000
REMEMBERED_MS = 90 * 86_400_000  # how long an address counts as one that the owner of a name uses
INVITE_BYTES = 16


class LoginVerdict(StrEnum):
    """Whether an attempt is allowed, or which limit refuses it."""

    OK = "ok"
    ADDRESS = "address"
    NAME = "name"


class Logins:
    def __init__(self, redis: Redis, keys: Keys, per_minute: int, per_name_per_hour: int) -> None:
        self.redis, self.keys = redis, keys
        self._by_address = Attempts(redis, per_minute, WINDOW_MS)
        self._by_name = Attempts(redis, per_name_per_hour, NAME_WINDOW_MS)

    async def take(self, address: str, name: str) -> LoginVerdict:
        """Raises StoreError."""
        pair, alone = digest(f"{address}\0{name}"), digest(name)
        if not await self._by_address.take(self.keys.login_tries(pair)):
            return LoginVerdict.ADDRESS
        if await self.redis.call("EXISTS", self.keys.login_address(pair)):
            return LoginVerdict.OK
        taken = await self._by_name.take(self.keys.logins_of(alone))
        return LoginVerdict.OK if taken else LoginVerdict.NAME

    async def succeeded(self, address: str, name: str) -> None:
        """From now on the limit of the name alone does not apply to this address; raises StoreError."""
        await self.redis.call("SET", self.keys.login_address(digest(f"{address}\0{name}")), 1, "PX", REMEMBERED_MS)


class Invites:
    """Codes that each create one account, until they expire. Every method raises StoreError."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys

    async def make(self, ttl_s: int) -> str:
        code = token_urlsafe(INVITE_BYTES)
        await self.restore(code, ttl_s * 1000)
        return code

    async def exists(self, code: str) -> bool:
        return bool(await self.redis.call("EXISTS", self.keys.invite(digest(code))))

    async def claim(self, code: str) -> int:
        """Spends it; the ms it had left, 0 if it is not there."""
        key = self.keys.invite(digest(code))
        left_ms = int(await self.redis.call("PTTL", key))
        return max(left_ms, 1) if await self.redis.call("DEL", key) else 0

    async def restore(self, code: str, ttl_ms: int) -> None:
        await self.redis.call("SET", self.keys.invite(digest(code)), 1, "PX", ttl_ms)
