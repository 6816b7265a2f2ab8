"""Connections that have no session, node or user yet: how many there may be, and for how long.

A connection leaves when it opens a session, registers or authenticates. After the timeout it is closed with a code that
says come back. If there are too many, the oldest is closed: an honest client needs one round trip, so the newest is the
likeliest to be honest. One address has a share of the entries, so that others find room while it fills its own.

All have the same timeout, so one timer is enough, for the oldest. Of thousands that came at the same time, a few are
closed in each turn of the loop, so that no client that is being served waits for it.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from dragoman.domain.limits.connections import PerAddressLimit, is_loopback, share_of_address
from dragoman.gateway.connection import Connection
from dragoman.protocol.codes import Close

CLOSED_PER_TURN = 16


class _Waiting(NamedTuple):
    conn: Connection
    until: float
    code: Close
    why: str
    last_frame: bytes


class PreSession:
    def __init__(self, timeout_s: float, most: int, exempt: Callable[[str], bool] = is_loopback) -> None:
        self._timeout_s, self._most = timeout_s, most
        self._waiting: dict[int, _Waiting] = {}  # in the order they came
        self._addresses = PerAddressLimit(share_of_address(most), exempt)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, conn: Connection, code: Close, why: str, last_frame: bytes = b"") -> None:
        """After the timeout it is closed with `code` and `why`, and gets `last_frame` before."""
        if self._addresses.is_full(conn.peer[0]):
            _refuse(conn)
            return
        if len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting.values())).conn
            self.remove(oldest)
            _refuse(oldest)
        until = asyncio.get_running_loop().time() + self._timeout_s
        self._waiting[conn.id] = _Waiting(conn, until, code, why, last_frame)
        self._addresses.add(conn.peer[0])
        if self._timer is None:
            self._wake_at(until)

    def remove(self, conn: Connection) -> None:
        if self._waiting.pop(conn.id, None) is not None:
            self._addresses.drop(conn.peer[0])

    def _wake_at(self, when: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(when, self._close_overdue)

    def _close_overdue(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for _ in range(CLOSED_PER_TURN):
            first = next(iter(self._waiting.values()), None)
            if first is None:
                return
            if first.until > now:
                break
            self.remove(first.conn)
            if first.last_frame:
                first.conn.send(first.last_frame)
            first.conn.close(first.code, first.why)
        if self._waiting and self._timer is None:  # a closed one may have been added again
            self._wake_at(next(iter(self._waiting.values())).until)


def _refuse(conn: Connection) -> None:
    conn.close(Close.OVERLOADED, "too many connections wait to open a session")
