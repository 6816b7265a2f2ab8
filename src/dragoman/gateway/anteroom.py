"""Connections that have not said who they are: how many may wait, and for how long.

Each that opens a session or registers leaves the anteroom; one that does not is closed with a code that says
come back, and when too many wait the newest is turned away, so that those who are served never notice. One address
has a share of the places, so that others find one while it fills its own again and again.
"""

import asyncio
from collections.abc import Callable

from dragoman.gateway.addresses import Addresses, is_here
from dragoman.gateway.connection import Connection
from dragoman.protocol.codes import Close

SHARE = 4  # of one address: a fourth of the places


class Anteroom:
    def __init__(self, patience_s: float, most: int, exempt: Callable[[str], bool] = is_here) -> None:
        self._patience_s, self._most, self._exempt = patience_s, most, exempt
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        self._addresses = Addresses()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, conn: Connection, code: Close, why: str, farewell: bytes = b"") -> None:
        """`code` and `why` are what it is told when it has waited too long; `farewell` is a frame before that."""
        if len(self._waiting) >= self._most or self._has_its_share(conn.peer[0]):
            conn.close(Close.OVERLOADED, "too many connections wait to open a session")
            return
        loop = asyncio.get_running_loop()
        self._waiting[conn.id] = loop.call_later(self._patience_s, self._expire, conn, code, why, farewell)
        self._addresses.add(conn.peer[0])

    def _has_its_share(self, address: str) -> bool:
        return self._addresses.of(address) >= max(self._most // SHARE, 1) and not self._exempt(address)

    @staticmethod
    def _expire(conn: Connection, code: Close, why: str, farewell: bytes) -> None:
        if farewell:
            conn.send(farewell)
        conn.close(code, why)

    def leave(self, conn: Connection) -> None:
        timer = self._waiting.pop(conn.id, None)
        if timer is not None:
            timer.cancel()
            self._addresses.drop(conn.peer[0])
