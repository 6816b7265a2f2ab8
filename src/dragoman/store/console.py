"""What the console shows of all instances: the samples of its charts, and the audit log.

The samples are one stream for the whole cluster, with the times of Redis as ids, that keeps half an hour: any instance
answers for all, and the history of an instance outlives it. A sample has about 350 bytes, so an instance has 130 KB.
The audit log is a stream of the last 10,000 changes that operators made or tried to make.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

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
        for id, flat in await self.redis.call("XRANGE", self._key, max(at_ms, 0), "+"):
            try:
                found.append((_at_ms(id), _decode(dict(zip(flat[::2], flat[1::2], strict=True))[b"data"])))
            except (msgspec.DecodeError, KeyError):
                continue  # of a later release
        return found


def _at_ms(id: bytes) -> int:
    return int(id.partition(b"-")[0])


MAX_ENTRIES = 10_000


# -- the audit log ---------------------------------------------------------------------------------


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
