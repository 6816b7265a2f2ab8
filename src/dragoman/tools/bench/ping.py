"""The least a round trip to Redis can take here and now: PING by a bare blocking socket.

No event loop, no parser, nothing to allocate: what a latency of ours is beyond this, we added.
"""

import socket
from time import perf_counter

from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.load import percentile
from dragoman.tools.bench.rounds import Quantities

_PING, _PONG = b"PING\r\n", b"+PONG\r\n"
_PATIENCE_S = 10.0


def ping(host: str, port: int, seconds: float) -> Quantities:
    """p50 and p99 of as many PINGs as fit, in microseconds."""
    taken: list[float] = []
    try:
        with socket.create_connection((host, port), _PATIENCE_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            until = perf_counter() + seconds
            while (asked := perf_counter()) < until or not taken:
                line.sendall(_PING)
                answer = line.recv(64)
                taken.append(perf_counter() - asked)
                if answer != _PONG:
                    raise BenchError(f"{host}:{port} answered PING with {answer!r}.")
    except OSError as error:
        raise BenchError(f"PING to {host}:{port} failed: {error}.") from error
    return latency(taken)


def latency(taken_s: list[float]) -> Quantities:
    taken_s.sort()
    return {"p50_us": percentile(taken_s, 0.50) * 1e6, "p99_us": percentile(taken_s, 0.99) * 1e6}
