"""The open connections of a listener: their time limits, those without a session yet, and those with a token.

One sweep for all time limits instead of a timer (let alone a task) per connection: an idle connection costs memory, not
wake-ups. A limit is therefore enforced up to one sweep late: a quarter of the shortest limit, and at most a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from dragoman.domain.limits.connections import ConnectionLimits, PerAddressLimit, is_loopback, share_of_address
from dragoman.gateway.authentication import REVOKED, Principal
from dragoman.gateway.connection import Connection
from dragoman.gateway.counters import Counters
from dragoman.gateway.idle_poller import IdlePoller
from dragoman.gateway.pacing import GcPacing
from dragoman.protocol.codes import Close
from dragoman.services.loops import Tasks

# Closed connections that are handled together, and the pause after them. When a network fails, ten thousand connections
# end at the same moment; the others are served in these pauses, and a job takes several turns of the loop.
ENDS_AT_ONCE = 2
ENDS_PAUSE_S = 0.001
CHECKS_PER_TURN = 100  # connections that are checked for silence in one turn of the loop


class Expiring(Protocol):
    def expire(self) -> None: ...


class OpenWebSocket(Connection, Protocol):
    """What the sweep calls."""

    def check_backlog(self, now: float) -> None: ...

    def check_silence(self, now: float) -> None: ...

    def notify_closed(self) -> None:
        """Notify the endpoint that the connection is closed."""


T = TypeVar("T", bound=Expiring)


class TimeLimit(Generic[T]):
    """Things with the same time limit, so the first that was added is the first that is due."""

    __slots__ = ("_limit_s", "_since")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[T, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[T]:
        return iter(self._since)

    def add(self, item: T, now: float) -> None:
        self._since[item] = now

    def discard(self, item: T) -> None:
        self._since.pop(item, None)

    def expire(self, now: float) -> None:
        for item, since in list(self._since.items()):
            if now - since < self._limit_s:
                return
            del self._since[item]
            item.expire()

    def expire_oldest(self) -> None:
        item = next(iter(self._since))
        del self._since[item]
        item.expire()


class OpenConnections:
    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.counters = Counters()
        self.live: set[OpenWebSocket] = set()
        self.addresses = PerAddressLimit(limits.max_per_address)  # of the live
        self.backlogged: set[OpenWebSocket] = set()
        self.idle_poller = IdlePoller()
        self.gc_pacing = GcPacing()
        self.awaiting_head: TimeLimit[Expiring] = TimeLimit(limits.head_timeout_s)
        self.closing: TimeLimit[Expiring] = TimeLimit(limits.close_timeout_s)
        self._check_every_s = min(limits.ping_idle_s, limits.ping_reply_s) / 4
        self._check_at = 0.0
        self._unchecked: list[OpenWebSocket] = []  # of this round
        self._ended: deque[OpenWebSocket] = deque()
        self._ended_before = 0  # at the last check
        self._ends_pause_s = ENDS_PAUSE_S
        self.is_crowded = False  # connections end faster than their ends are handled
        self.empty = asyncio.Event()
        self.empty.set()

    def add(self, connection: OpenWebSocket) -> None:
        if connection not in self.live:
            self.live.add(connection)
            self.addresses.add(connection.peer[0])
        self.empty.clear()

    def remove(self, connection: OpenWebSocket) -> None:
        self.backlogged.discard(connection)
        if connection in self.live:
            self.live.discard(connection)
            self.addresses.drop(connection.peer[0])
        if not self.live:
            self.empty.set()

    def ended(self, connection: OpenWebSocket) -> None:
        """Its socket is closed; its endpoint is notified in turn."""
        self.backlogged.discard(connection)
        self._ended.append(connection)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._handle_ends)

    def skip_pauses(self) -> None:
        """The listener closes: handle the ends without pauses."""
        self._ends_pause_s = 0.0

    def _handle_ends(self) -> None:
        self.is_crowded = len(self._ended) > max(ENDS_AT_ONCE, self._ended_before - 1)
        self._ended_before = len(self._ended)
        for _ in range(min(len(self._ended), ENDS_AT_ONCE)):
            connection = self._ended.popleft()
            self.remove(connection)
            connection.notify_closed()
        if self._ended:
            asyncio.get_running_loop().call_later(self._ends_pause_s, self._handle_ends)
        else:
            self.is_crowded, self._ended_before = False, 0

    def sweep(self) -> None:
        now = self.clock()
        self.awaiting_head.expire(now)
        self.closing.expire(now)
        for connection in list(self.backlogged):
            connection.check_backlog(now)
        if now >= self._check_at:
            self._check_at = now + self._check_every_s
            self._unchecked = list(self.live)
            self._check_some(now)

    def _check_some(self, now: float) -> None:
        """Spread the pings: clients that connected at the same moment would be pinged at the same moment."""
        some, self._unchecked = self._unchecked[:CHECKS_PER_TURN], self._unchecked[CHECKS_PER_TURN:]
        for connection in some:
            connection.check_silence(now)
        if self._unchecked:
            asyncio.get_running_loop().call_soon(self._check_some, now)


CLOSED_PER_TURN = 16


class _Waiting(NamedTuple):
    conn: Connection
    until: float
    code: Close
    why: str
    last_frame: bytes


class PreSession:
    """Connections that have no session, node or user yet: how many there may be, and for how long.

    After the timeout a connection is closed with a code that asks it to reconnect. If there are too many, the oldest is
    closed: an honest client needs one round trip, so the newest is the likeliest to be honest. One address has a share
    of the entries, so that others find room while it fills its own.

    All have the same timeout, so one timer is enough, for the oldest. If thousands came at the same time, a few of them
    are closed in each turn of the loop, so that no client that is being served waits for it.
    """

    def __init__(self, timeout_s: float, max_connections: int, exempt: Callable[[str], bool] = is_loopback) -> None:
        self._timeout_s, self._max = timeout_s, max_connections
        self._waiting: dict[int, _Waiting] = {}  # in the order they came
        self._addresses = PerAddressLimit(share_of_address(max_connections), exempt)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, conn: Connection, code: Close, why: str, last_frame: bytes = b"") -> None:
        """Close it after the timeout with `code` and `why`; `last_frame` is sent before."""
        if self._addresses.is_full(conn.peer[0]):
            _close_overloaded(conn)
            return
        if len(self._waiting) >= self._max:
            oldest = next(iter(self._waiting.values())).conn
            self.remove(oldest)
            _close_overloaded(oldest)
        until = asyncio.get_running_loop().time() + self._timeout_s
        self._waiting[conn.id] = _Waiting(conn, until, code, why, last_frame)
        self._addresses.add(conn.peer[0])
        if self._timer is None:
            self._set_timer(until)

    def remove(self, conn: Connection) -> None:
        if self._waiting.pop(conn.id, None) is not None:
            self._addresses.drop(conn.peer[0])

    def _set_timer(self, when: float) -> None:
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
        if self._waiting and self._timer is None:  # a closed connection may have been added again
            self._set_timer(next(iter(self._waiting.values())).until)


def _close_overloaded(conn: Connection) -> None:
    conn.close(Close.OVERLOADED, "too many connections wait to open a session")


_CHECKED_PER_TURN = 500


def _close_revoked(conn: Connection) -> None:
    conn.close(Close.UNAUTHORIZED, REVOKED)


class AuthenticatedConnections:
    """The connections of principals with a token: they are closed when the token or the principal is revoked.

    The list of revoked ones changes seldom, so each change checks all connections, some in each turn of the loop.
    Changes during a check lead to one more check.
    """

    def __init__(self, is_revoked: Callable[[Principal], bool], tasks: Tasks) -> None:
        self._is_revoked, self._tasks = is_revoked, tasks
        self._authenticated: dict[int, tuple[Connection, Principal, Callable[[Connection], None]]] = {}  # by connection
        self._checking = self._check_again = False

    def __len__(self) -> int:
        return len(self._authenticated)

    def add(self, conn: Connection, principal: Principal, close: Callable[[Connection], None] = _close_revoked) -> None:
        """Replace an earlier principal of the connection. It may have been revoked since its token was read."""
        if principal.anonymous:
            return
        self._authenticated[conn.id] = conn, principal, close
        if self._is_revoked(principal):
            close(conn)

    def discard(self, conn: Connection) -> None:
        self._authenticated.pop(conn.id, None)

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
                authenticated = iter(list(self._authenticated.values()))
                while batch := list(islice(authenticated, _CHECKED_PER_TURN)):
                    for conn, principal, close in batch:
                        if not conn.closed and self._is_revoked(principal):
                            close(conn)
                    await asyncio.sleep(0)
        finally:
            self._checking = False
