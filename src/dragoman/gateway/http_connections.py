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
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from aiohttp.http import RawRequestMessage

from dragoman.domain.limits.connections import ConnectionLimits, PerAddressLimit
from dragoman.gateway.authentication import Principal
from dragoman.gateway.handshake import wants_websocket
from dragoman.gateway.http_messages import error
from dragoman.gateway.open_connections import OpenConnections
from dragoman.gateway.proxies import BadForwarding, Peer, Proxies

_DOZE_S = 0.1  # who has been answered is looked for this often

_RETRY_AFTER_S = 5

# The transport, its peer, the request head, the bytes behind it
Upgrade = Callable[[asyncio.Transport, tuple[str, int], bytes, bytes], None]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_PEER = web.RequestKey("peer", Peer)
OPERATOR = web.RequestKey("operator", Principal)  # of a request that needs one


def peer_of(request: web.Request) -> Peer:
    """Who sent it; behind trusted proxies the client."""
    return request.get(_PEER) or Peer(request.remote or "")


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


class HttpConnections:
    def __init__(
        self,
        app: web.Application,
        limits: ConnectionLimits,
        proxies: Proxies,
        registry: OpenConnections,
        upgrade: Upgrade,
    ) -> None:
        app.middlewares[:0] = [_no_pipelined_upgrade, self._of_its_client]
        self._proxies = proxies
        self.upgrade = upgrade
        self.max_rest_bytes = 2 * limits.max_head_bytes
        self._most = limits.max_http_connections
        self._unread_s = limits.out_queue_age_s
        self.idle_poller, self._counters = registry.idle_poller, registry.counters
        self._taken: dict[HttpConnection, None] = {}  # in the order they came
        self._by_handler: dict[web.RequestHandler, HttpConnection] = {}
        self._awake: set[HttpConnection] = set()
        self._dozing = False  # there will be a look at who is awake
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
        for connection in list(self._taken):
            self._cut_off(connection)

    def take(self, transport: asyncio.Transport, peer: tuple[str, int], now: float) -> asyncio.Protocol | None:
        """A protocol for one more connection; None: all places it could have are taken by who is being answered."""
        address = None if self._proxies.trusts(peer[0]) else peer[0]
        if address is not None and self._addresses.is_full(address):
            if not self._make_room([connection for connection in self._taken if connection.address == address]):
                return None
        elif len(self._taken) >= self._most and not self._make_room(self._taken):
            return None
        assert self._runner.server is not None
        connection = HttpConnection(self, self._runner.server(), transport, peer, address, now)
        self._taken[connection] = None
        self._by_handler[connection.handler] = connection
        if address is not None:
            self._addresses.add(address)
        self.awake(connection)
        return connection

    def sweep(self, now: float) -> None:
        for connection in list(self._taken):
            if connection.unread.age(connection.transport.get_write_buffer_size(), now) > self._unread_s:
                self._cut_off(connection)

    def close_operators(self, is_revoked: Callable[[Principal], bool]) -> None:
        """Close the connections whose latest request was one of a revoked operator. A proxy's carries those of others
        as well, and stays."""
        for connection in list(self._taken):
            operator = (
                connection.request.get(OPERATOR)
                if connection.request is not None and connection.address is not None
                else None
            )
            if operator is not None and is_revoked(operator):
                self._cut_off(connection)

    def awake(self, connection: "HttpConnection") -> None:
        self._awake.add(connection)
        if not self._dozing:
            self._dozing = True
            asyncio.get_running_loop().call_later(_DOZE_S, self._doze)

    def asleep(self, connection: "HttpConnection") -> None:
        self._awake.discard(connection)

    def ended(self, connection: "HttpConnection") -> None:
        self.asleep(connection)
        if connection in self._taken:
            del self._taken[connection], self._by_handler[connection.handler]
            if connection.address is not None:
                self._addresses.drop(connection.address)

    def _doze(self) -> None:
        self._dozing = False
        awake, self._awake = self._awake, set()
        for connection in awake:
            if is_idle(connection.handler) and not connection.transport.is_closing():
                connection.rest()
            else:
                self.awake(connection)

    @web.middleware
    async def _of_its_client(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Finds out whose request it is. One that came through a trusted proxy counts for its client."""
        connection = self._by_handler.get(request.protocol)
        if connection is None:  # it was cut off
            return await handler(request)
        try:
            peer = self._proxies.peer(*connection.peer, lambda name: ", ".join(request.headers.getall(name, ())))
        except BadForwarding as why:
            self._counters.refused[400] += 1
            return error(str(why), 400)
        request[_PEER] = peer
        connection.began(request)
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
        leaving = next((connection for connection in among if is_idle(connection.handler)), None) or _least_read(among)
        if leaving is None:
            return False
        self._cut_off(leaving)
        return True

    def _cut_off(self, connection: "HttpConnection") -> None:
        self.ended(connection)
        connection.handler.force_close()  # as when its time to stay is over
        connection.transport.abort()  # if something is unread; otherwise it is closed by now


class HttpConnection(asyncio.Protocol):
    """One connection, between its transport and aiohttp: we are to know when it speaks and when it has ended."""

    __slots__ = ("_idle_fd", "_owner", "_upgrade", "address", "handler", "peer", "request", "transport", "unread")

    def __init__(
        self,
        owner: HttpConnections,
        handler: web.RequestHandler,
        transport: asyncio.Transport,
        peer: tuple[str, int],
        address: str | None,
        now: float,
    ) -> None:
        """`address`: the one it counts for; None: a trusted proxy's connection counts for none."""
        self.handler, self.transport, self.peer, self.address = handler, transport, peer, address
        self.unread = Unread(now)
        self._owner = owner
        self._idle_fd: int | None = None
        self.request: web.Request | None = None  # the latest one
        self._upgrade: tuple[bytes, bytearray] | None = None  # its head and the bytes behind it, until aiohttp is idle

    # --- what the transport tells ---

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
        self._owner.asleep(self)
        # Who asks and leaves is answered all the same, and has its place until then.
        answering = self.handler._task_handler
        self.handler.connection_lost(exc)
        if answering is None or answering.done():
            self._owner.ended(self)
        else:
            answering.add_done_callback(lambda _: self._owner.ended(self))

    def began(self, request: web.Request) -> None:
        self.request = request

    # --- an upgrade ---

    def _take_upgrade(self, head: bytes, idle: bool) -> None:
        handler = self.handler
        self._upgrade = head, bytearray(handler._message_tail)
        handler._messages.clear()
        handler._message_tail = b""
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
        self._owner.ended(self)
        handler, task = self.handler, self.handler._task_handler
        handler.transport = None  # connection_lost would close it
        handler.connection_lost(None)
        if task is not None:
            task.cancel()
        self._owner.upgrade(self.transport, self.peer, head, bytes(rest))

    # --- between two requests ---

    def rest(self) -> None:
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
            self._owner.awake(self)


def _least_read(among: Iterable[HttpConnection]) -> HttpConnection | None:
    waiting = (connection for connection in among if connection.transport.get_write_buffer_size())
    return min(waiting, key=lambda connection: connection.unread.since, default=None)


def is_idle(handler: web.RequestHandler) -> bool:
    # aiohttp says nowhere in public whether a connection waits for a request: test_http_connections.py states it.
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
