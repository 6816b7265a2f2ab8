"""HTTP connections on the shared port: how many there may be, and which one is closed for a new one.

A connection may stay for its next request until its entry is needed. Then the one that has been idle longest is closed,
or else the one that has not read its response for the longest time. So no client can keep others out by sending one
request and staying. A connection that reads nothing for too long is closed in any case. One address has a share of the
entries, so that others find room while it is busy. A connection of a trusted proxy carries requests of many clients:
each request counts for its client's address while it is being answered.

Bodies are not decompressed: no request here needs it, and a small body could grow without bound.

An idle connection is watched by the idle poller.

A WebSocket upgrade may be any request of a connection. aiohttp parses it, because only its parser knows where the body
of the request before it ends. `HttpConnection` then takes the upgrade out of aiohttp's queue, ends aiohttp's handler
without its transport, and passes the transport on. An upgrade that arrives before the previous response is complete
stays in the queue and is answered 400 in its turn.
"""

import asyncio
from collections.abc import Callable, Iterable

from aiohttp import web
from aiohttp.http import RawRequestMessage

from dragoman.domain.limits.connections import ConnectionLimits, PerAddressLimit
from dragoman.gateway.authentication import Principal
from dragoman.gateway.handshake import wants_websocket
from dragoman.gateway.http_requests import OPERATOR, PEER, Handler, error
from dragoman.gateway.open_connections import OpenConnections
from dragoman.gateway.proxies import BadForwarding, Proxies

IDLE_CHECK_S = 0.1
_RETRY_AFTER_S = 5

# The transport, its peer, the request head, the bytes behind it
Upgrade = Callable[[asyncio.Transport, tuple[str, int], bytes, bytes], None]


class WriteStall:
    """How long a peer has read nothing of what waits for it. Pure: sizes and times are passed in.

    Unlike a WebSocket's backlog this is not the age of the oldest byte: a response may be large and the line slow.
    """

    __slots__ = ("_size", "since")

    def __init__(self, now: float) -> None:
        self._size = 0
        self.since = now

    def age(self, size: int, now: float) -> float:
        if size != self._size or not size:
            self._size, self.since = size, now
        return now - self.since


