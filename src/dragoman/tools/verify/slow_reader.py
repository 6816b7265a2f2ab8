"""A client that stops reading its socket: the kernel's buffers fill, and then the server's.

Connections come and go meanwhile, so whichever is the one of now is stopped again and again until `stop`.
"""

import asyncio
from collections.abc import Callable

from dragoman.connection import ClientWebSocket

LOOK_AGAIN_S = 0.05


class SlowReader:
    def __init__(self, current: Callable[[], ClientWebSocket | None]) -> None:
        self._current = current
        self._stopped: ClientWebSocket | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._hold(), name="slow-reader")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._stopped is not None:
            self._stopped.resume_reading()
        self._stopped = None

    async def _hold(self) -> None:
        while True:
            socket = self._current()
            if socket is not None and socket is not self._stopped:
                self._stopped = socket
                socket.pause_reading()
            await asyncio.sleep(LOOK_AGAIN_S)
