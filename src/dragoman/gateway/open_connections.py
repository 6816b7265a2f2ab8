"""The open connections of a listener, and the sweep that checks their time limits.

One sweep for all time limits instead of a timer (let alone a task) per connection: an idle connection costs memory, not
wake-ups. A limit is therefore enforced up to one sweep late: a quarter of the shortest limit, and at most a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from dragoman.domain.limits.connections import ConnectionLimits, PerAddressLimit
from dragoman.gateway.connection import Connection
from dragoman.gateway.counters import Counters
from dragoman.gateway.gc_pacing import GcPacing
from dragoman.gateway.idle_poller import IdlePoller

# Ends that are handled together, and the pause after them. When a network fails, ten thousand connections end at the
# same moment; the others are served between any two of these pauses, and a job takes several turns of the loop.
ENDS_AT_ONCE = 2
ENDS_PAUSE_S = 0.001
CHECKS_PER_TURN = 100  # connections that are checked for silence in one turn of the loop


class Expiring(Protocol):
    def expire(self) -> None: ...


class Member(Connection, Protocol):
    """An open WebSocket as the sweep sees it."""

    def check_backlog(self, now: float) -> None: ...

    def check_silence(self, now: float) -> None: ...

    def notify_closed(self) -> None:
        """It has ended: notify its endpoint."""


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
        self.live: set[Member] = set()
        self.addresses = PerAddressLimit(limits.max_per_address)  # of the live
        self.backlogged: set[Member] = set()
        self.idle_poller = IdlePoller()
        self.gc_pacing = GcPacing()
        self.heads: TimeLimit[Expiring] = TimeLimit(limits.head_timeout_s)
        self.leaving: TimeLimit[Expiring] = TimeLimit(limits.close_timeout_s)
        self._check_every_s = min(limits.ping_idle_s, limits.ping_reply_s) / 4
        self._check_at = 0.0
        self._unchecked: list[Member] = []  # of this round
        self._ended: deque[Member] = deque()
        self._ended_before = 0  # at the last check
        self._ends_pause_s = ENDS_PAUSE_S
        self.is_crowded = False  # connections end faster than their ends are handled
        self.empty = asyncio.Event()
        self.empty.set()

    def join(self, member: Member) -> None:
        if member not in self.live:
            self.live.add(member)
            self.addresses.add(member.peer[0])
        self.empty.clear()

    def leave(self, member: Member) -> None:
        self.backlogged.discard(member)
        if member in self.live:
            self.live.discard(member)
            self.addresses.drop(member.peer[0])
        if not self.live:
            self.empty.set()

    def ended(self, member: Member) -> None:
        """Its socket is closed: its end is handled in its turn."""
        self.backlogged.discard(member)
        self._ended.append(member)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._handle_ends)

    def skip_pauses(self) -> None:
        """The listener closes: ends need no pauses any more."""
        self._ends_pause_s = 0.0

    def _handle_ends(self) -> None:
        self.is_crowded = len(self._ended) > max(ENDS_AT_ONCE, self._ended_before - 1)
        self._ended_before = len(self._ended)
        for _ in range(min(len(self._ended), ENDS_AT_ONCE)):
            member = self._ended.popleft()
            self.leave(member)
            member.notify_closed()
        if self._ended:
            asyncio.get_running_loop().call_later(self._ends_pause_s, self._handle_ends)
        else:
            self.is_crowded, self._ended_before = False, 0

    def sweep(self) -> None:
        now = self.clock()
        self.heads.expire(now)
        self.leaving.expire(now)
        for member in list(self.backlogged):
            member.check_backlog(now)
        if now >= self._check_at:
            self._check_at = now + self._check_every_s
            self._unchecked = list(self.live)
            self._check_some(now)

    def _check_some(self, now: float) -> None:
        """Spread the pings: clients that connected at the same moment would be pinged at the same moment."""
        some, self._unchecked = self._unchecked[:CHECKS_PER_TURN], self._unchecked[CHECKS_PER_TURN:]
        for member in some:
            member.check_silence(now)
        if self._unchecked:
            asyncio.get_running_loop().call_soon(self._check_some, now)
