"""Connections that have not said who they are: how many may wait, and for how long.

Each that opens a session or registers leaves the anteroom; one that does not is closed with a code that says
come back. When all places are taken whoever has waited longest goes: an honest client says who it is in the time of a
round trip, so of those that wait the newest is the likeliest to be one. One address has a share of the places, so that
others find one while it fills its own again and again.

All wait equally long, so one timer is enough, for the first that came; and thousands that came together are shown out
a few in each turn of the loop, so that nobody who is being served waits for it.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from dragoman.gateway.addresses import Addresses, is_here
from dragoman.gateway.connection import Connection
from dragoman.protocol.codes import Close

SHARE = 4  # of one address: a fourth of the places
SHOWN_OUT = 16  # in one turn


class _Waiting(NamedTuple):
    conn: Connection
    until: float
    code: Close
    why: str
    farewell: bytes


class Anteroom:
    def __init__(self, patience_s: float, most: int, exempt: Callable[[str], bool] = is_here) -> None:
        self._patience_s, self._most, self._exempt = patience_s, most, exempt
        self._waiting: dict[int, _Waiting] = {}  # in the order they came
        self._addresses = Addresses()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, conn: Connection, code: Close, why: str, farewell: bytes = b"") -> None:
        """`code` and `why` are what it is told when it has waited too long; `farewell` is a frame before that."""
        if self._has_its_share(conn.peer[0]):
            _turn_away(conn)
            return
        if len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting.values())).conn
            self.leave(oldest)
            _turn_away(oldest)
        until = asyncio.get_running_loop().time() + self._patience_s
        self._waiting[conn.id] = _Waiting(conn, until, code, why, farewell)
        self._addresses.add(conn.peer[0])
        if self._timer is None:
            self._wake_at(until)

    def leave(self, conn: Connection) -> None:
        if self._waiting.pop(conn.id, None) is not None:
            self._addresses.drop(conn.peer[0])

    def _has_its_share(self, address: str) -> bool:
        return self._addresses.of(address) >= max(self._most // SHARE, 1) and not self._exempt(address)

    def _wake_at(self, when: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(when, self._show_out)

    def _show_out(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for _ in range(SHOWN_OUT):
            first = next(iter(self._waiting.values()), None)
            if first is None:
                return
            if first.until > now:
                break
            self.leave(first.conn)
            if first.farewell:
                first.conn.send(first.farewell)
            first.conn.close(first.code, first.why)
        if self._waiting and self._timer is None:  # whom we closed may have come again
            self._wake_at(next(iter(self._waiting.values())).until)


def _turn_away(conn: Connection) -> None:
    conn.close(Close.OVERLOADED, "too many connections wait to open a session")
