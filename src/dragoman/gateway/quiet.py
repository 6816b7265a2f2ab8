"""Connections that have said nothing for a while, watched apart from those who talk.

When a network goes, thousands of idle connections end in the same moment. The loop sees to all that has happened on the
sockets it watches before it does anything else, and an end takes it some 20 us: a tenth of a second in which nobody is
served. So the loop does not watch who is quiet: an epoll set of our own does. Who speaks is woken at once, and read by
the loop again; of those who end a few are woken every millisecond.

The set tells of each once. If it had something to tell until all were woken, the loop would not come to rest before,
and whoever it waits for (Redis, for instance) would have to wait until the scheduler takes the core from us.
"""

import asyncio
import contextlib
import select
from collections import deque
from typing import Protocol

WOKEN = 4  # at a time, of those who end
PAUSE_S = 0.001
TOLD = 64  # in one turn of the loop
_END = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class Sleeper(Protocol):
    def wake(self) -> None:
        """Something has happened on its socket, which it is to read."""


class Quiet:
    def __init__(self) -> None:
        self._asleep: dict[int, Sleeper] = {}
        self._ended: deque[int] = deque()  # that wait to be woken
        self._pausing = False
        self._epoll: select.epoll | None = None

    def __len__(self) -> int:
        return len(self._asleep)

    def watch(self, fd: int, sleeper: Sleeper) -> None:
        """Until it is woken, or forgotten: before its socket is closed."""
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._look)
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT)
        self._asleep[fd] = sleeper

    def forget(self, fd: int) -> None:
        if self._epoll is not None and self._asleep.pop(fd, None) is not None:
            with contextlib.suppress(OSError):  # a socket that is closed is gone from it
                self._epoll.unregister(fd)

    def close(self) -> None:
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        assert self._epoll is not None
        for fd, events in self._epoll.poll(0, TOLD):
            if events & _END:
                self._ended.append(fd)
            else:
                self._wake(fd)
        if not self._pausing:
            self._wake_some()

    def _wake_some(self) -> None:
        some = [self._ended.popleft() for _ in range(min(len(self._ended), WOKEN))]
        self._pausing = bool(self._ended)
        if self._pausing:
            asyncio.get_running_loop().call_later(PAUSE_S, self._wake_some)
        for fd in some:
            self._wake(fd)

    def _wake(self, fd: int) -> None:
        if (sleeper := self._asleep.get(fd)) is not None:  # else it was forgotten meanwhile
            self.forget(fd)
            sleeper.wake()
