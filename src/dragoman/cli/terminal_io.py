"""Standard input and signals of a command that runs an event loop."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from select import select
from signal import Signals

STDIN_FD = 0


async def read_stdin(max_bytes: int) -> AsyncIterator[bytes]:
    """Chunks of standard input, whether it is a file, a pipe or a terminal.

    A daemon thread reads with os.read: a thread that waits in sys.stdin.buffer would keep the process from exiting.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(4)

    def put(data: bytes) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()

    def read() -> None:
        with contextlib.suppress(RuntimeError, CancelledError):  # the loop has ended
            for data in _chunks(STDIN_FD, max_bytes):
                put(data)
            put(b"")

    threading.Thread(target=read, daemon=True, name="standard-input").start()
    while data := await queue.get():
        yield data


def read_begin(size: int) -> bytes:
    """So many bytes of standard input, or less at its end. Before the loop runs: it waits for them."""
    data = b""
    for more in _chunks(STDIN_FD, size):
        data += more
        if (size := size - len(more)) <= 0:
            break
    return data


def _chunks(fd: int, max_bytes: int) -> Iterator[bytes]:
    """Read until the end of the file or the first error."""
    with contextlib.suppress(OSError):
        while True:
            try:
                data = os.read(fd, max_bytes)
            except BlockingIOError:  # the parent process opened it in non-blocking mode
                select([fd], [], [])
                continue
            if not data:
                return
            yield data


@contextlib.contextmanager
def signal_handlers(handlers: Mapping[Signals, Callable[[], object]]) -> Iterator[None]:
    """Handle signals in the event loop; not possible outside the main thread, where they are ignored."""
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(number)
