"""A WebSocket as endpoints see it. Another WebSocket server can take picows' place behind these two interfaces.

Everything is a callback in the loop's thread, and nothing awaits:

- An endpoint hears `opened` first, then messages, then `closed` exactly once; nothing after `closed`.
- A message arrives whole, as the bytes that came: UTF-8 is the codec's business.
- What an endpoint raises ends its own connection (1011) and nothing else.
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
        """How many the peer has sent, pongs among them."""

    def ping(self) -> None:
        """Have the peer send one: every WebSocket answers by itself."""

    def send(self, data: bytes | str) -> None:
        """Send one text message; without effect once closed."""

    def send_binary(self, data: bytes) -> None: ...

    def flush(self) -> None:
        """Write what was sent now, not at the end of this turn of the loop."""

    def pause_reading(self) -> None:
        """Take nothing more from the peer for now; what has been read already may still be delivered."""

    def resume_reading(self) -> None: ...

    def refund(self) -> None:
        """The message that was delivered last does not count against the frames a second."""

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame and end the connection, in bounded time whatever the peer does."""


class Endpoint(Protocol):
    def opened(self, conn: Connection) -> None: ...

    def text(self, conn: Connection, data: bytes) -> None: ...

    def binary(self, conn: Connection, data: bytes) -> None: ...

    def closed(self, conn: Connection) -> None: ...


EndpointFactory = Callable[[], Endpoint]