class HttpConnections:
    def __init__(
        self,
        app: web.Application,
        limits: ConnectionLimits,
        proxies: Proxies,
        registry: OpenConnections,
        upgrade: Upgrade,
    ) -> None:
        app.middlewares[:0] = [_no_pipelined_upgrade, self._identify_client]
        self._proxies = proxies
        self.upgrade = upgrade
        self.max_rest_bytes = 2 * limits.max_head_bytes
        self._max_connections = limits.max_http_connections
        self._stall_timeout_s = limits.out_queue_age_s
        self.idle_poller, self._counters = registry.idle_poller, registry.counters
        self._connections: dict[HttpConnection, None] = {}  # in the order they came
        self._by_handler: dict[web.RequestHandler, HttpConnection] = {}
        self._active: set[HttpConnection] = set()  # not watched by the idle poller
        self._check_is_due = False
        self._addresses = PerAddressLimit(limits.max_http_per_address)
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
        for connection in list(self._connections):
            self._abort(connection)

    def add(self, transport: asyncio.Transport, peer: tuple[str, int], now: float) -> asyncio.Protocol | None:
        """A protocol for one more connection; None: too many connections have a request that is being answered."""
        address = None if self._proxies.trusts(peer[0]) else peer[0]
        if address is not None and self._addresses.is_full(address):
            if not self._make_room([connection for connection in self._connections if connection.address == address]):
                return None
        elif len(self._connections) >= self._max_connections and not self._make_room(self._connections):
            return None
        server = self._runner.server
        assert server is not None
        handler = _Handler(server, loop=server._loop, **server._kwargs)
        connection = HttpConnection(self, handler, transport, peer, address, now)
        self._connections[connection] = None
        self._by_handler[connection.handler] = connection
        if address is not None:
            self._addresses.add(address)
        self.add_active(connection)
        return connection

    def sweep(self, now: float) -> None:
        for connection in list(self._connections):
            if connection.stall.age(connection.transport.get_write_buffer_size(), now) > self._stall_timeout_s:
                self._abort(connection)

    def close_operators(self, is_revoked: Callable[[Principal], bool]) -> None:
        """Close the connections whose latest request came from a revoked operator. Those of a proxy stay: they carry
        requests of other clients as well."""
        for connection in list(self._connections):
            operator = (
                connection.request.get(OPERATOR)
                if connection.request is not None and connection.address is not None
                else None
            )
            if operator is not None and is_revoked(operator):
                self._abort(connection)

    def add_active(self, connection: "HttpConnection") -> None:
        """Check regularly whether the connection has become idle."""
        self._active.add(connection)
        if not self._check_is_due:
            self._check_is_due = True
            asyncio.get_running_loop().call_later(IDLE_CHECK_S, self._check_active)

    def remove_active(self, connection: "HttpConnection") -> None:
        self._active.discard(connection)

    def remove(self, connection: "HttpConnection") -> None:
        self.remove_active(connection)
        if connection in self._connections:
            del self._connections[connection], self._by_handler[connection.handler]
            if connection.address is not None:
                self._addresses.drop(connection.address)

    def _check_active(self) -> None:
        self._check_is_due = False
        active, self._active = self._active, set()
        for connection in active:
            if is_idle(connection.handler) and not connection.transport.is_closing():
                connection.on_idle()
            else:
                self.add_active(connection)

    @web.middleware
    async def _identify_client(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Find the client of a request. One that came through a trusted proxy counts for the client's address."""
        connection = self._by_handler.get(request.protocol)
        if connection is None:  # it was aborted
            return await handler(request)
        try:
            peer = self._proxies.peer(*connection.peer, lambda name: ", ".join(request.headers.getall(name, ())))
        except BadForwarding as why:
            self._counters.refused[400] += 1
            return error(str(why), 400)
        request[PEER] = peer
        connection.begin(request)
        if not peer.proxy:
            return await handler(request)
        if self._addresses.is_full(peer.address):
            self._counters.refused[503] += 1
            refusal = error("too many requests from this address at the same time", 503)
            refusal.headers["Retry-After"] = str(_RETRY_AFTER_S)
            return refusal
        self._addresses.add(peer.address)
        try:
            return await handler(request)
        finally:
            self._addresses.drop(peer.address)

    def _make_room(self, among: Iterable["HttpConnection"]) -> bool:
        idle = next((connection for connection in among if is_idle(connection.handler)), None)
        chosen = idle or _longest_stalled(among)
        if chosen is None:
            return False
        self._abort(chosen)
        return True

    def _abort(self, connection: "HttpConnection") -> None:
        self.remove(connection)
        connection.handler.force_close()  # as after its keep-alive time
        connection.transport.abort()  # needed if data waits to be sent; otherwise the transport is closed by now


class HttpConnection(asyncio.Protocol):
    """One connection, between its transport and aiohttp: it sees each request, and the end."""

    __slots__ = ("_idle_fd", "_owner", "_upgrade", "address", "handler", "peer", "request", "stall", "transport")

    def __init__(
        self,
        owner: HttpConnections,
        handler: "_Handler",
        transport: asyncio.Transport,
        peer: tuple[str, int],
        address: str | None,
        now: float,
    ) -> None:
        """`address`: the one it counts for; None: a trusted proxy's connection counts for none."""
        self.handler, self.transport, self.peer, self.address = handler, transport, peer, address
        self.stall = WriteStall(now)
        self._owner = owner
        self._idle_fd: int | None = None
        self.request: web.Request | None = None  # the latest one
        self._upgrade: tuple[bytes, bytearray] | None = None  # its head and the bytes behind it, until aiohttp is idle

    # --- callbacks of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._upgrade is not None:
            self._upgrade[1].extend(data)
            if len(self._upgrade[1]) > self._owner.max_rest_bytes:
                self.transport.pause_reading()
            return
        handler = self.handler
        idle = is_idle(handler)
        answered = idle or not (handler._messages or handler._request_in_progress)
        handler.data_received(data)
        if answered and len(handler._messages) == 1 and (head := _upgrade_head(handler._messages[0][0])):
            self._take_upgrade(head, idle)

    def eof_received(self) -> None:
        self.handler.eof_received()

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_fd is not None:
            self._owner.idle_poller.forget(self._idle_fd)
            self._idle_fd = None
        self._owner.remove_active(self)
        # A request whose client has disconnected is still being handled, and counts until that is done.
        answering = self.handler._task_handler
        self.handler.connection_lost(exc)
        if answering is None or answering.done():
            self._owner.remove(self)
        else:
            answering.add_done_callback(lambda _: self._owner.remove(self))

    def begin(self, request: web.Request) -> None:
        self.request = request

    # --- an upgrade ---

    def _take_upgrade(self, head: bytes, idle: bool) -> None:
        self._upgrade = head, bytearray(self.handler.take_messages())
        if idle:
            self._hand_over()
        else:  # The response is written, and aiohttp waits for the next request one turn of the loop later.
            asyncio.get_running_loop().call_soon(self._hand_over_if_idle)

    def _hand_over_if_idle(self) -> None:
        if is_idle(self.handler) and not self.transport.is_closing():
            self._hand_over()

    def _hand_over(self) -> None:
        assert self._upgrade is not None
        head, rest = self._upgrade
        self._owner.remove(self)
        self.handler.end()
        self._owner.upgrade(self.transport, self.peer, head, bytes(rest))

    # --- between two requests ---

    def on_idle(self) -> None:
        """aiohttp is idle."""
        if self._upgrade is not None:
            self._hand_over()
        else:
            self._become_idle()

    def _become_idle(self) -> None:
        self._idle_fd = self.transport.get_extra_info("socket").fileno()
        self.transport.pause_reading()
        self._owner.idle_poller.watch(self._idle_fd, self)

    def resume(self) -> None:
        self._idle_fd = None
        if not self.transport.is_closing():
            self.transport.resume_reading()
            self._owner.add_active(self)


def _longest_stalled(among: Iterable[HttpConnection]) -> HttpConnection | None:
    waiting = (connection for connection in among if connection.transport.get_write_buffer_size())
    return min(waiting, key=lambda connection: connection.stall.since, default=None)


class _Handler(web.RequestHandler):
    """aiohttp's handler of a connection, which can give an upgrade back and end without closing the transport."""

    __slots__ = ()

    def take_messages(self) -> bytes:
        """Remove the requests that wait; returns what was received behind them."""
        self._messages.clear()
        rest, self._message_tail = self._message_tail, b""
        return rest

    def end(self) -> None:
        task, self.transport = self._task_handler, None  # connection_lost would close it
        self.connection_lost(None)
        if task is not None:
            task.cancel()


def is_idle(handler: web.RequestHandler) -> bool:
    # aiohttp has no public way to tell whether a connection waits for a request; test_http_connections.py tests this.
    waiter = handler._waiter
    return waiter is not None and not waiter.done()


def _upgrade_head(message: object) -> bytes | None:
    """The head of a request that asks for a WebSocket, as it was sent; None for any other request."""
    if not isinstance(message, RawRequestMessage) or "Upgrade" not in message.headers:
        return None
    version = f"HTTP/{message.version.major}.{message.version.minor}"
    line = f"{message.method} {message.path} {version}".encode("utf-8", "surrogateescape")
    head = b"\r\n".join([line, *(name + b": " + value for name, value in message.raw_headers)])
    return head if wants_websocket(head) else None


@web.middleware
async def _no_pipelined_upgrade(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A `HttpConnection` takes every other upgrade before it gets here."""
    if "websocket" not in request.headers.get("Upgrade", "").lower():
        return await handler(request)
    refusal = error("an upgrade must not be sent before the previous response is complete", 400)
    refusal.force_close()
    return refusal
