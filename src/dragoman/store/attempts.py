"""Attempts that a key has within a time, counted for all instances together: logins, wrong codes of rooms.

The key in Redis holds when all its attempts are back, and expires then. So its TTL says how many are left. Keys hold
digests: names, addresses and codes cannot be read in Redis.

Logins have two limits. One name from one address has so many attempts a minute. One name from all addresses together
that never logged in as this name has so many attempts an hour: it slows down guessing from many addresses, and cannot
lock out an address that the owner of the name has used before.
"""

from enum import StrEnum
from hashlib import blake2b
from secrets import token_urlsafe

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

TAKE_ATTEMPT = Script.beside(__file__, "take_attempt")


class Attempts:
    def __init__(self, redis: Redis, attempts: int, window_ms: int) -> None:
        self._redis, self._window_ms, self._interval_ms = redis, window_ms, max(window_ms // attempts, 1)

    async def take(self, key: str) -> bool:
        """False: none is left, and none was taken. Raises StoreError."""
        reply = await TAKE_ATTEMPT(self._redis, full_at=key, interval=self._interval_ms, window=self._window_ms)
        return bool(reply == b"OK")

    async def has(self, key: str) -> bool:
        """Whether one is left. Raises StoreError."""
        return int(await self._redis.call("PTTL", key)) + self._interval_ms <= self._window_ms


def digest(text: str) -> str:
    """For keys that must not show names, addresses or codes."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


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


WRONG_CODES_PER_MINUTE = 10
MINUTE_MS, DAY_MS = 60_000, 86_400_000


class RoomAttempts:
    def __init__(self, redis: Redis, keys: Keys, persistent_per_day: int) -> None:
        """`persistent_per_day`: 0 is any number."""
        self.keys = keys
        self._wrong_codes = Attempts(redis, WRONG_CODES_PER_MINUTE, MINUTE_MS)
        self._persistent = Attempts(redis, persistent_per_day, DAY_MS) if persistent_per_day else None

    async def may_try_code(self, address: str) -> bool:
        return await self._wrong_codes.has(self.keys.room_code_tries(digest(address)))

    async def wrong_code(self, address: str) -> None:
        await self._wrong_codes.take(self.keys.room_code_tries(digest(address)))

    async def may_make_persistent(self, principal: str) -> bool:
        """Counts as one more room of this principal if it may."""
        key = self.keys.rooms_made_persistent(digest(principal))
        return self._persistent is None or await self._persistent.take(key)
