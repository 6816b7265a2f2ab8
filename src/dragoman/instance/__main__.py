"""The process of one instance. It reads its configuration as one line from stdin and answers once on a pipe."""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import structlog
import uvloop

from dragoman import logs
from dragoman.config import Config
from dragoman.instance.instance import Instance
from dragoman.instance.process import raise_file_limit
from dragoman.instance.redis_check import CannotStart

log = structlog.get_logger(__name__)

# After the drain, for closing sockets (2.5 s), requests that hang (4 s) and deregistering (2 s); shorter than the time
# after which the supervisor kills a worker.
GRACE_S = 9.5
# The same after a second signal.
HURRY_S = 2.0


async def serve(hello: dict[str, Any]) -> int:
    """Run an instance until a signal ends it; returns the exit code."""
    config = Config.from_json(json.dumps(hello["config"]))
    logs.configure(config.log.level, config.log.format, worker=hello["number"])
    stop, at_once = asyncio.Event(), asyncio.Event()

    def end() -> None:
        """The first call drains, the second ends at once. SIGALRM ends the process if neither finishes."""
        signal.setitimer(signal.ITIMER_REAL, HURRY_S if stop.is_set() else config.server.drain_s + GRACE_S)
        (at_once if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    _end_with_parent(loop, end)
    if not raise_file_limit(config.limits.connections):
        log.warning(
            "limit of open files below limits.connections: raise the hard limit (ulimit -Hn)",
            max_connections=config.limits.connections,
        )
    try:
        instance = await Instance.start(config, hello["redis_url"], hello["number"])
    except (CannotStart, OSError) as error:
        os.write(hello["ready_fd"], f"failed {' '.join(str(error).split())}\n".encode())
        return 1
    os.write(hello["ready_fd"], f"ready {instance.name}\n".encode())
    os.close(hello["ready_fd"])
    _tune_garbage_collector()
    await stop.wait()
    draining, hurried = asyncio.create_task(instance.drain()), asyncio.create_task(at_once.wait())
    await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    hurried.cancel()
    await instance.stop()
    return 0


def _tune_garbage_collector() -> None:
    """Run the garbage collector seldom, and full collections hardly ever: the process waits for one, 0.1 s and more for
    half a million objects. Objects of the start are never collected, and objects of connections and jobs are freed
    without the collector. The gateway collects in small portions besides.

    With the default thresholds the collector takes a sixth of the CPU of a busy instance.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 20_000)


def _end_with_parent(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """End when stdin is closed: the supervisor keeps it open while it runs."""
    stdin = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            end()

    loop.add_reader(stdin, readable)


def main() -> None:
    # Unbuffered, so that nothing behind the line is read before the loop watches stdin.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stdin:
        hello = json.loads(stdin.readline())
    sys.exit(uvloop.run(serve(hello)))


if __name__ == "__main__":
    main()
