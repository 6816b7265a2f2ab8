"""Who changed what, when and on what: a stream of the last ten thousand changes that operators made, or tried to."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    id: str
    who: str
    action: str
    target: str
    detail: str
    instance: str
    tenant: str = ""
    result: str = ""
    address: str = ""  # of the operator

    @property
    def at_ms(self) -> int:
        return int(self.id.partition("-")[0])

    @classmethod
    def parse(cls, id: bytes, told: Sequence[bytes]) -> "Entry":
        pairs = {
            k.decode(errors="replace"): v.decode(errors="replace") for k, v in zip(told[::2], told[1::2], strict=False)
        }
        return cls(id.decode(), *(pairs.get(field.name, "") for field in fields(cls)[1:]))


class Audit:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys

    async def add(
        self,
        who: str,
        action: str,
        target: str,
        detail: str,
        instance: str,
        *,
        tenant: str = "",
        result: str = "",
        address: str = "",
    ) -> str:
        told: dict[str, Any] = {"who": who, "action": action, "target": target, "detail": detail, "instance": instance}
        told |= {"tenant": tenant, "result": result, "address": address}
        flat = [part for pair in told.items() for part in pair]
        added = await self.redis.call("XADD", self.keys.audit, "MAXLEN", "~", MAX_ENTRIES, "*", "v", "1", *flat)
        return str(added.decode())

    async def list(self, count: int, before: str = "") -> list[Entry]:
        """The newest first, or those before one."""
        start = f"({before}" if before else "+"
        rows = await self.redis.call("XREVRANGE", self.keys.audit, start, "-", "COUNT", count)
        return [Entry.parse(id, told) for id, told in rows]
