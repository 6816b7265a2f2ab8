"""How a client and a node stay connected to a server: one WebSocket, the next one, and the delays in between.

    Connector.connect → ClientWebSocket … closed → Connector.lost → Backoff → Connector.connect …

A `ClientWebSocket` is one connection and is never reopened. A `Connector` opens one after another: it rotates through
the addresses, waits longer after each failure, and gives up when no server answers for too long or a server says that
reconnecting is pointless. The caller decides what to send, and what to resend after a reconnect.
"""

import asyncio
import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from logging import Logger
from random import Random
from ssl import SSLContext
from typing import Generic, NamedTuple, TypeVar

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSInvalidStatusError,
    WSInvalidURL,
    WSListener,
    WSMsgType,
    WSTransport,
    ws_connect,
)

from dragoman.protocol.codes import Close, may_come_back

_MAX_FRAME_BYTES = 16 * 2**20
_PING_IDLE_S = 10
_CLOSE_TIMEOUT_S = 1.0
_NO_CLOSE_CODE = 1006
_REFUSED_STATUS = {401: "UNAUTHORIZED", 403: "FORBIDDEN"}

OnMessage = Callable[[bytes], None]
OnPong = Callable[[int], None]
T = TypeVar("T")


class ReceiveQueue(Generic[T]):
    """Items between the callback of a socket, which cannot wait, and a reader. Each item is read once."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_ended(self) -> bool:
        return self._ended

    def _add(self, item: T) -> None:
        self._items.append(item)
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        """No more items follow. Readers get those that wait, then `error` is raised if there is one."""
        if not self._ended:
            self._ended, self._error = True, error
        self._changed.set()

    async def get(self) -> T | None:
        """The next item; None at the end."""
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()


class ServerUnreachable(Exception):
    """No server answered within the time that the caller allows. The message says why the last attempt failed."""


class ConnectionRefused(Exception):
    """The server refused the connection for good: reconnecting does not help.

    `code` is an HTTP status or a WebSocket close code, `name` its name in the protocol, `reason` the server's words.
    """

    def __init__(self, url: str, code: int, name: str, reason: str) -> None:
        super().__init__(f"{url} refused the connection: {reason or 'no reason given'}")
        self.url = url
        self.code = code
        self.name = name
        self.reason = reason


class Backoff:
    """How long to wait before the next attempt: the upper bound doubles after each failure, the delay is random.

    Full jitter spreads the clients of a dead instance over time. The count of failures is reset only by a connection
    that lasted `steady_s`, so a server that accepts and drops connections at once is not flooded.
    """

    def __init__(
        self, first_s: float = 0.25, longest_s: float = 5.0, steady_s: float = 5.0, rng: Random | None = None
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._steady_s = steady_s
        self._rng = rng or Random()
        self._failures = 0

    def delay_s(self) -> float:
        """The delay before the next attempt; counts a failure."""
        # The exponent is bounded: after days of failures 2.0 ** n would overflow.
        ceiling_s = min(self._longest_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return self._rng.uniform(0, ceiling_s)

    def lasted(self, seconds: float) -> None:
        """A connection lasted so long."""
        if seconds >= self._steady_s:
            self._failures = 0


class Closed(NamedTuple):
    """Why a connection ended: the close code and reason of the server, or 1006 if there was no close frame."""

    code: int
    reason: str


class Frame(NamedTuple):
    data: bytes
    binary: bool = False


class ClientWebSocket(WSListener):
    """The client's end of one WebSocket: whole messages in, frames out.

    `closed` is done when the socket is gone, for whatever reason. `writable` is set while the socket accepts data, and
    when it is gone. Callbacks run inside the event loop's read and must not block.
    """

    def __init__(self, on_message: OnMessage, on_pong: OnPong = lambda mark: None) -> None:
        self.closed: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        self.writable.set()
        self._on_message = on_message
        self._on_pong = on_pong
        self._transport: WSTransport | None = None
        self._fragments: list[bytes] = []
        self._abandoned = False
        self._close_timer: asyncio.TimerHandle | None = None
        self._closed = Closed(_NO_CLOSE_CODE, "the connection was lost")

    @classmethod
    async def open(
        cls,
        url: str,
        on_message: OnMessage,
        on_pong: OnPong = lambda mark: None,
        *,
        timeout_s: float,
        ssl: SSLContext | None = None,
    ) -> "ClientWebSocket":
        """Connect. `on_message` gets each message, `on_pong` the mark of each `ping` that the server answered."""
        socket = cls(on_message, on_pong)
        try:
            # picows limits the handshake and closes the socket then; the outer timeout covers DNS and TCP.
            async with asyncio.timeout(2 * timeout_s):
                await ws_connect(
                    lambda: socket,
                    url,
                    ssl_context=ssl,
                    disconnect_on_exception=False,
                    websocket_handshake_timeout=timeout_s,
                    enable_auto_ping=True,
                    auto_ping_idle_timeout=_PING_IDLE_S,
                    auto_ping_reply_timeout=_PING_IDLE_S,
                    max_frame_size=_MAX_FRAME_BYTES,
                )
        except BaseException:
            # A handshake that was abandoned may still succeed; `on_ws_connected` then closes the socket.
            socket._abandoned = True
            socket.abort()
            raise
        if socket._transport is None and not socket.closed.done():
            # picows returns as after a success, and calls neither `on_ws_connected` nor `on_ws_disconnected`.
            raise ConnectionResetError("the server closed the connection during the handshake")
        return socket

    def send(self, frame: Frame) -> None:
        """Does nothing if the connection is gone."""
        if self._transport is not None:
            self._transport.send(WSMsgType.BINARY if frame.binary else WSMsgType.TEXT, frame.data)

    def ping(self, mark: int) -> None:
        """The pong calls `on_pong(mark)` and proves that the server read everything sent before the ping."""
        if self._transport is not None:
            self._transport.send_ping(b"%d" % mark)

    def start_closing(self) -> None:
        """Send a close frame; cut the connection if the server does not answer it within a second."""
        if self._transport is not None and self._close_timer is None:
            self._transport.send_close(WSCloseCode.OK)
            self._close_timer = asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, self.abort)

    async def close(self) -> None:
        """Close with a close frame, and wait until the connection is gone."""
        self.start_closing()
        await asyncio.wait({self.closed})

    def abort(self) -> None:
        """Cut the connection without a close frame, as a machine that loses its power does."""
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def pause_reading(self) -> None:
        """Stop reading the socket: first the buffers of the kernel fill up, then those of the server."""
        if self._transport is not None:
            self._transport.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.underlying_transport.resume_reading()

    # ------------------------------------------------------------ callbacks of picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if self._abandoned:
            self.abort()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.writable.set()
        if not self.closed.done():
            self.closed.set_result(self._closed)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def is_user_specific_pong(self, frame: WSFrame) -> bool:
        # The keep-alive pings of picows are empty; pongs with a payload answer our own.
        return frame.msg_type == WSMsgType.PONG and frame.payload_size == 0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.BINARY | WSMsgType.CONTINUATION:
                self._fragments.append(frame.get_payload_as_bytes())
                if frame.fin:
                    message = b"".join(self._fragments)
                    self._fragments.clear()
                    self._on_message(message)
            case WSMsgType.PONG:
                mark = frame.get_payload_as_bytes()
                if mark.isdigit():
                    self._on_pong(int(mark))
            case WSMsgType.CLOSE:
                payload = frame.get_payload_as_bytes()
                code = int.from_bytes(payload[:2], "big") or _NO_CLOSE_CODE
                self._closed = Closed(code, payload[2:].decode("utf-8", "replace"))
                transport.send_close(frame.get_close_code())
                transport.disconnect()


class Connector:
    """Opens one connection after another, to the next address each time.

    Before the first success each address is tried once and without delay, because a caller waits for the answer; with
    `keep_trying` it is tried for ever. After a connection was lost, a new one is tried for `reconnect_s`. `on_failure`
    gets the reason of each failed attempt.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        backoff: Backoff,
        log: Logger,
        *,
        connect_s: float,
        reconnect_s: float = float("inf"),
        keep_trying: bool = False,
        on_failure: Callable[[str], None] = lambda reason: None,
        ssl: SSLContext | None = None,
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        if not urls:
            raise ValueError("at least one address of a server is needed")
        self.url = ""  # of the current or last attempt, without secrets
        self._urls = cycle(urls)
        self._backoff = backoff
        self._log = log
        self._connect_s = connect_s
        self._reconnect_s = reconnect_s
        self._on_failure = on_failure
        self._ssl = ssl
        self._untried = None if keep_trying else len(urls)  # addresses of the first round; None after it
        self._deadline: float | None = None
        self._delay_s = 0.0
        self._opened_at: float | None = None

    async def connect(self, on_message: OnMessage, on_pong: OnPong = lambda mark: None) -> ClientWebSocket:
        """The next connection. Raises ServerUnreachable, ConnectionRefused, and ValueError for a malformed address."""
        while True:
            delay_s, self._delay_s = self._delay_s, 0.0
            await asyncio.sleep(delay_s)
            address = next(self._urls)
            url = self.url = _without_secrets(address)
            self._log.info("connecting to %s", url)
            try:
                return await ClientWebSocket.open(
                    address, on_message, on_pong, timeout_s=self._connect_s, ssl=self._ssl
                )
            except WSInvalidURL:
                raise ValueError(f"{url!r} is not a valid URL of a server, such as ws://127.0.0.1:5010/…") from None
            except WSInvalidStatusError as error:
                status = int(error.response.status) if error.response is not None else 0
                if status in _REFUSED_STATUS:
                    raise ConnectionRefused(url, status, _REFUSED_STATUS[status], f"HTTP {status}") from error
                reason = f"HTTP {status}"
            except TimeoutError:
                reason = f"no answer within {self._connect_s:g} s"
            except (OSError, WSError) as error:
                reason = _reason(error)
            self._on_failure(reason)
            self._retry_or_raise(f"not connected to {url}: {reason}")

    def opened(self) -> None:
        """The server accepted the caller on the connection that `connect` returned."""
        self._untried = None
        self._deadline = None
        self._opened_at = time.monotonic()

    def lost(self, closed: Closed) -> None:
        """The connection is gone. Raises ConnectionRefused if the server does not want it back."""
        now = time.monotonic()
        if self._opened_at is not None:
            self._backoff.lasted(now - self._opened_at)
            self._opened_at = None
        if not may_come_back(closed.code):
            name = Close(closed.code).name if closed.code in set(Close) else str(closed.code)
            raise ConnectionRefused(self.url, closed.code, name, closed.reason)
        self._untried = None
        if self._deadline is None:
            self._deadline = now + self._reconnect_s
        self._retry_or_raise(f"lost the connection to {self.url}: {closed.code} {closed.reason}".rstrip())

    def _retry_or_raise(self, why: str) -> None:
        """Decide when the next attempt is due. Raises ServerUnreachable if there is none."""
        if self._untried is not None:
            self._untried -= 1
            over = self._untried == 0
        else:
            over = self._deadline is not None and time.monotonic() >= self._deadline
            self._delay_s = self._backoff.delay_s()
        if over:
            raise ServerUnreachable(why)
        self._log.info("%s; trying again in %.1f s", why, self._delay_s)


def _without_secrets(url: str) -> str:
    """The URL as a log may show it: without query, where a token may be, and without user and password."""
    return re.sub(r"//[^/@]*@", "//", url.partition("?")[0])


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
