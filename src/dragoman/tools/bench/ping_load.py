"""PING by a bare blocking socket, so many a second, while a load is on: a process that does nothing else.

As often as there are jobs, not back to back: a socket that never sleeps would be spared what every job meets, and be a
load of its own.
"""

import asyncio
import socket
from threading import Event
from time import perf_counter, sleep
from typing import Any

from dragoman.tools.bench.load_process import play
from dragoman.tools.bench.ping import latency

PING, PONG = b"PING\r\n", b"+PONG\r\n"
PATIENCE_S = 10.0


class Pinger:
    def __init__(self) -> None:
        self._taken_s: list[float] = []
        self._stop = Event()
        self._pinging: asyncio.Future[None] | None = None

    async def time(self, host: str, port: int, per_s: float) -> None:
        self._taken_s, self._stop = [], Event()
        loop = asyncio.get_running_loop()
        self._pinging = loop.run_in_executor(None, self._ping, host, port, per_s)

    async def times(self) -> dict[str, Any]:
        assert self._pinging is not None
        self._stop.set()
        await self._pinging
        return {"pings": len(self._taken_s), "ping": latency(self._taken_s)}

    def _ping(self, host: str, port: int, per_s: float) -> None:
        with socket.create_connection((host, port), PATIENCE_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            due = perf_counter()
            while not self._stop.is_set():
                asked = perf_counter()
                line.sendall(PING)
                answer = line.recv(64)
                self._taken_s.append(perf_counter() - asked)
                if answer != PONG:
                    raise ValueError(f"Redis answered PING with {answer!r}")
                due += 1 / per_s
                sleep(max(due - perf_counter(), 0))


def main() -> None:
    pinger = Pinger()
    play({"time": pinger.time, "times": pinger.times})


if __name__ == "__main__":
    main()
