"""One port for clients, nodes and HTTP: accepts, admits, and ends in bounded time.

Transport only: endpoints decide what a client may do, the authorizer who may connect.
Several workers share a port with `reuse_port`; the kernel then spreads new connections over them.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from math import inf
from time import monotonic

import structlog
from aiohttp import web

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.gateway.authentication import Principal
from dragoman.gateway.connection import Connection, EndpointFactory
from dragoman.gateway.counters import Counters
from dragoman.gateway.handshake import Authorizer, OriginAllowList, Reject, Request
from dragoman.gateway.http_connections import HttpConnections
from dragoman.gateway.open_connections import OpenConnections
from dragoman.gateway.pacing import HandshakeQueue
from dragoman.gateway.picows_listener import PicowsListener
from dragoman.gateway.protocol_switch import ProtocolSwitch
from dragoman.gateway.proxies import Proxies
from dragoman.gateway.websocket import WebSocket

# As many as the kernel allows (net.core.somaxconn): a client that finds the queue full retries seconds later.
_BACKLOG = 65_535
# libuv accepts one connection per listening handle and turn. A turn is long when thousands connect at once: there are
# two handles of the one socket; more handles would make the turns longer still.
_HANDLES = 2
_RETRY_AFTER_S = 5
_CLOSE_BATCH = 200
_MAX_SWEEP_S = 1.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint, and its own limits for a single connection; the limits of the whole listener stay."""

    endpoint: EndpointFactory
    limits: ConnectionLimits | None = None


class Listener:
    def __init__(self, limits: ConnectionLimits | None = None, proxies: Proxies | None = None) -> None:
        self.limits, self.proxies = limits or ConnectionLimits(), proxies or Proxies()
        self.registry = OpenConnections(self.limits, monotonic)
        self.handshake_queue = HandshakeQueue(crowded=lambda: self.registry.is_crowded)
        self._http: HttpConnections | None = None
        self._servers: list[asyncio.Server] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closing = False

    async def start(
        self,
        host: str | None,
        port: int,
        routes: Mapping[str, EndpointFactory | Route],
        http_app: web.Application,
        reuse_port: bool = False,
        sock: socket.socket | None = None,
        authorize: Authorizer | None = None,
    ) -> None:
        """Listen on `host` and `port`, or on `sock`. Without `authorize`, only pages of other hosts are refused."""
        self._loop = asyncio.get_running_loop()
        self._authorize = authorize or OriginAllowList()
        self._routes = {path: route if isinstance(route, Route) else Route(route) for path, route in routes.items()}
        every = [self.limits, *(route.limits for route in self._routes.values() if route.limits)]
        self._sweep_every_s = min(_MAX_SWEEP_S, *(limits.shortest_s() / 4 for limits in every))
        self._http = HttpConnections(http_app, self.limits, self.proxies, self.registry, self._upgrade_later)
        await self._http.open()
        await self._listen(host, port, reuse_port, sock)
        for listening in self._servers[0].sockets:
            # Accepted sockets inherit these. By default the kernel buffers tens of megabytes of a client that sends
            # fast, and picows' read buffer grows with it: it doubles whenever one read fills it.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.socket_buffer_bytes)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.socket_buffer_bytes)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sweep()

    @property
    def port(self) -> int:
        return int(self._servers[0].sockets[0].getsockname()[1])

    @property
    def connections(self) -> Set[Connection]:
        """The WebSockets whose sockets are open or whose ends are not handled yet."""
        return self.registry.live

    @property
    def counters(self) -> Counters:
        return self.registry.counters

    async def stop_accepting(self) -> None:
        """Close the port; open connections stay."""
        for server in self._servers:
            server.close()

    async def close(self, code: int) -> None:
        """Close the port and, with `code`, every WebSocket; a peer that does not close its side is aborted."""
        self._closing = True
        await self.stop_accepting()
        self.registry.awaiting_head.expire(inf)
        self.handshake_queue.handle_all()  # each is refused with Retry-After
        self.registry.skip_pauses()
        for number, connection in enumerate(list(self.connections)):
            connection.close(code)
            if number % _CLOSE_BATCH == _CLOSE_BATCH - 1:
                await asyncio.sleep(0)
        await self.registry.empty.wait()
        if self._http is not None:
            await self._http.close()
        self.registry.idle_poller.close()
        self.registry.awaiting_head.expire(inf)
        self.registry.closing.expire(inf)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    def close_operators(self, is_revoked: Callable[[Principal], bool]) -> None:
        """Close the HTTP connections of revoked operators."""
        if self._http is not None:
            self._http.close_operators(is_revoked)

    # --- called by protocol switches ---

    def open_websocket(self, request: Request, transport: asyncio.Transport) -> PicowsListener | Reject:
        if self._closing:
            return _retry_later("the server is shutting down")
        route = self._routes.get(request.path)
        if route is None:
            return Reject(404, "there is no WebSocket endpoint at this path")
        try:
            if self.registry.addresses.is_full(request.peer[0]):
                return _retry_later("too many connections from this address", 429)
            refusal = self._authorize(request)
            if refusal is not None:
                return refusal
            if len(self.registry.live) >= self.limits.max_connections:
                return _retry_later("too many connections")
            endpoint = route.endpoint()
        except Exception:
            _log.exception("handshake failed", path=request.path)
            return Reject(500, "internal error")
        return WebSocket(request, endpoint, route.limits or self.limits, self.registry, transport)

    def open_http(self, transport: asyncio.Transport, peer: tuple[str, int]) -> asyncio.Protocol | Reject:
        assert self._http is not None
        connection = None if self._closing else self._http.add(transport, peer, self.registry.clock())
        if connection is None:
            return _retry_later("too many connections")
        self.counters.http += 1
        return connection

    def _upgrade_later(self, transport: asyncio.Transport, peer: tuple[str, int], head: bytes, rest: bytes) -> None:
        ProtocolSwitch(self).upgrade_later(transport, peer, head, rest)

    async def _listen(self, host: str | None, port: int, reuse_port: bool, sock: socket.socket | None) -> None:
        def serve() -> ProtocolSwitch:
            return ProtocolSwitch(self)

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
        self.registry.sweep()
        if self._http is not None:
            self._http.sweep(self.registry.clock())


def _retry_later(why: str, status: int = 503) -> Reject:
    return Reject(status, why, {"Retry-After": str(_RETRY_AFTER_S)})
