"""A client's or node's socket, as far as services care. The gateway's connections are such."""

from typing import Protocol


class Socket(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def closed(self) -> bool: ...

    @property
    def peer(self) -> tuple[str, int]: ...

    def send(self, data: bytes | str) -> None: ...

    def flush(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None: ...
