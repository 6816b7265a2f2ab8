"""The storm guard in Redis, so that one instance's experience with a node spares the others theirs."""

from dataclasses import dataclass, field

from dragoman.domain.storm import StormSettings, StormVerdict
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

REPORT_UNAVAILABLE = Script.beside(__file__, "report_unavailable")
PAUSE_NODE = Script.beside(__file__, "pause_node")


@dataclass(frozen=True, slots=True)
class CoolDowns:
    """What a node is not asked for, in ms of Redis."""

    services: dict[str, int] = field(default_factory=dict)  # service → until; `*` for the whole node
    paused_until_ms: int = 0  # after a run of failures; 0 if there was none
    pauses: int = 0  # in a row


class Storm:
    def __init__(self, redis: Redis, keys: Keys, settings: StormSettings) -> None:
        self.redis, self.keys, self.settings = redis, keys, settings

    async def report(self, node: str, service: str) -> StormVerdict:
        """A node answered MODEL_NOT_AVAILABLE for `service` (id@version)."""
        reply = await REPORT_UNAVAILABLE(
            self.redis,
            storm=self.keys.storm(node),
            service=service,
            debounce_ms=int(self.settings.debounce_window_s * 1000),
            ttl_ms=int(self.settings.unavailable_ttl_s * 1000),
            limit=self.settings.rate_limit,
            window_ms=int(self.settings.rate_window_s * 1000),
        )
        return StormVerdict(reply.decode())

    async def pause(self, node: str) -> int:
        """A node failed several jobs in a row: for how many ms it is paused; 0 if it is paused already."""
        settings = self.settings
        return int(
            await PAUSE_NODE(
                self.redis,
                storm=self.keys.storm(node),
                first_ms=int(settings.first_pause_s * 1000),
                ttl_ms=int(settings.unavailable_ttl_s * 1000),
            )
        )

    async def recovered(self, node: str) -> None:
        """A node that was paused did a job."""
        await self.redis.call("HDEL", self.keys.storm(node), "paused", "pauses")

    async def now_ms(self, node: str) -> int:
        """The time of the server that has the cool-downs of the node."""
        seconds, micros = await self.redis.call_at(self.keys.storm(node), "TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def cooling(self, node: str) -> CoolDowns:
        flat = await self.redis.call("HGETALL", self.keys.storm(node))
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        ttl_ms = int(self.settings.unavailable_ttl_s * 1000)
        services = {name[2:].decode(): int(at) + ttl_ms for name, at in found.items() if name.startswith(b"m:")}
        if b"whole" in found:
            services["*"] = int(found[b"whole"])
        return CoolDowns(services, int(found.get(b"paused", 0)), int(found.get(b"pauses", 0)))
