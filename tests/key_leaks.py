"""What a test has left in Redis, seen from outside: by redis-py, on every server, with SCAN.

A key may live for ever only if the data model says so. The keys of turns have literal names, so they are told by the
ids in them where others use the same Redis, and none at all may be left where nobody else does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import redis

from dragoman.store.keys import TABLE
from redis_servers import RedisAt

FOREVER = -1
LITERAL = "scheduler:"


@dataclass(frozen=True, slots=True)
class Left:
    name: str
    ttl_ms: int


def leaks(left: list[Left], prefix: str) -> list[str]:
    """One sentence for each key that should not be there."""
    found = []
    for key in left:
        rows = [row for row in TABLE if row.pattern(prefix).match(key.name)]
        if key.name.startswith(LITERAL):
            found.append(f"{key.name} is left of a turn that has ended")
        elif not rows:
            found.append(f"{key.name} is not in the key table")
        elif key.ttl_ms == FOREVER and rows[0].expires:
            found.append(f"{key.name} has no TTL, though its life is {rows[0].life!r}")
    return found


class Onlooker:
    """Connections of its own to every Redis it was asked about."""

    def __init__(self) -> None:
        self._clients: dict[RedisAt, Any] = {}

    def take_away(self, place: RedisAt, prefix: str) -> list[Left]:
        """The keys of one test, which are gone afterwards."""
        client = self._client(place)
        ours = place.server is not None or place.cluster is not None
        left = []
        for pattern in (f"{prefix}:*", f"{LITERAL}*" if ours else f"{LITERAL}*{prefix}*"):
            names = list(self._scan(client, pattern))
            with client.pipeline(**({} if place.mode == "cluster" else {"transaction": False})) as pipe:
                for name in names:
                    pipe.pttl(name)
                    pipe.delete(name)
                told = pipe.execute()
            # What has lapsed between the looks is told by a TTL of -2, or by nothing to delete.
            for name, ttl_ms, deleted in zip(names, told[::2], told[1::2], strict=True):
                if deleted and ttl_ms >= FOREVER:
                    left.append(Left(name.decode(), ttl_ms))
        return left

    def _client(self, place: RedisAt) -> Any:
        if place not in self._clients:
            kind = redis.RedisCluster if place.mode == "cluster" else redis.Redis
            self._clients[place] = kind.from_url(place.url, protocol=2)
        return self._clients[place]

    @staticmethod
    def _scan(client: Any, pattern: str) -> Iterator[bytes]:
        everywhere = {"target_nodes": redis.RedisCluster.PRIMARIES} if isinstance(client, redis.RedisCluster) else {}
        yield from list(client.scan_iter(match=pattern, count=1000, **everywhere))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for client in self._clients.values():
            client.close()
