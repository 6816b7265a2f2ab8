"""Connections that have said nothing for a while, watched apart from those who talk.

When a network goes, thousands of idle connections end in the same moment. The loop sees to all that has happened on the
sockets it watches before it does anything else, and an end takes it some 20 us: a tenth of a second in which nobody is
served. So the loop does not watch who is quiet: a set of our own does. Who speaks is woken at once, and read by
the loop again; of those who end a few are woken every millisecond.

The set tells of each once. If it had something to tell until all were woken, the loop would not come to rest before,
and whoever it waits for (Redis, for instance) would have to wait until the scheduler takes the core from us.
"""

import asyncio
import contextlib
import os
import select
import selectors
import socket
from collections import deque
from typing import Protocol

WOKEN = 4  # at a time, of those who end
PAUSE_S = 0.001
TOLD = 64  # in one turn of the loop


class Sleeper(Protocol):
    def wake(self) -> None:
        """Something has happened on its socket, which it is to read."""


class Epoll:
    """Linux: the kernel tells of each once, and whether it has ended."""

    def __init__(self) -> None:
        self._set = select.epoll()
        self._asked = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
        self._end = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
        self.fileno, self.unregister, self.close = self._set.fileno, self._set.unregister, self._set.close

    def register(self, fd: int) -> None:
        self._set.register(fd, self._asked)

    def ready(self, most: int) -> list[tuple[int, bool]]:
        """At most so many sockets on which something has happened, and whether that is their end."""
        return [(fd, bool(events & self._end)) for fd, events in self._set.poll(0, most)]


class Selector:
    """Elsewhere (kqueue on macOS): a socket that was told of is taken out, and looked at for its end."""

    def __init__(self) -> None:
        self._set = selectors.DefaultSelector()
        self.close = self._set.close

    def fileno(self) -> int:
        return self._set.fileno()

    def register(self, fd: int) -> None:
        self._set.register(fd, selectors.EVENT_READ)

    def unregister(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._set.unregister(fd)

    def ready(self, most: int) -> list[tuple[int, bool]]:
        found = [key.fd for key, _ in self._set.select(0)[:most]]
        for fd in found:
            self._set.unregister(fd)
        return [(fd, _has_ended(fd)) for fd in found]


def _has_ended(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as sock:
        try:
            return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


POLLER: type[Epoll | Selector] = Epoll if hasattr(select, "epoll") else Selector


class Quiet:
    def __init__(self) -> None:
        self._asleep: dict[int, Sleeper] = {}
        self._ended: deque[int] = deque()  # that wait to be woken
        self._pausing = False
        self._set: Epoll | Selector | None = None

    def __len__(self) -> int:
        return len(self._asleep)

    def watch(self, fd: int, sleeper: Sleeper) -> None:
        """Until it is woken, or forgotten: before its socket is closed."""
        if self._set is None:
            self._set = POLLER()
            asyncio.get_running_loop().add_reader(self._set.fileno(), self._look)
        self._set.register(fd)
        self._asleep[fd] = sleeper

    def forget(self, fd: int) -> None:
        if self._set is not None and self._asleep.pop(fd, None) is not None:
            with contextlib.suppress(OSError):  # a socket that is closed is gone from it
                self._set.unregister(fd)

    def close(self) -> None:
        if self._set is not None:
            asyncio.get_running_loop().remove_reader(self._set.fileno())
            self._set.close()
            self._set = None

    def _look(self) -> None:
        assert self._set is not None
        for fd, ended in self._set.ready(TOLD):
            if ended:
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
