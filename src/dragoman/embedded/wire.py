"""A blocking connection to the Unix socket of a server: to ping it, and to build a Cluster.

The product itself uses the asynchronous connections of `dragoman.store`.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hiredis


class CommandFailed(Exception):
    """The server answered with an error."""


class Wire:
    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
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
            raise CommandFailed(str(reply))
        return reply

    def close(self) -> None:
        self._socket.close()


@contextmanager
def wire(path: Path, timeout_s: float = 10.0) -> Iterator[Wire]:
    connection = Wire(path, timeout_s)
    try:
        yield connection
    finally:
        connection.close()
