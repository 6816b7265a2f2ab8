"""The first protocol of every accepted connection: gives it to the WebSocket server or to the HTTP server.

A `ProtocolSwitch` reads one request head and decides. A WebSocket upgrade waits in the handshake queue and then goes to
picows, any other request to aiohttp, with the transport and the bytes that have been read. After that the switch is out
of the way and costs nothing. Where trusted proxies begin their connections with a PROXY protocol header, it reads that
first. If a later request of an HTTP connection is an upgrade, `http_connections` gives the transport back to a new
switch.
"""

import asyncio
from dataclasses import replace
from typing import Protocol, cast

from dragoman.domain.limits.connections import ConnectionLimits
from dragoman.gateway.flow_control import LingeringClose
from dragoman.gateway.handshake import END_OF_HEAD, Reject, Request, accept, parse, wants_websocket
from dragoman.gateway.open_connections import OpenConnections
from dragoman.gateway.pacing import ACCEPTED, ANSWERED, UPGRADED, HandshakeQueue
from dragoman.gateway.picows_listener import PicowsListener, adopt, feed
from dragoman.gateway.proxies import BadForwarding, BadProxyHeader, Proxies, begins_proxy_header, read_proxy_header

_UNEXPECTED_HEADER = (
    "a PROXY protocol header is read only from server.trusted_proxies, and only with server.proxy_protocol = true"
)


class Router(Protocol):
    """What a switch needs of the listener."""

    @property
    def limits(self) -> ConnectionLimits: ...

    @property
    def registry(self) -> OpenConnections: ...

    @property
    def handshake_queue(self) -> HandshakeQueue: ...

    @property
    def proxies(self) -> Proxies: ...

    def open_websocket(self, request: Request, transport: asyncio.Transport) -> PicowsListener | Reject: ...

    def open_http(self, transport: asyncio.Transport, peer: tuple[str, int]) -> asyncio.Protocol | Reject: ...


class ProtocolSwitch(asyncio.Protocol):
    __slots__ = ("_end", "_expects_header", "_head", "_peer", "_router", "_transport")

    def __init__(self, router: Router) -> None:
        self._router = router
        self._head = bytearray()
        self._end = -1  # of the head of an upgrade that waits in the handshake queue
        self._peer = ("", 0)
        self._expects_header = False  # a PROXY protocol header is to come before the head

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = (self._transport.get_extra_info("peername") or ("", 0))[:2]
        self._expects_header = self._router.proxies.expects_header(self._peer[0])
        registry = self._router.registry
        registry.counters.accepted += 1
        registry.gc_pacing.created(ACCEPTED)
        if len(registry.awaiting_head) >= self._router.limits.max_heads:
            # Of connections that send nothing, the newest is the likeliest to be honest.
            registry.awaiting_head.expire_oldest()
        registry.awaiting_head.add(self, registry.clock())

    def upgrade_later(self, transport: asyncio.Transport, peer: tuple[str, int], head: bytes, rest: bytes) -> None:
        """Take over a connection that HTTP has served, for the upgrade request `head` and the bytes behind it."""
        self._transport, self._peer = transport, peer
        self._head += head + END_OF_HEAD + rest
        self._end = len(head)
        transport.set_protocol(self)
        self._router.handshake_queue.queue(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._router.registry.awaiting_head.discard(self)
        self._router.handshake_queue.remove(self)

    def data_received(self, data: bytes) -> None:
        if self._end >= 0:
            self._buffer_frames(data)
            return
        seen = max(len(self._head) - len(END_OF_HEAD) + 1, 0)
        self._head += data
        if self._expects_header:
            seen = 0
            if not self._read_proxy_header():
                return
        elif begins_proxy_header(self._head):
            self._refuse(Reject(400, _UNEXPECTED_HEADER))
            return
        end = self._head.find(END_OF_HEAD, seen)
        if end > self._router.limits.max_head_bytes or (
            end < 0 and len(self._head) > self._router.limits.max_head_bytes
        ):
            self._refuse(Reject(431, "the request head is too large"))
        elif end >= 0:
            self._decide(end)
        elif not 0x41 <= self._head[0] <= 0x5A:  # no HTTP method begins so: it is TLS, or noise
            self._refuse(Reject(400, "this port speaks plain HTTP, without TLS"))

    def _read_proxy_header(self) -> bool:
        """Whether the PROXY protocol header is complete, and the request has begun to arrive behind it."""
        try:
            found = read_proxy_header(self._head)
        except BadProxyHeader as why:
            self._refuse(Reject(400, str(why)))
            return False
        if found is None:
            return False
        self._expects_header = False
        self._peer = found.client or self._peer
        del self._head[: found.size]
        return bool(self._head)

    def expire(self) -> None:
        self._router.registry.counters.heads_dropped += 1
        if self._head:
            self._refuse(Reject(408, "the request head did not arrive in time"))
        else:
            self._transport.abort()

    def _decide(self, end: int) -> None:
        head = bytes(self._head[:end])
        if wants_websocket(head):
            self._end = end
            self._router.registry.awaiting_head.discard(self)
            self._router.handshake_queue.queue(self)
            return
        http = self._router.open_http(self._transport, self._peer)
        if isinstance(http, Reject):
            self._refuse(http)
            return
        self._router.registry.awaiting_head.discard(self)
        self._router.registry.gc_pacing.created(ANSWERED)
        self._transport.set_protocol(http)
        http.connection_made(self._transport)
        http.data_received(bytes(self._head))

    def _buffer_frames(self, data: bytes) -> None:
        """Frames that arrive before the response. Some are read, so that a client that disconnects is noticed."""
        self._head += data
        if len(self._head) > 2 * self._router.limits.max_head_bytes:
            self._transport.pause_reading()

    def do_handshake(self) -> None:
        self._upgrade(bytes(self._head[: self._end]), bytes(self._head[self._end + len(END_OF_HEAD) :]))

    def _upgrade(self, head: bytes, rest: bytes) -> None:
        if self._transport.is_closing():
            return
        checked = self._check(head)
        if isinstance(checked, Reject):
            self._refuse(checked)
            return
        answer, websocket = checked
        self._transport.write(answer)
        self._transport.resume_reading()
        adopt(self._transport, websocket)
        self._router.registry.gc_pacing.created(UPGRADED)
        feed(self._transport, rest)

    def _check(self, head: bytes) -> tuple[bytes, PicowsListener] | Reject:
        request = parse(head, self._peer)
        if isinstance(request, Reject):
            return request
        headers = request.headers
        try:
            peer = self._router.proxies.peer(*self._peer, lambda name: headers.get(name, ""))
        except BadForwarding as why:
            return Reject(400, str(why))
        if peer.proxy:
            request = replace(request, peer=(peer.address, peer.port), proxy=peer.proxy)
        answer = accept(request)
        if isinstance(answer, Reject):
            return answer
        websocket = self._router.open_websocket(request, self._transport)
        return websocket if isinstance(websocket, Reject) else (answer, websocket)

    def _refuse(self, reject: Reject) -> None:
        registry = self._router.registry
        registry.awaiting_head.discard(self)
        registry.counters.refused[reject.status] += 1
        self._transport.write(reject.to_bytes())
        LingeringClose(self._transport, registry).start()
