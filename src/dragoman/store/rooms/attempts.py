"""What strangers try with rooms, counted for all instances together. Every method raises StoreError."""

from dragoman.store.attempts import Attempts, digest
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

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
