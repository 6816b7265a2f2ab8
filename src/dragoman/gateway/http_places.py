"""Places for HTTP on the port that everybody shares: few of them, and not for keeping.

A connection that has been answered may stay for its next request, until its place is wanted: then whoever has waited
longest without asking anything goes. So nobody can shut the others out by asking once and staying. Bodies are not
inflated, whatever they say they are: nothing here is asked with one that would be worth it, and a small one could grow
without bound.
"""

import asyncio

from aiohttp import web

from dragoman.gateway.limits import Limits


class HttpPlaces:
    def __init__(self, app: web.Application, limits: Limits) -> None:
        self._most = limits.max_http_connections
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

    def take(self) -> asyncio.Protocol | None:
        """A protocol for one more connection; None: all places are taken by who is being answered."""
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._most and not self._make_room(server):
            return None
        return server()

    @staticmethod
    def _make_room(server: web.Server) -> bool:
        for handler in server.connections:  # in the order they came
            # aiohttp says nowhere in public whether a connection waits for a request: test_http_places.py states it.
            waiter = handler._waiter
            if waiter is not None and not waiter.done():
                handler.force_close()  # as when its time to stay is over
                return True
        return False
