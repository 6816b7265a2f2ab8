"""One port, two servers: WebSockets go to picows, everything else to aiohttp.

A `Sniffer` is the first protocol of every accepted connection. It reads one request head, decides, and gives the
transport to the one or the other together with the bytes it has read; after that it is out of the way and costs
nothing. Where trusted proxies begin their connections with a PROXY protocol header, it reads that first. An upgrade
waits for the doorman. If it is a later request of a connection that aiohttp serves, `http_places` gives the transport
back to a new sniffer.

picows has no public way to take an accepted transport, so this module builds its `WSProtocol`, which is not
exported: the version is pinned and test_sniffer.py states what is relied on. What must be known of its insides:

- The upgrade request is judged and answered by `handshake`. picows is fed a fixed short one and its answer is thrown
  away: it refuses browsers that say `Connection: keep-alive, Upgrade`, it would keep all headers for the connection's
  life, and a large head would grow its read buffer for good.
- It is lent the transport without its end (`_Lent`): on a protocol error picows drops the socket after 10 ms, too
  early for the close frame to survive the data that is still coming in.
- Its logger is the only place where it tells of a protocol error before answering it (`_Complaints`).
- Its read buffer grows and never shrinks: `adopt` again is how a connection gets a small one back.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, cast

import picows.picows as private
from picows import WSAutoPingStrategy, WSListener, WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener

from dragoman.gateway import proxy_protocol
from dragoman.gateway.doorman import Doorman
from dragoman.gateway.drain import Drain
from dragoman.gateway.handshake import END_OF_HEAD, Reject, Request, accept, parse, wants_websocket
from dragoman.gateway.limits import Limits
from dragoman.gateway.nursery import ACCEPTED, ANSWERED, UPGRADED
from dragoman.gateway.proxies import BadForwarding, Proxies
from dragoman.gateway.roster import Roster

_READ_BUFFER_BYTES = 2048
_ws_protocol: Callable[..., asyncio.BufferedProtocol] = private.WSProtocol  # type: ignore[attr-defined]
_UPGRADE = (
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)

_NO_PREAMBLE = (
    "a PROXY protocol header is read only from server.trusted_proxies, and only with server.proxy_protocol = true"
)


class _Unheard(WSUpgradeResponse):
    """The answer that is thrown away."""

    def __init__(self) -> None:
        usual = WSUpgradeResponse.create_101_response()
        self.version, self.status, self.headers, self.body = usual.version, usual.status, usual.headers, usual.body

    def to_bytes(self) -> bytearray:
        return bytearray()


_SWITCHING = _Unheard()


class Guest(WSListener):
    """A WebSocket that picows serves for us."""

    __slots__ = ()

    limits: Limits

    def violated(self, code: int) -> None:
        """The peer broke the protocol, which picows would answer with `code`: to be closed here and now."""
        raise NotImplementedError


class Door(Protocol):
    """What a sniffer asks of the listener."""

    @property
    def limits(self) -> Limits: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def doorman(self) -> Doorman: ...

    @property
    def proxies(self) -> Proxies: ...

    def admit(self, request: Request, transport: asyncio.Transport) -> Guest | Reject: ...

    def serve_http(self, transport: asyncio.Transport, peer: tuple[str, int]) -> asyncio.Protocol | Reject: ...


class Sniffer(asyncio.Protocol):
    __slots__ = ("_door", "_end", "_head", "_peer", "_preamble", "_transport")

    def __init__(self, door: Door) -> None:
        self._door = door
        self._head = bytearray()
        self._end = -1  # of the head of an upgrade that waits for the doorman
        self._peer = ("", 0)
        self._preamble = False  # a PROXY protocol header is to come before the head

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = (self._transport.get_extra_info("peername") or ("", 0))[:2]
        self._preamble = self._door.proxies.expects_header(self._peer[0])
        roster = self._door.roster
        roster.counters.accepted += 1
        roster.nursery.made(ACCEPTED)
        if len(roster.heads) >= self._door.limits.max_heads:
            # Of connections that say nothing the newest is the likeliest to be honest.
            roster.heads.expire_oldest()
        roster.heads.add(self, roster.clock())

    def upgrade_later(self, transport: asyncio.Transport, peer: tuple[str, int], head: bytes, rest: bytes) -> None:
        """Take over a connection that HTTP has served, for the upgrade request `head` and the bytes behind it."""
        self._transport, self._peer = transport, peer
        self._head += head + END_OF_HEAD + rest
        self._end = len(head)
        transport.set_protocol(self)
        self._door.doorman.queue(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.roster.heads.discard(self)
        self._door.doorman.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._end >= 0:
            self._more(data)
            return
        seen = max(len(self._head) - len(END_OF_HEAD) + 1, 0)
        self._head += data
        if self._preamble:
            seen = 0
            if not self._read_preamble():
                return
        elif proxy_protocol.begins(self._head):
            self._refuse(Reject(400, _NO_PREAMBLE))
            return
        end = self._head.find(END_OF_HEAD, seen)
        if end > self._door.limits.max_head_bytes or (end < 0 and len(self._head) > self._door.limits.max_head_bytes):
            self._refuse(Reject(431, "the request head is too large"))
        elif end >= 0:
            self._decide(end)
        elif not 0x41 <= self._head[0] <= 0x5A:  # no method begins so: TLS, or noise
            self._refuse(Reject(400, "plain HTTP is spoken here"))

    def _read_preamble(self) -> bool:
        """Whether it was there, and something of the request has arrived behind it."""
        try:
            found = proxy_protocol.read(self._head)
        except proxy_protocol.BadProxyHeader as why:
            self._refuse(Reject(400, str(why)))
            return False
        if found is None:
            return False
        self._preamble = False
        self._peer = found.client or self._peer
        del self._head[: found.size]
        return bool(self._head)

    def expire(self) -> None:
        self._door.roster.counters.heads_dropped += 1
        if self._head:
            self._refuse(Reject(408, "the request head did not arrive in time"))
        else:
            self._transport.abort()

    def _decide(self, end: int) -> None:
        head = bytes(self._head[:end])
        if wants_websocket(head):
            self._end = end
            self._door.roster.heads.discard(self)
            self._door.doorman.queue(self)
            return
        http = self._door.serve_http(self._transport, self._peer)
        if isinstance(http, Reject):
            self._refuse(http)
            return
        self._door.roster.heads.discard(self)
        self._door.roster.nursery.made(ANSWERED)
        self._transport.set_protocol(http)
        http.connection_made(self._transport)
        http.data_received(bytes(self._head))

    def _more(self, data: bytes) -> None:
        """Frames before the answer. A little of it is read on, so that we notice when the client has left."""
        self._head += data
        if len(self._head) > 2 * self._door.limits.max_head_bytes:
            self._transport.pause_reading()

    def come_in(self) -> None:
        self._upgrade(bytes(self._head[: self._end]), bytes(self._head[self._end + len(END_OF_HEAD) :]))

    def _upgrade(self, head: bytes, rest: bytes) -> None:
        if self._transport.is_closing():
            return
        judged = self._judge(head)
        if isinstance(judged, Reject):
            self._refuse(judged)
            return
        answer, guest = judged
        self._transport.write(answer)
        self._transport.resume_reading()
        adopt(self._transport, guest)
        self._door.roster.nursery.made(UPGRADED)
        feed(self._transport, rest)

    def _judge(self, head: bytes) -> tuple[bytes, Guest] | Reject:
        request = parse(head, self._peer)
        if isinstance(request, Reject):
            return request
        headers = request.headers
        try:
            peer = self._door.proxies.peer(*self._peer, lambda name: headers.get(name, ""))
        except BadForwarding as why:
            return Reject(400, str(why))
        if peer.proxy:
            request = replace(request, peer=(peer.address, peer.port), proxy=peer.proxy)
        answer = accept(request)
        if isinstance(answer, Reject):
            return answer
        guest = self._door.admit(request, self._transport)
        return guest if isinstance(guest, Reject) else (answer, guest)

    def _refuse(self, reject: Reject) -> None:
        roster = self._door.roster
        roster.heads.discard(self)
        roster.counters.refused[reject.status] += 1
        self._transport.write(reject.to_bytes())
        Drain(self._transport, roster).start()


def adopt(transport: asyncio.Transport, guest: Guest) -> None:
    """Let picows read `transport` for `guest` from here on, with a small buffer.

    Called again, from a frame callback after the last byte that was read, it gives the guest a fresh buffer.
    """

    def upgraded(request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        return WSUpgradeResponseWithListener(_SWITCHING, guest)

    protocol = _ws_protocol(
        None,  # host and port: clients only
        None,  # path: clients only
        False,  # is_client_side
        upgraded,
        _Complaints(guest),
        True,  # disconnect_on_exception; guests raise none
        None,  # handshake time-out: the sniffer had its own
        False,  # auto-ping would be a task a connection; the roster's sweep does it
        0,
        0,
        WSAutoPingStrategy.PING_WHEN_IDLE,
        False,  # auto-pong would let a flood of pings pass uncounted
        guest.limits.max_frame_bytes,
        None,  # extra headers: clients only
        _READ_BUFFER_BYTES,
    )
    lent = _Lent(transport)
    transport.set_protocol(protocol)
    protocol.connection_made(cast(asyncio.Transport, lent))
    lent.write = _swallow
    feed(transport, _UPGRADE)


def feed(transport: asyncio.Transport, data: bytes) -> None:
    """Give `data` to the transport's protocol as if it had just been read."""
    rest = memoryview(data)
    while rest:
        # Asked for each time: a callback may have put another protocol in its place.
        protocol = cast(asyncio.BufferedProtocol, transport.get_protocol())
        room = memoryview(protocol.get_buffer(-1))
        size = min(len(room), len(rest))
        room[:size] = rest[:size]
        protocol.buffer_updated(size)
        rest = rest[size:]


