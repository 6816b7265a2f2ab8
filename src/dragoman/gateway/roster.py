"""Who is connected, and what each of them is waiting for.

One sweep for all time limits instead of a timer (let alone a task) a connection: an idle connection costs memory,
not wake-ups. A limit is therefore enforced up to one sweep late, which is a quarter of the shortest limit and never
more than a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from dragoman.gateway.addresses import Addresses
from dragoman.gateway.connection import Connection
from dragoman.gateway.limits import Counters, Limits
from dragoman.gateway.nursery import Nursery
from dragoman.gateway.quiet import Quiet

# Departures told at a time, and the pause after them. When a network goes, ten thousand connections go with it in the
# same moment; those who stay are served between any two of these, and a job takes several turns of the loop.
DEPARTURES = 2
DEPARTURES_PAUSE_S = 0.001
PULSES = 100  # felt in one turn of the loop


class Expiring(Protocol):
    def expire(self) -> None: ...


class Member(Connection, Protocol):
    """An open WebSocket as the sweep sees it."""

    def check_backlog(self, now: float) -> None: ...

    def check_pulse(self, now: float) -> None: ...

    def departed(self) -> None:
        """It has left; whoever served it is to hear of it."""


T = TypeVar("T", bound=Expiring)


class Patience(Generic[T]):
    """Things that may each wait the same time; so the first that came is the first that is due."""

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


class Roster:
    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.counters = Counters()
        self.live: set[Member] = set()
        self.addresses = Addresses()  # of the live
        self.backlogged: set[Member] = set()
        self.quiet = Quiet()
        self.nursery = Nursery()
        self.heads: Patience[Expiring] = Patience(limits.head_timeout_s)
        self.leaving: Patience[Expiring] = Patience(limits.close_timeout_s)
        self._pulse_every_s = min(limits.ping_idle_s, limits.ping_reply_s) / 4
        self._pulse_at = 0.0
        self._unfelt: list[Member] = []  # of this round of pulses
        self._departing: deque[Member] = deque()
        self._departing_before = 0  # at the last look
        self._departures_pause_s = DEPARTURES_PAUSE_S
        self.is_crowded = False  # more come to leave than are seen off
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

    def depart(self, member: Member) -> None:
        """Its socket is gone: it leaves, in its turn."""
        self.backlogged.discard(member)
        self._departing.append(member)
        if len(self._departing) == 1:
            asyncio.get_running_loop().call_soon(self._see_off)

    def hurry(self) -> None:
        """We are about to end, and nobody is left to be kept waiting."""
        self._departures_pause_s = 0.0

    def _see_off(self) -> None:
        self.is_crowded = len(self._departing) > max(DEPARTURES, self._departing_before - 1)
        self._departing_before = len(self._departing)
        for _ in range(min(len(self._departing), DEPARTURES)):
            member = self._departing.popleft()
            self.leave(member)
            member.departed()
        if self._departing:
            asyncio.get_running_loop().call_later(self._departures_pause_s, self._see_off)
        else:
            self.is_crowded, self._departing_before = False, 0

    def sweep(self) -> None:
        now = self.clock()
        self.heads.expire(now)
        self.leaving.expire(now)
        for member in list(self.backlogged):
            member.check_backlog(now)
        if now >= self._pulse_at:
            self._pulse_at = now + self._pulse_every_s
            self._unfelt = list(self.live)
            self._feel(now)

    def _feel(self, now: float) -> None:
        """Who came together falls silent together, and would be pinged together."""
        some, self._unfelt = self._unfelt[:PULSES], self._unfelt[PULSES:]
        for member in some:
            member.check_pulse(now)
        if self._unfelt:
            asyncio.get_running_loop().call_soon(self._feel, now)
