"""The storm guard in Redis, so that one instance's experience with a node spares the others theirs."""

from dragoman.domain.storm import StormSettings, Verdict
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

REPORT_UNAVAILABLE = Script.beside(__file__, "report_unavailable")


class Storm:
    def __init__(self, redis: Redis, keys: Keys, settings: StormSettings) -> None:
        self.redis, self.keys, self.settings = redis, keys, settings

    async def report(self, node: str, service: str) -> Verdict:
        """A node said MODEL_NOT_AVAILABLE for `service` (id@version)."""
        reply = await REPORT_UNAVAILABLE(
            self.redis,
            storm=self.keys.storm(node),
            service=service,
            debounce_ms=int(self.settings.debounce_window_s * 1000),
            ttl_ms=int(self.settings.unavailable_ttl_s * 1000),
            limit=self.settings.rate_limit,
            window_ms=int(self.settings.rate_window_s * 1000),
        )
        return Verdict(reply.decode())

    async def cooling(self, node: str) -> dict[str, int]:
        """What the node cools down from: service → ms (of Redis) until; `*` for the whole node."""
        flat = await self.redis.call("HGETALL", self.keys.storm(node))
        until: dict[str, int] = {}
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if name == b"whole":
                until["*"] = int(value)
            elif name.startswith(b"m:"):
                until[name[2:].decode()] = int(value) + int(self.settings.unavailable_ttl_s * 1000)
        return until