def _swallow(data: bytes) -> None:
    pass


class _Lent:
    """A transport that whoever it is lent to can use but not end.

    picows takes the `write` it will use for frames when it is given the transport, and looks it up again only for
    its answer to the upgrade request: `write` is set in between. It is not given the socket to set options of, and
    to ask for those it would log: what matters the listening socket has handed down, and each is a system call.
    """

    __slots__ = ("_transport", "write")

    write: Callable[[bytes], None]

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = self._transport.get_extra_info(name, default)
        return _Descriptor(found.fileno()) if name == "socket" else found

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class _Descriptor:
    """A socket of which nothing but the number is told."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def getsockopt(self, level: int, option: int) -> int:
        return 0

    def setsockopt(self, level: int, option: int, value: int) -> None:
        pass


class _Complaints:
    """Stands where picows wants a logger, and hears of protocol errors."""

    __slots__ = ("_guest",)

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    def error(self, message: str, complaint: object) -> None:
        match complaint:
            case (int(code), str()):
                self._guest.violated(int(code))
            case _:
                self.exception(message)

    def exception(self, message: str, *args: object) -> None:
        self._guest.violated(private.WSCloseCode.PROTOCOL_ERROR.value)

    def isEnabledFor(self, level: int) -> bool:
        return False

    def ignore(self, *args: object) -> None:
        pass

    log = debug = info = warning = ignore
