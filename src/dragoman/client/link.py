"""One WebSocket connection to a server: whole messages in, frames out. It never comes back; a new one does.

Callbacks run inside the event loop's read, so they must not wait. `closed` is done when the socket is gone, however
that came about; `writable` is set while the socket takes what it is given, and when it is gone.
"""

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import NamedTuple

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

_MAX_FRAME = 16 * 2**20
_PING_IDLE_S = 10
_GOODBYE_S = 1.0
_NO_CODE = 1006


class Closed(NamedTuple):
    code: int
    reason: str


class Frame(NamedTuple):
    data: bytes
    binary: bool = False


class Link(WSListener):
    def __init__(self, received: Callable[[bytes], None]) -> None:
        self.closed: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        self.writable.set()
        self._received = received
        self._transport: WSTransport | None = None
        self._fragments: list[bytes] = []
        self._unwanted = False
        self._hanging_up: asyncio.TimerHandle | None = None
        self._close = Closed(_NO_CODE, "the connection was lost")

    @classmethod
    async def open(
        cls, url: str, received: Callable[[bytes], None], timeout_s: float, ssl: SSLContext | None = None
    ) -> "Link":
        """`received` gets each message."""
        link = cls(received)
        try:
            # The handshake has its own limit, at which picows closes the socket; this one is for connecting.
            async with asyncio.timeout(2 * timeout_s):
                await ws_connect(
                    lambda: link,
                    url,
                    ssl_context=ssl,
                    disconnect_on_exception=False,
                    websocket_handshake_timeout=timeout_s,
                    enable_auto_ping=True,
                    auto_ping_idle_timeout=_PING_IDLE_S,
                    auto_ping_reply_timeout=_PING_IDLE_S,
                    max_frame_size=_MAX_FRAME,
                )
        except BaseException:
            # A handshake we no longer wait for may still succeed.
            link._unwanted = True
            link.abort()
            raise
        return link

    def send(self, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.BINARY if frame.binary else WSMsgType.TEXT, frame.data)

    def hang_up(self) -> None:
        """Say goodbye, give the server a moment to answer, and be gone."""
        if self._transport is not None and self._hanging_up is None:
            self._transport.send_close(WSCloseCode.OK)
            self._hanging_up = asyncio.get_running_loop().call_later(_GOODBYE_S, self.abort)

    async def close(self) -> None:
        self.hang_up()
        await asyncio.wait({self.closed})

    def abort(self) -> None:
        """Be gone without a word."""
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    # ------------------------------------------------------------ picows calls these

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if self._unwanted:
            self.abort()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        if self._hanging_up is not None:
            self._hanging_up.cancel()
        self.writable.set()
        if not self.closed.done():
            self.closed.set_result(self._close)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.BINARY | WSMsgType.CONTINUATION:
                self._fragments.append(frame.get_payload_as_bytes())
                if frame.fin:
                    message = b"".join(self._fragments)
                    self._fragments.clear()
                    self._received(message)
            case WSMsgType.CLOSE:
                payload = frame.get_payload_as_bytes()
                code = int.from_bytes(payload[:2], "big") or _NO_CODE
                self._close = Closed(code, payload[2:].decode("utf-8", "replace"))
                transport.send_close(frame.get_close_code())
                transport.disconnect()
