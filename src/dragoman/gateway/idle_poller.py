"""Watches idle connections with a poller of its own, apart from the event loop's.

When a network fails, thousands of idle connections end at the same moment. The loop handles everything that happened on
the sockets it watches before it does anything else, and an end takes it about 20 us: a tenth of a second in which no
client is served. So idle connections are watched by a separate poller. A connection on which data arrives is resumed at
once, and read by the loop again; of those that end, a few are resumed every millisecond.

The poller reports each connection once. If it reported until all were resumed, the loop would not come to rest, and
what it waits for (Redis, for instance) would wait until the scheduler takes the core from this process.
"""

import asyncio
import contextlib
import os
import select
import selectors
import socket
from collections import deque
from typing import Protocol

MAX_RESUMED = 4  # at a time, of those that end
PAUSE_S = 0.001
MAX_REPORTED = 64  # in one turn of the loop


class IdleConnection(Protocol):
    def resume(self) -> None:
        """Read the socket again: something happened on it."""


class Epoll:
    """Linux: the kernel reports each socket once, and whether it has ended."""

    def __init__(self) -> None:
        self._set = select.epoll()
        self._asked = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
        self._end = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
        self.fileno, self.unregister, self.close = self._set.fileno, self._set.unregister, self._set.close

    def register(self, fd: int) -> None:
        self._set.register(fd, self._asked)

    def ready(self, max_events: int) -> list[tuple[int, bool]]:
        """At most `max_events` sockets with an event, and whether the event is their end."""
        return [(fd, bool(events & self._end)) for fd, events in self._set.poll(0, max_events)]


class Selector:
    """Elsewhere (kqueue on macOS): a reported socket is removed, and checked for its end."""

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

    def ready(self, max_events: int) -> list[tuple[int, bool]]:
        found = [key.fd for key, _ in self._set.select(0)[:max_events]]
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


class IdlePoller:
    def __init__(self) -> None:
        self._idle: dict[int, IdleConnection] = {}
        self._ended: deque[int] = deque()  # to be resumed
        self._pausing = False
        self._set: Epoll | Selector | None = None

    def __len__(self) -> int:
        return len(self._idle)

    def watch(self, fd: int, connection: IdleConnection) -> None:
        """Watch until it is resumed or forgotten, which must be before its socket is closed."""
        if self._set is None:
            self._set = POLLER()
            asyncio.get_running_loop().add_reader(self._set.fileno(), self._poll)
        self._set.register(fd)
        self._idle[fd] = connection

    def forget(self, fd: int) -> None:
        if self._set is not None and self._idle.pop(fd, None) is not None:
            with contextlib.suppress(OSError):  # a closed socket is no longer registered
                self._set.unregister(fd)

    def close(self) -> None:
        if self._set is not None:
            asyncio.get_running_loop().remove_reader(self._set.fileno())
            self._set.close()
            self._set = None

    def _poll(self) -> None:
        assert self._set is not None
        for fd, ended in self._set.ready(MAX_REPORTED):
            if ended:
                self._ended.append(fd)
            else:
                self._resume(fd)
        if not self._pausing:
            self._resume_some()

    def _resume_some(self) -> None:
        some = [self._ended.popleft() for _ in range(min(len(self._ended), MAX_RESUMED))]
        self._pausing = bool(self._ended)
        if self._pausing:
            asyncio.get_running_loop().call_later(PAUSE_S, self._resume_some)
        for fd in some:
            self._resume(fd)

    def _resume(self, fd: int) -> None:
        if (connection := self._idle.get(fd)) is not None:  # else it was forgotten in the meantime
            self.forget(fd)
            connection.resume()
