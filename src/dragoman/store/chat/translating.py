"""Which instance translates a message into a language: one at a time."""

from dragoman.store.instances import DELETE_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis


class Translating:
    def __init__(self, redis: Redis, keys: Keys, instance: str, ttl_ms: int) -> None:
        self.redis, self.keys, self._instance, self._ttl_ms = redis, keys, instance, ttl_ms

    async def begin(self, message: int, lang: str) -> bool:
        """False: an instance does it already."""
        key = self.keys.translating(message, lang)
        return bool(await self.redis.call("SET", key, self._instance, "NX", "PX", self._ttl_ms))

    async def end(self, message: int, lang: str) -> None:
        await DELETE_IF_EQUAL(self.redis, key=self.keys.translating(message, lang), value=self._instance)
