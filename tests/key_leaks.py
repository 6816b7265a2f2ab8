"""What a test has left in Redis, seen from outside, and taken away."""

from types import TracebackType
from typing import Any, Self

from dragoman.verify.keys_left import FOREVER, LITERAL, Left, client, names, pipeline
from redis_servers import RedisAt


class Onlooker:
    """Connections of its own to every Redis it was asked about."""

    def __init__(self) -> None:
        self._clients: dict[RedisAt, Any] = {}

    def take_away(self, place: RedisAt, prefix: str) -> list[Left]:
        """The keys of one test, which are gone afterwards."""
        redis = self._client(place)
        ours = place.server is not None or place.cluster is not None
        left = []
        for pattern in (f"{prefix}:*", f"{LITERAL}*" if ours else f"{LITERAL}*{prefix}*"):
            found = names(redis, pattern)
            with pipeline(redis) as pipe:
                for name in found:
                    pipe.pttl(name)
                    pipe.delete(name)
                told = pipe.execute()
            # What has lapsed between the looks is told by a TTL of -2, or by nothing to delete.
            for name, ttl_ms, deleted in zip(found, told[::2], told[1::2], strict=True):
                if deleted and ttl_ms >= FOREVER:
                    left.append(Left(name.decode(), ttl_ms))
        return left

    def _client(self, place: RedisAt) -> Any:
        if place not in self._clients:
            self._clients[place] = client(place.url, cluster=place.mode == "cluster")
        return self._clients[place]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self._clients.values():
            one.close()
