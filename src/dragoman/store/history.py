"""The samples of all instances for the charts of the console: a stream that keeps half an hour.

One stream for the whole cluster, with the times of Redis as ids: any instance answers for all, and the history of an
instance outlives it. A sample has about 350 bytes, so an instance has 130 KB of it.
"""

import asyncio

import msgspec

from dragoman.domain.history import KEPT_MS, Sample
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

_decode = msgspec.json.Decoder(Sample).decode


class Samples:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self._key = redis, keys.history

    async def add(self, sample: Sample) -> None:
        added, _ = await asyncio.gather(
            self.redis.call("XADD", self._key, "*", "v", "1", "data", msgspec.json.encode(sample)),
            self.redis.call("PEXPIRE", self._key, KEPT_MS),
        )
        await self.redis.call("XTRIM", self._key, "MINID", _at_ms(added) - KEPT_MS)

    async def since(self, at_ms: int) -> list[tuple[int, Sample]]:
        """Oldest first, each with when it was taken."""
        found = []
        for id, fields in await self.redis.call("XRANGE", self._key, max(at_ms, 0), "+"):
            try:
                found.append((_at_ms(id), _decode(dict(zip(fields[::2], fields[1::2], strict=True))[b"data"])))
            except (msgspec.DecodeError, KeyError):
                continue  # of a later release
        return found


def _at_ms(id: bytes) -> int:
    return int(id.partition(b"-")[0])
