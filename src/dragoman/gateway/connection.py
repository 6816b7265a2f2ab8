"""A WebSocket as endpoints see it. Another WebSocket server could replace picows behind these two interfaces.

Everything is a callback in the loop's thread, and nothing awaits:

- An endpoint gets `opened` first, then messages, then `closed` exactly once; nothing after `closed`.
- A message arrives whole, as bytes; the codec checks UTF-8.
- An exception in an endpoint closes its connection (1011) and no other.
- After `close` nothing is sent and nothing delivered, however long the socket takes to end.
"""

from collections.abc import Callable, Mapping
from typing import Protocol


class Connection(Protocol):
    @property
    def id(self) -> int:
        """Unique in this process."""

    @property
    def path(self) -> str: ...

    @property
    def query(self) -> Mapping[str, str]: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name."""

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port."""

    @property
    def closed(self) -> bool:
        """Nothing more will be sent or delivered."""

    @property
    def buffered(self) -> int:
        """Bytes waiting for the peer to read."""

    @property
    def frames(self) -> int:
        """Frames that the peer has sent, including pongs."""

    def ping(self) -> None:
        """Make the peer send a frame: every WebSocket answers a ping."""

    def send(self, data: bytes | str) -> None:
        """Send one text message; without effect once closed."""

    def send_binary(self, data: bytes) -> None: ...

    def frame(self, data: bytes) -> bytes:
        """A text message as every connection sends it, made once for many of them."""

    def send_frame(self, frame: bytes) -> None:
        """Send what `frame` has made. It is written at once, unless something waits to be written before it."""

    def flush(self) -> None:
        """Write what was sent at once, not at the end of this turn of the loop."""

    def pause_reading(self) -> None:
        """Stop reading from the peer; messages that were read before may still be delivered."""

    def resume_reading(self) -> None: ...

    def hold(self, seconds: float) -> None:
        """Deliver nothing more for so long; the peer notices only that its messages are handled later."""

    def refund(self) -> None:
        """Do not count the message that was delivered last against the frames per second."""

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame and end the connection, in bounded time whatever the peer does."""


class Endpoint(Protocol):
    def opened(self, conn: Connection) -> None: ...

    def text(self, conn: Connection, data: bytes) -> None: ...

    def binary(self, conn: Connection, data: bytes) -> None: ...

    def closed(self, conn: Connection) -> None: ...


EndpointFactory = Callable[[], Endpoint]
