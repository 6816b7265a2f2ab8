"""Shared by the loads: the pace at which actions begin, and clients that stop reading."""

import asyncio
import time
from collections.abc import Callable

from dragoman.connection import ClientWebSocket

POLL_S = 0.05


class Pacer:
    """Begins an action so many times a second, whether the earlier ones have ended or not."""

    def __init__(self, begin: Callable[[], None], name: str) -> None:
        self._begin, self._name = begin, name
        self._task: asyncio.Task[None] | None = None

    def start(self, per_s: float) -> None:
        if per_s > 0:
            self._task = asyncio.create_task(self._pace(per_s), name=self._name)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _pace(self, per_s: float) -> None:
        began, count = time.monotonic(), 0
        while True:
            while count < (time.monotonic() - began) * per_s:
                count += 1
                self._begin()
            await asyncio.sleep(1 / per_s)


class SlowReader:
    """Stops reading a client's socket: the kernel's buffers fill, and then the server's.

    The client may reconnect meanwhile, so the current socket is paused again and again until `stop`.
    """

    def __init__(self, current: Callable[[], ClientWebSocket | None]) -> None:
        self._current = current
        self._paused: ClientWebSocket | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._pause(), name="slow-reader")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._paused is not None:
            self._paused.resume_reading()
        self._paused = None

    async def _pause(self) -> None:
        while True:
            socket = self._current()
            if socket is not None and socket is not self._paused:
                self._paused = socket
                socket.pause_reading()
            await asyncio.sleep(POLL_S)
