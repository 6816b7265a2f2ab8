"""One port for clients, nodes and HTTP: accepts, admits, and ends in bounded time.

Transport only: who may do what on a connection is its endpoint's business, and who may connect the authorizer's.
Several workers share a port with `reuse_port`; the kernel then spreads new connections over them.
"""

import asyncio
import socket
from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import inf
from time import monotonic

import structlog
from aiohttp import web

from dragoman.gateway.connection import Connection, EndpointFactory
from dragoman.gateway.doorman import Doorman
from dragoman.gateway.handshake import Authorizer, OriginAllowList, Reject, Request
from dragoman.gateway.http_places import HttpPlaces
from dragoman.gateway.limits import Counters, Limits
from dragoman.gateway.proxies import Proxies
from dragoman.gateway.roster import Roster
from dragoman.gateway.sniffer import Guest, Sniffer
from dragoman.gateway.websocket import WebSocket

# As many as the kernel lets wait (net.core.somaxconn): a client that finds its queue full tries again seconds later.
_BACKLOG = 65_535
# libuv accepts one connection of a listening handle a turn. A turn is long when thousands come at once, so there are
# two handles of the one socket; with many more the turns would be longer still.
_HANDLES = 2
_RETRY_AFTER_S = 5
_CLOSE_BATCH = 200
_MAX_SWEEP_S = 1.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint with limits of its own; only those of a single connection count."""

    endpoint: EndpointFactory
    limits: Limits | None = None


class Listener:
    def __init__(self) -> None:
        self.limits = Limits()
        self.proxies = Proxies()
        self.roster = Roster(self.limits, monotonic)
        self.doorman = Doorman(crowded=lambda: self.roster.is_crowded)
        self._places: HttpPlaces | None = None
        self._servers: list[asyncio.Server] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closing = False

    async def start(
        self,
        host: str | None,
        port: int,
        routes: Mapping[str, EndpointFactory | Route],
        http_app: web.Application,
        limits: Limits | None = None,
        reuse_port: bool = False,
        sock: socket.socket | None = None,
        authorize: Authorizer | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        """Listen on `host` and `port`, or on `sock`. Without `authorize`, pages of other hosts are refused."""
        self._loop = asyncio.get_running_loop()
        self.limits = limits or self.limits
        self.proxies = proxies or self.proxies
        self.roster = Roster(self.limits, monotonic)
        self._authorize = authorize or OriginAllowList()
        self._routes = {path: route if isinstance(route, Route) else Route(route) for path, route in routes.items()}
        every = [self.limits, *(route.limits for route in self._routes.values() if route.limits)]
        self._sweep_every_s = min(_MAX_SWEEP_S, *(limits.shortest_s() / 4 for limits in every))
        self._places = HttpPlaces(http_app, self.limits, self.proxies, self.roster, self._upgrade_later)
        await self._places.open()
        await self._listen(host, port, reuse_port, sock)
        for listening in self._servers[0].sockets:
            # Inherited by what is accepted. Left to itself the kernel gives a pushing client tens of megabytes, and
            # picows' read buffer follows it: it doubles whenever one read fills it.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.socket_buffer_bytes)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.socket_buffer_bytes)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sweep()

    @property
    def port(self) -> int:
        return int(self._servers[0].sockets[0].getsockname()[1])

    @property
    def connections(self) -> Set[Connection]:
        """The WebSockets that are open, or have been closed and not yet left."""
        return self.roster.live

    @property
    def counters(self) -> Counters:
        return self.roster.counters

    async def stop_accepting(self) -> None:
        """Close the port; who is connected stays."""
        for server in self._servers:
            server.close()

    async def close(self, code: int) -> None:
        """Close the port and, with `code`, every WebSocket; peers that do not follow are cut off."""
        self._closing = True
        await self.stop_accepting()
        self.roster.heads.expire(inf)
        self.doorman.hurry()  # they are told to come back
        self.roster.hurry()
        for number, connection in enumerate(list(self.connections)):
            connection.close(code)
            if number % _CLOSE_BATCH == _CLOSE_BATCH - 1:
                await asyncio.sleep(0)
        await self.roster.empty.wait()
        if self._places is not None:
            await self._places.close()
        self.roster.quiet.close()
        self.roster.heads.expire(inf)
        self.roster.leaving.expire(inf)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    # --- what sniffers ask ---

    def admit(self, request: Request, transport: asyncio.Transport) -> Guest | Reject:
        if self._closing:
            return _come_back("the server is going down")
        route = self._routes.get(request.path)
        if route is None:
            return Reject(404, "there is no WebSocket endpoint at this path")
        try:
            refusal = self._authorize(request)
            if refusal is not None:
                return refusal
            if len(self.roster.live) >= self.limits.max_connections:
                return _come_back("too many connections")
            endpoint = route.endpoint()
        except Exception:
            _log.exception("handshake failed", path=request.path)
            return Reject(500, "internal error")
        return WebSocket(request, endpoint, route.limits or self.limits, self.roster, transport)

    def serve_http(self, transport: asyncio.Transport, peer: tuple[str, int]) -> asyncio.Protocol | Reject:
        assert self._places is not None
        place = None if self._closing else self._places.take(transport, peer, self.roster.clock())
        if place is None:
            return _come_back("too many connections")
        self.counters.http += 1
        return place

    # --- inside ---

    def _upgrade_later(self, transport: asyncio.Transport, peer: tuple[str, int], head: bytes, rest: bytes) -> None:
        Sniffer(self).upgrade_later(transport, peer, head, rest)

    async def _listen(self, host: str | None, port: int, reuse_port: bool, sock: socket.socket | None) -> None:
        def serve() -> Sniffer:
            return Sniffer(self)

        create = self._loop.create_server
        try:
            if sock is not None:
                self._servers = [await create(serve, sock=sock, backlog=_BACKLOG)]
            else:
                self._servers = [await create(serve, host, port, backlog=_BACKLOG, reuse_port=reuse_port)]
            for listening in self._servers[0].sockets:
                for _ in range(_HANDLES - 1):
                    again = socket.fromfd(listening.fileno(), listening.family, listening.type)
                    self._servers.append(await create(serve, sock=again, backlog=_BACKLOG))
        except BaseException:
            await self.close(0)
            raise

    def _sweep(self) -> None:
        self._sweep_timer = self._loop.call_later(self._sweep_every_s, self._sweep)
        self.roster.sweep()
        if self._places is not None:
            self._places.sweep(self.roster.clock())


def _come_back(why: str) -> Reject:
    return Reject(503, why, {"Retry-After": str(_RETRY_AFTER_S)})
