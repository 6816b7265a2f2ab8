"""Runs picows on a transport that the gateway has accepted itself. No other module depends on picows' internals.

picows has no public way to take an accepted transport, so this module builds its `WSProtocol`, which is not exported.
The version is pinned, and test_protocol_switch.py tests what is relied on. docs/internals/adr/0007 lists what picows
would have to offer instead. What one must know of its internals:

- `handshake` checks and answers the upgrade request. picows gets a fixed short one, and its response is dropped: it
  refuses browsers that send `Connection: keep-alive, Upgrade`, it would keep all headers for the life of the
  connection, and a large head would grow its read buffer for good.
- It gets the transport without `close` and `abort` (`_LentTransport`): on a protocol error picows drops the socket
  after 10 ms, and the close frame would be lost while data still arrives.
- Only its logger reports a protocol error before picows answers it (`_ErrorLog`).
- Its read buffer grows and never shrinks: calling `adopt` again gives a connection a small one.
- Its `send` writes at once, and beyond 8 KB it queues a view of its header that the next message overwrites. So frames
  are written to the transport, with a header of our own (`frame_header`).
"""

import asyncio
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import picows.picows as private
from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)

__all__ = ["TOO_BIG", "PicowsListener", "WSFrame", "WSMsgType", "WSTransport", "adopt", "feed", "frame_header"]

TOO_BIG = WSCloseCode.MESSAGE_TOO_BIG.value
_READ_BUFFER_BYTES = 2048
_ws_protocol: Callable[..., asyncio.BufferedProtocol] = private.WSProtocol  # type: ignore[attr-defined]
_UPGRADE = (
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class PicowsListener(WSListener, metaclass=ABCMeta):
    """One WebSocket, as picows calls it; `WSListener` has the other callbacks."""

    __slots__ = ()

    @property
    @abstractmethod
    def max_frame_bytes(self) -> int: ...

    @abstractmethod
    def on_protocol_error(self, code: int) -> None:
        """Close at once: the peer broke the protocol, and picows answers with `code` when this returns."""


def frame_header(kind: WSMsgType, size: int) -> bytes:
    """The header of a whole, unmasked frame."""
    first = 0x80 | kind  # type: ignore[operator]  # its stub hides that it is an IntEnum
    if size < 126:
        return bytes((first, size))
    if size < 65536:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


class _DroppedResponse(WSUpgradeResponse):
    """The response that is not sent."""

    def __init__(self) -> None:
        default = WSUpgradeResponse.create_101_response()
        self.version, self.status, self.headers, self.body = (
            default.version,
            default.status,
            default.headers,
            default.body,
        )

    def to_bytes(self) -> bytearray:
        return bytearray()


_SWITCHING = _DroppedResponse()


def adopt(transport: asyncio.Transport, listener: PicowsListener) -> None:
    """Let picows read `transport` for `listener`, with a small buffer.

    Called again, from a frame callback after the last byte that was read, it gives the listener a new small buffer.
    """

    def upgraded(request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        return WSUpgradeResponseWithListener(_SWITCHING, listener)

    protocol = _ws_protocol(
        None,  # host and port: clients only
        None,  # path: clients only
        False,  # is_client_side
        upgraded,
        _ErrorLog(listener),
        True,  # disconnect_on_exception; listeners raise no exception
        None,  # handshake timeout: the protocol switch has its own
        False,  # auto-ping would be a task per connection; the sweep sends pings
        0,
        0,
        WSAutoPingStrategy.PING_WHEN_IDLE,
        False,  # auto-pong would not count a flood of pings
        listener.max_frame_bytes,
        None,  # extra headers: clients only
        _READ_BUFFER_BYTES,
    )
    lent = _LentTransport(transport)
    transport.set_protocol(protocol)
    protocol.connection_made(cast(asyncio.Transport, lent))
    lent.write = _swallow
    feed(transport, _UPGRADE)


def feed(transport: asyncio.Transport, data: bytes) -> None:
    """Give `data` to the transport's protocol as if it had just been read."""
    rest = memoryview(data)
    while rest:
        # A callback may have replaced the protocol.
        protocol = cast(asyncio.BufferedProtocol, transport.get_protocol())
        room = memoryview(protocol.get_buffer(-1))
        size = min(len(room), len(rest))
        room[:size] = rest[:size]
        protocol.buffer_updated(size)
        rest = rest[size:]


def _swallow(data: bytes) -> None:
    pass


class _LentTransport:
    """A transport that picows can use but not close.

    picows looks up `write` for frames when it gets the transport, and again only for its response to the upgrade
    request: `write` is replaced in between. It cannot set options of the socket, nor read those it would log: the
    accepted socket has inherited the options that matter, and each would be a system call.
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
    """A socket of which only the file descriptor can be used."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def getsockopt(self, level: int, option: int) -> int:
        return 0

    def setsockopt(self, level: int, option: int, value: int) -> None:
        pass


class _ErrorLog:
    """The logger of picows, which reports protocol errors."""

    __slots__ = ("_listener",)

    def __init__(self, listener: PicowsListener) -> None:
        self._listener = listener

    def error(self, message: str, detail: object) -> None:
        match detail:
            case (int(code), str()):
                self._listener.on_protocol_error(int(code))
            case _:
                self.exception(message)

    def exception(self, message: str, *args: object) -> None:
        self._listener.on_protocol_error(private.WSCloseCode.PROTOCOL_ERROR.value)

    def isEnabledFor(self, level: int) -> bool:
        return False

    def ignore(self, *args: object) -> None:
        pass

    log = debug = info = warning = ignore
