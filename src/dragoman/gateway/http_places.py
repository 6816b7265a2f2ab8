"""Places for HTTP on the port that everybody shares: few of them, and not for keeping.

A connection that has been answered may stay for its next request, until its place is wanted: then whoever has waited
longest without asking anything goes, or else whoever has gone longest without reading what it asked for. So nobody can
shut the others out by asking once and staying. Who reads nothing for too long goes in any case. Bodies are not
inflated, whatever they say they are: nothing here is asked with one that would be worth it, and a small one could grow
without bound.
"""

import asyncio

from aiohttp import web

from dragoman.gateway.limits import Limits


class Unread:
    """How long a peer has read nothing of what waits for it. Pure: sizes and times are passed in.

    Not the age of the oldest byte, as of a WebSocket's backlog: an answer may be large and the line slow.
    """

    __slots__ = ("since", "size")

    def __init__(self, now: float) -> None:
        self.size = 0
        self.since = now

    def age(self, size: int, now: float) -> float:
        if size != self.size or not size:
            self.size, self.since = size, now
        return now - self.since


class HttpPlaces:
    def __init__(self, app: web.Application, limits: Limits) -> None:
        self._most = limits.max_http_connections
        self._unread_s = limits.out_queue_age_s
        # In the order they came. aiohttp lets go of a transport when it closes it, and that is not the end of it: it
        # is only when all that was written has been read.
        self._taken: dict[web.RequestHandler, tuple[asyncio.Transport, Unread]] = {}
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.http_keepalive_s,
            shutdown_timeout=limits.close_timeout_s,
        )

    async def open(self) -> None:
        await self._runner.setup()

    async def close(self) -> None:
        await self._runner.cleanup()
        for handler in list(self._taken):
            self._cut_off(handler)

    def take(self, transport: asyncio.Transport, now: float) -> asyncio.Protocol | None:
        """A protocol for one more connection; None: all places are taken by who is being answered."""
        if len(self._taken) >= self._most:
            self._forget_gone()
        if len(self._taken) >= self._most and not self._make_room():
            return None
        assert self._runner.server is not None
        handler = self._runner.server()
        self._taken[handler] = transport, Unread(now)
        return handler

    def sweep(self, now: float) -> None:
        self._forget_gone()
        for handler, (transport, unread) in list(self._taken.items()):
            if unread.age(transport.get_write_buffer_size(), now) > self._unread_s:
                self._cut_off(handler)

    def _forget_gone(self) -> None:
        assert self._runner.server is not None
        here = set(self._runner.server.connections)
        for handler in [handler for handler in self._taken if handler not in here]:
            del self._taken[handler]

    def _make_room(self) -> bool:
        leaving = next(filter(is_idle, self._taken), None) or self._least_read()
        if leaving is None:
            return False
        self._cut_off(leaving)
        return True

    def _least_read(self) -> web.RequestHandler | None:
        waiting = [
            (unread.since, number, handler)
            for number, (handler, (transport, unread)) in enumerate(self._taken.items())
            if transport.get_write_buffer_size()
        ]
        return min(waiting)[2] if waiting else None

    def _cut_off(self, handler: web.RequestHandler) -> None:
        transport, _ = self._taken.pop(handler)
        handler.force_close()  # as when its time to stay is over
        transport.abort()  # if something is unread; otherwise it is closed by now


def is_idle(handler: web.RequestHandler) -> bool:
    # aiohttp says nowhere in public whether a connection waits for a request: test_http_places.py states it.
    waiter = handler._waiter
    return waiter is not None and not waiter.done()
