"""PING by a bare blocking socket: the shortest round trip to Redis that is possible here and now.

There is no event loop, no parser and nothing to allocate; what a latency of ours has beyond this, we added. As a load
process it pings so many times a second while another load runs, as often as there are jobs and not back to back: a
socket that never sleeps would not meet what every job meets, and would be a load of its own.
"""

import asyncio
import socket
from collections.abc import Callable
from threading import Event
from time import perf_counter, sleep
from typing import Any

from dragoman.tools.bench.measure import Quantities, latency
from dragoman.tools.processes import CannotRun, serve

_PING, _PONG = b"PING\r\n", b"+PONG\r\n"
_TIMEOUT_S = 10.0


def ping(host: str, port: int, seconds: float) -> Quantities:
    """p50 and p99 of as many PINGs as fit, in microseconds."""
    until = perf_counter() + seconds
    return latency(_ping(host, port, lambda: perf_counter() < until))


def _ping(host: str, port: int, goes_on: Callable[[], bool], every_s: float = 0.0) -> list[float]:
    """The seconds that each PING took; there is one at least."""
    taken: list[float] = []
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            due = perf_counter()
            while goes_on() or not taken:
                sent = perf_counter()
                line.sendall(_PING)
                answer = line.recv(64)
                taken.append(perf_counter() - sent)
                if answer != _PONG:
                    raise CannotRun(f"{host}:{port} answered PING with {answer!r}.")
                if every_s:
                    due += every_s
                    sleep(max(due - perf_counter(), 0))
    except OSError as error:
        raise CannotRun(f"PING to {host}:{port} failed: {error}.") from error
    return taken


class Pinger:
    """PINGs in a thread."""

    def __init__(self) -> None:
        self._stop = Event()
        self._pinging: asyncio.Future[list[float]] | None = None

    async def time(self, host: str, port: int, per_s: float) -> None:
        self._stop = stop = Event()
        loop = asyncio.get_running_loop()
        self._pinging = loop.run_in_executor(None, _ping, host, port, lambda: not stop.is_set(), 1 / per_s)

    async def times(self) -> dict[str, Any]:
        assert self._pinging is not None
        self._stop.set()
        taken = await self._pinging
        return {"pings": len(taken), "ping": latency(taken)}


def main() -> None:
    pinger = Pinger()
    serve({"time": pinger.time, "times": pinger.times})


if __name__ == "__main__":
    main()
