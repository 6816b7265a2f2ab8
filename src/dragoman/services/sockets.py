"""The socket of a client or node, as services use it. The gateway's connections have this interface."""

from typing import Protocol


class Socket(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def closed(self) -> bool: ...

    @property
    def buffered(self) -> int:
        """Bytes waiting for the peer to read."""

    @property
    def peer(self) -> tuple[str, int]: ...

    def send(self, data: bytes | str) -> None: ...

    def flush(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None: ...


class MemberSocket(Socket, Protocol):
    """That of a member of a room, who gets the same messages as many others."""

    def frame(self, data: bytes) -> bytes:
        """A message as every socket sends it, made once for many of them."""

    def send_frame(self, frame: bytes) -> None:
        """Send what `frame` has made. It is written at once, unless something waits to be written before it."""


class Attachment:
    """The socket of a session, or none while the session is detached. Messages are dropped meanwhile."""

    __slots__ = ("socket",)

    def __init__(self, socket: Socket | None = None) -> None:
        self.socket = socket

    def attach(self, socket: Socket | None) -> None:
        self.socket = socket

    def send(self, frame: bytes) -> None:
        if self.socket is not None:
            self.socket.send(frame)

    def close(self, code: int, reason: str = "") -> None:
        if self.socket is not None:
            self.socket.close(code, reason)
