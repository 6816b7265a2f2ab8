"""Writes lines to a descriptor from a thread of its own: the caller never waits and never gets an error.

The reader of a log pipe may be slow, stopped or dead. A blocking write would stop the event loop, and an error raised
by a log call would end the work that was being logged. So lines wait in a bounded queue; when it is full they are
dropped and counted, and the count is written as soon as the descriptor accepts lines again.
"""

import atexit
import io
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

MAX_BYTES = 4 * 1024 * 1024
EXIT_S = 1.0  # how long the end of the process waits for lines that are still queued


class Writer(io.TextIOBase):
    """A text stream. Each call of `write` that ends a line becomes one write(2), so that processes may share a pipe.

    `dropped_line` renders the line that reports how many were dropped. `tick` is called between writes; it returns the
    seconds after which it wants to be called again, or None.
    """

    def __init__(
        self,
        fd: int,
        *,
        encoding: str = "utf-8",
        max_bytes: int = MAX_BYTES,
        dropped_line: Callable[[int], str] | None = None,
        tick: Callable[[], float | None] | None = None,
    ) -> None:
        self._fd, self._encoding, self._max_bytes = fd, encoding, max_bytes
        self._dropped_line = dropped_line
        self._tick = tick or (lambda: None)
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._partial = ""
        self._writing = False
        self._dropped = 0  # since the last line that reported it
        self.dropped = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name=f"writer of descriptor {fd}", daemon=True).start()
        atexit.register(self.drain, EXIT_S)

    # -- the interface of a stream ---------------------------------------------------------------

    def write(self, text: str) -> int:
        with self._changed:
            whole, newline, self._partial = (self._partial + text).rpartition("\n")
            if newline:
                self._put(f"{whole}\n")
        return len(text)

    def flush(self) -> None:
        """Does nothing: the thread writes as soon as it can."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def drain(self, limit_s: float) -> bool:
        """Wait up to `limit_s` until everything is written. Returns whether it is."""
        until = time.monotonic() + limit_s
        with self._changed:
            if self._partial:
                self._put(self._partial)
                self._partial = ""
            return self._changed.wait_for(lambda: not self._queue and not self._writing, until - time.monotonic())

    # -- the queue and its thread ----------------------------------------------------------------

    def _put(self, text: str) -> None:
        line = text.encode(self._encoding, "backslashreplace")
        if self._bytes + len(line) > self._max_bytes:
            self._drop()
            return
        self._queue.append(line)
        self._bytes += len(line)
        self._changed.notify_all()

    def _drop(self) -> None:
        self._dropped += 1
        self.dropped += 1

    def _run(self) -> None:
        while True:
            wait_s = self._tick()
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue, wait_s)
                if not self._queue:
                    continue
                line = self._queue.popleft()
                self._bytes -= len(line)
                self._writing = True
            if self._write(line):
                self._report_dropped()

    def _report_dropped(self) -> None:
        count = self._dropped
        if count and self._dropped_line and self._write(f"{self._dropped_line(count)}\n".encode()):
            with self._changed:
                self._dropped -= count

    def _write(self, line: bytes) -> bool:
        rest = memoryview(line)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # another process that shares the descriptor made it non-blocking
                    select.select([], [self._fd], [])
        except (OSError, ValueError):
            with self._changed:
                self._drop()
            return False
        return True
