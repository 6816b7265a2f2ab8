"""One blocking connection to a server's Unix socket: enough to ask it whether it is there and to build a Cluster.

Not for the paths of the product, which have an asynchronous connection of their own.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hiredis


class Refused(Exception):
    """The server answered with an error."""


class Wire:
    def __init__(self, path: Path, patience_s: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(patience_s)
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def call(self, *command: str | bytes | int | float) -> Any:
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub takes one word only
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise Refused(str(reply))
        return reply

    def close(self) -> None:
        self._socket.close()


@contextmanager
def wire(path: Path, patience_s: float = 10.0) -> Iterator[Wire]:
    connection = Wire(path, patience_s)
    try:
        yield connection
    finally:
        connection.close()
