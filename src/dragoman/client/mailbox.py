"""Events between the socket, which cannot wait, and whoever reads them at leisure.

Each event is read once. When nobody reads, partials and steps go, oldest first, once `max_unread` events wait;
everything else is kept.
"""

import asyncio
from collections import deque

from dragoman.client.events import Event, Partial, Progress

_MAY_GO = (Partial, Progress)


class Mailbox:
    def __init__(self, max_unread: int = 4096) -> None:
        self._max_unread = max_unread
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        if self._ended:
            return
        self._events.append(event)
        if len(self._events) > self._max_unread:
            self._make_room()
        self._news.set()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes. Readers get what is there, then the error, if there is one."""
        if not self._ended:
            self._ended, self._error = True, error
        self._news.set()

    async def get(self) -> Event | None:
        """The next event; None at the end."""
        while not self._events:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    def _make_room(self) -> None:
        for at, event in enumerate(self._events):
            if isinstance(event, _MAY_GO):
                del self._events[at]
                return
