"""Publishes hints to all instances and passes theirs to the subscribers. Nothing relies on them.

A missed announcement costs time, not correctness: the fleet view is refreshed from the keys, waiting jobs try again
when a reservation may have expired, cool-downs are read when a node connects again.
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
        self.subscriber = Subscriber(redis, self._channel, self._received, *own)

    def subscribe(self, listener: Callable[[Announcement], None]) -> None:
        self._listeners.append(listener)

    def announce(self, message: Announcement) -> None:
        """To all instances. The subscribers of this instance get it at once, without Redis."""
        self._dispatch(message)
        self._tasks.spawn(self._redis.publish(self._channel, encode_peer(message)), "announce")

    async def run(self) -> None:
        await self.subscriber.run()

    def _received(self, data: bytes) -> None:
        message = decode_announcement(data)
        if message is not None:
            self._dispatch(message)

    def _dispatch(self, message: Announcement) -> None:
        for listener in self._listeners:
            try:
                listener(message)
            except Exception:
                log.exception("announcement failed", message=type(message).__name__)
