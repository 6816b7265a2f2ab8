"""A client that stops reading its socket: the kernel's buffers fill, and then the server's.

Connections come and go meanwhile, so whichever is the one of now is stopped again and again until `stop`.
"""

import asyncio
from collections.abc import Callable

from dragoman.client.link import Link

LOOK_AGAIN_S = 0.05


class SlowReader:
    def __init__(self, link_of_now: Callable[[], Link | None]) -> None:
        self._link_of_now = link_of_now
        self._stopped: Link | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._hold(), name="slow-reader")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        _read(self._stopped, True)
        self._stopped = None

    async def _hold(self) -> None:
        while True:
            link = self._link_of_now()
            if link is not None and link is not self._stopped:
                self._stopped = link
                _read(link, False)
            await asyncio.sleep(LOOK_AGAIN_S)


def _read(link: Link | None, on: bool) -> None:
    if link is None or link._transport is None:
        return
    socket = link._transport.underlying_transport
    if on:
        socket.resume_reading()
    else:
        socket.pause_reading()
