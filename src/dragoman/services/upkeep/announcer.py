"""Tells all instances what makes them faster, and hears what they tell. Nothing relies on it.

A missed announcement costs time, not truth: the fleet view is refreshed from the keys, waiting jobs look
again when a reservation may have expired, cool-downs are read when a node is seen anew.
"""

from collections.abc import Callable

import structlog

from dragoman.protocol.peer import Announcement, decode_announcement, encode_peer
from dragoman.services.loops import Tasks
from dragoman.store.instances import channel_of
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis, Subscriber

log = structlog.get_logger(__name__)


class Announcer:
    def __init__(self, redis: Redis, keys: Keys, tasks: Tasks, instance: str | None = None) -> None:
        self._redis, self._channel, self._tasks = redis, keys.announcements, tasks
        self._listeners: list[Callable[[Announcement], None]] = []
        own = (channel_of(keys, instance),) if instance is not None else ()
        self.subscriber = Subscriber(redis, self._channel, self._heard, *own)

    def subscribe(self, listener: Callable[[Announcement], None]) -> None:
        self._listeners.append(listener)

    def tell(self, message: Announcement) -> None:
        """To everybody, ourselves at once: our own ears must not depend on Redis."""
        self._dispatch(message)
        self._tasks.spawn(self._redis.publish(self._channel, encode_peer(message)), "announce")

    async def run(self) -> None:
        await self.subscriber.run()

    def _heard(self, data: bytes) -> None:
        message = decode_announcement(data)
        if message is not None:
            self._dispatch(message)

    def _dispatch(self, message: Announcement) -> None:
        for listener in self._listeners:
            try:
                listener(message)
            except Exception:
                log.exception("an announcement failed", message=type(message).__name__)
