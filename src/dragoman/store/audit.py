"""The audit log: a stream of the last 10,000 changes that operators made or tried to make."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class AuditEntry:
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
    def parse(cls, id: bytes, flat: Sequence[bytes]) -> "AuditEntry":
        pairs = {
            k.decode(errors="replace"): v.decode(errors="replace") for k, v in zip(flat[::2], flat[1::2], strict=False)
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
        entry: dict[str, Any] = {"who": who, "action": action, "target": target, "detail": detail, "instance": instance}
        entry |= {"tenant": tenant, "result": result, "address": address}
        flat = [part for pair in entry.items() for part in pair]
        added = await self.redis.call("XADD", self.keys.audit, "MAXLEN", "~", MAX_ENTRIES, "*", "v", "1", *flat)
        return str(added.decode())

    async def list(self, count: int, before: str = "") -> list[AuditEntry]:
        """The newest first, or those before one."""
        start = f"({before}" if before else "+"
        rows = await self.redis.call("XREVRANGE", self.keys.audit, start, "-", "COUNT", count)
        return [AuditEntry.parse(id, flat) for id, flat in rows]
