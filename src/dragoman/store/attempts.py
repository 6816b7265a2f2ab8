"""Attempts that a key has within a time, counted for all instances together: logins, wrong codes of rooms.

The key in Redis holds when all its attempts are back, and expires then. So its TTL says how many are left.
"""

from hashlib import blake2b

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
