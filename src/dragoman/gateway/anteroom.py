"""Connections that have not said who they are: how many may wait, and for how long.

Each that opens a session or registers leaves the anteroom; one that does not is closed with a code that says
come back, and when too many wait the newest is turned away, so that those who are served never notice.
"""

import asyncio

from dragoman.gateway.connection import Connection
from dragoman.protocol.codes import Close


class Anteroom:
    def __init__(self, patience_s: float, most: int) -> None:
        self._patience_s, self._most = patience_s, most
        self._waiting: dict[int, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, conn: Connection, code: Close, why: str, farewell: bytes = b"") -> None:
        """`code` and `why` are what it is told when it has waited too long; `farewell` is a frame before that."""
        if len(self._waiting) >= self._most:
            conn.close(Close.OVERLOADED, "too many connections wait to open a session")
            return
        loop = asyncio.get_running_loop()
        self._waiting[conn.id] = loop.call_later(self._patience_s, self._expire, conn, code, why, farewell)

    @staticmethod
    def _expire(conn: Connection, code: Close, why: str, farewell: bytes) -> None:
        if farewell:
            conn.send(farewell)
        conn.close(code, why)

    def leave(self, conn: Connection) -> None:
        timer = self._waiting.pop(conn.id, None)
        if timer is not None:
            timer.cancel()
