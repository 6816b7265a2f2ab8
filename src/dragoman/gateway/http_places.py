"""Places for HTTP on the port that everybody shares: few of them, and not for keeping.

A connection that has been answered may stay for its next request, until its place is wanted: then whoever has waited
longest without asking anything goes, or else whoever has gone longest without reading what it asked for. So nobody can
shut the others out by asking once and staying. Who reads nothing for too long goes in any case. One address has a share
of the places, which it fills and empties by itself, so that others find one while it is busy.

Bodies are not inflated, whatever they say they are: nothing here is asked with one that would be worth it, and a small
one could grow without bound.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from aiohttp import web

from dragoman.gateway.addresses import Addresses, is_here
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


class _Place(NamedTuple):
    transport: asyncio.Transport
    address: str
    unread: Unread


class HttpPlaces:
    def __init__(self, app: web.Application, limits: Limits) -> None:
        self._most = limits.max_http_connections
        self._most_of_one = limits.max_http_per_address
        self._unread_s = limits.out_queue_age_s
        # In the order they came. aiohttp lets go of a transport when it closes it, and that is not the end of it: it
        # is only when all that was written has been read.
        self._taken: dict[web.RequestHandler, _Place] = {}
        self._addresses = Addresses()
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
        """A protocol for one more connection; None: all places it could have are taken by who is being answered."""
        address = str((transport.get_extra_info("peername") or ("",))[0])
        if self._is_full() or self._has_its_share(address):
            self._forget_gone()
        if self._has_its_share(address):
            if not self._make_room([handler for handler, place in self._taken.items() if place.address == address]):
                return None
        elif self._is_full() and not self._make_room(self._taken):
            return None
        assert self._runner.server is not None
        handler = self._runner.server()
        self._taken[handler] = _Place(transport, address, Unread(now))
        self._addresses.add(address)
        return handler

    def sweep(self, now: float) -> None:
        self._forget_gone()
        for handler, place in list(self._taken.items()):
            if place.unread.age(place.transport.get_write_buffer_size(), now) > self._unread_s:
                self._cut_off(handler)

    def _is_full(self) -> bool:
        return len(self._taken) >= self._most

    def _has_its_share(self, address: str) -> bool:
        return 0 < self._most_of_one <= self._addresses.of(address) and not is_here(address)

    def _forget_gone(self) -> None:
        assert self._runner.server is not None
        here = set(self._runner.server.connections)
        for handler in [handler for handler in self._taken if handler not in here]:
            self._forget(handler)

    def _forget(self, handler: web.RequestHandler) -> _Place:
        place = self._taken.pop(handler)
        self._addresses.drop(place.address)
        return place

    def _make_room(self, among: Iterable[web.RequestHandler]) -> bool:
        leaving = next(filter(is_idle, among), None) or self._least_read(among)
        if leaving is None:
            return False
        self._cut_off(leaving)
        return True

    def _least_read(self, among: Iterable[web.RequestHandler]) -> web.RequestHandler | None:
        waiting = (handler for handler in among if self._taken[handler].transport.get_write_buffer_size())
        return min(waiting, key=lambda handler: self._taken[handler].unread.since, default=None)

    def _cut_off(self, handler: web.RequestHandler) -> None:
        place = self._forget(handler)
        handler.force_close()  # as when its time to stay is over
        place.transport.abort()  # if something is unread; otherwise it is closed by now


def is_idle(handler: web.RequestHandler) -> bool:
    # aiohttp says nowhere in public whether a connection waits for a request: test_http_places.py states it.
    waiter = handler._waiter
    return waiter is not None and not waiter.done()
