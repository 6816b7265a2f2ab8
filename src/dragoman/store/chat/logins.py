"""Tries to log in, counted for the whole cluster: who is told to wait by one instance is told so by all of them."""

from hashlib import blake2b

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

LOGIN_TRY = Script.beside(__file__, "login_try")

WINDOW_MS = 60_000


class Logins:
    def __init__(self, redis: Redis, keys: Keys, per_minute: int) -> None:
        self.redis, self.keys, self._interval_ms = redis, keys, max(WINDOW_MS // per_minute, 1)

    async def take(self, address: str, name: str) -> bool:
        """Whether this name may try now from this address; raises StoreError."""
        # A digest: whose name somebody tries is nobody's business, and it may hold anything.
        key = blake2b(f"{address}\0{name}".encode(), digest_size=16).hexdigest()
        reply = await LOGIN_TRY(
            self.redis, full_at=self.keys.login_tries(key), interval=self._interval_ms, window=WINDOW_MS
        )
        return bool(reply == b"OK")
