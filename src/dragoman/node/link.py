"""One WebSocket connection to a server: whole messages in, messages and marks out. It never comes back; a new one does.

Callbacks run inside the event loop's read, so they must not wait. `closed` is done when the socket is gone, however
that came about.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

log = logging.getLogger("dragoman.node")

_MAX_FRAME = 16 * 2**20
_PING_IDLE_S = 10
_GOODBYE_S = 1.0
_NO_CODE = 1006


class Closed(NamedTuple):
    code: int
    reason: str


class Link(WSListener):
    def __init__(self, received: Callable[[bytes], None], read: Callable[[int], None]) -> None:
        self.closed: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()
        self._received = received
        self._read = read
        self._transport: WSTransport | None = None
        self._fragments: list[bytes] = []
        self._unwanted = False
        self._close = Closed(_NO_CODE, "the connection was lost")

    @classmethod
    async def open(
        cls, url: str, received: Callable[[bytes], None], read: Callable[[int], None], timeout_s: float
    ) -> "Link":
        """`received` gets each text message, `read` the mark of each `ask_read` the server has answered."""
        link = cls(received, read)
        try:
            # The handshake has its own limit, at which picows closes the socket; this one is for connecting.
            async with asyncio.timeout(2 * timeout_s):
                await ws_connect(
                    lambda: link,
                    url,
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

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, data)

    def ask_read(self, mark: int) -> None:
        """Pings; the pong proves that everything sent before was read."""
        if self._transport is not None:
            self._transport.send_ping(b"%d" % mark)

    async def close(self, code: WSCloseCode = WSCloseCode.OK) -> None:
        """Say goodbye, give the server a moment to answer, and be gone."""
        if self._transport is None:
            return
        self._transport.send_close(code)
        await asyncio.wait({self.closed}, timeout=_GOODBYE_S)
        self.abort()

    def abort(self) -> None:
        """Be gone without a word, as a machine that lost its power."""
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    # ------------------------------------------------------------ picows calls these

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if self._unwanted:
            self.abort()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(self._close)

    def is_user_specific_pong(self, frame: WSFrame) -> bool:
        # The keep-alive pings of picows are empty; pongs with a mark are ours.
        return frame.msg_type == WSMsgType.PONG and frame.payload_size == 0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.BINARY | WSMsgType.CONTINUATION:
                self._on_data(frame)
            case WSMsgType.PONG:
                mark = frame.get_payload_as_bytes()
                if mark.isdigit():
                    self._read(int(mark))
            case WSMsgType.CLOSE:
                payload = frame.get_payload_as_bytes()
                code = int.from_bytes(payload[:2], "big") or _NO_CODE
                self._close = Closed(code, payload[2:].decode("utf-8", "replace"))
                transport.send_close(frame.get_close_code())
                transport.disconnect()

    def _on_data(self, frame: WSFrame) -> None:
        self._fragments.append(frame.get_payload_as_bytes())
        if frame.fin:
            message = b"".join(self._fragments)
            self._fragments.clear()
            self._received(message)
