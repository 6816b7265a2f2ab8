"""Keys that are left in Redis, seen from outside: by redis-py, on every master, with SCAN.

A key may live for ever only if the data model says so. The keys of turns have literal names, so they are told by the
ids in them where others use the same Redis, and none at all may be left where nobody else does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import redis

from dragoman.store.keys import TABLE

FOREVER = -1
GONE = -2
LITERAL = "scheduler:"


@dataclass(frozen=True, slots=True)
class Left:
    name: str
    ttl_ms: int


def leaks(left: Iterable[Left], prefix: str) -> list[str]:
    """One sentence for each key that should not be there."""
    patterns = [(row, row.pattern(prefix)) for row in TABLE]
    found = []
    for key in left:
        rows = [row for row, pattern in patterns if pattern.match(key.name)]
        if key.name.startswith(LITERAL):
            found.append(f"{key.name} is left of a turn that has ended")
        elif not rows:
            found.append(f"{key.name} is not in the key table")
        elif key.ttl_ms == FOREVER and rows[0].expires:
            found.append(f"{key.name} has no TTL, though its life is {rows[0].life!r}")
    return found


def client(url: str, *, cluster: bool) -> Any:
    kind = redis.RedisCluster if cluster else redis.Redis
    return kind.from_url(url, protocol=2)


def names(client: Any, pattern: str) -> list[bytes]:
    everywhere = {"target_nodes": redis.RedisCluster.PRIMARIES} if isinstance(client, redis.RedisCluster) else {}
    return list(client.scan_iter(match=pattern, count=1000, **everywhere))


def look(client: Any, prefix: str) -> Iterator[Left]:
    """All keys of one cluster of ours, where nobody else uses that Redis."""
    for pattern in (f"{prefix}:*", f"{LITERAL}*"):
        found = names(client, pattern)
        with pipeline(client) as pipe:
            for name in found:
                pipe.pttl(name)
            for name, ttl_ms in zip(found, pipe.execute(), strict=True):
                if ttl_ms > GONE:
                    yield Left(name.decode(), ttl_ms)


def pipeline(client: Any) -> Any:
    return client.pipeline(**({} if isinstance(client, redis.RedisCluster) else {"transaction": False}))
