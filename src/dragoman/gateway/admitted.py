"""The open connections of principals that showed a token: they end when the token or the principal is revoked.

The list of revoked ones changes seldom, so each change checks all connections, some in each turn of the loop. Changes
during a check lead to one more check.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from dragoman.gateway.connection import Connection
from dragoman.gateway.principal import REVOKED, Principal
from dragoman.protocol.codes import Close
from dragoman.services.loops import Tasks

_BATCH = 500


def _close(conn: Connection) -> None:
    conn.close(Close.UNAUTHORIZED, REVOKED)


class AdmittedConnections:
    def __init__(self, is_revoked: Callable[[Principal], bool], tasks: Tasks) -> None:
        self._is_revoked, self._tasks = is_revoked, tasks
        self._admitted: dict[int, tuple[Connection, Principal, Callable[[Connection], None]]] = {}  # by connection
        self._checking = self._check_again = False

    def __len__(self) -> int:
        return len(self._admitted)

    def add(self, conn: Connection, principal: Principal, close: Callable[[Connection], None] = _close) -> None:
        """`principal` replaces an earlier one of this connection. It may have been revoked since its token was read."""
        if principal.anonymous:
            return
        self._admitted[conn.id] = conn, principal, close
        if self._is_revoked(principal):
            close(conn)

    def discard(self, conn: Connection) -> None:
        self._admitted.pop(conn.id, None)

    def check(self) -> None:
        """Close those that have been revoked."""
        self._check_again = True
        if not self._checking:
            self._checking = True
            self._tasks.spawn(self._check(), "close-revoked")

    async def _check(self) -> None:
        try:
            while self._check_again:
                self._check_again = False
                admitted = iter(list(self._admitted.values()))
                while batch := list(islice(admitted, _BATCH)):
                    for conn, principal, close in batch:
                        if not conn.closed and self._is_revoked(principal):
                            close(conn)
                    await asyncio.sleep(0)
        finally:
            self._checking = False
