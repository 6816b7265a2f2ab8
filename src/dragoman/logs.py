"""Logs to stderr: text on a terminal, one JSON object per line otherwise. Stdout is for the output of commands.

Lines that libraries log through `logging` get the same format. Import this module before any other that imports
structlog: see below. A log call never blocks and never raises, whatever the reader of stderr does (`Writer`); repeated
lines are summarised (`Limiter`).
"""

import atexit
import io
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TextIO, cast

if "structlog" not in sys.modules and "rich" not in sys.modules:
    # structlog uses rich for tracebacks if it is installed. That costs 0.1 s in every process, and such tracebacks show
    # local variables, and with them tokens and audio.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]
else:
    import structlog

from dragoman.visible import visible, visible_lines

LIBRARIES = logging.WARNING
DROPPED = "log lines were dropped: their reader is too slow or has ended"


def configure(level: str, format: str, **bound: Any) -> None:
    """Configure the logs of this process. `bound` is added to every line, such as the instance."""
    if sys.stderr is None:  # started with its descriptor closed
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process runs
    terminal = sys.stderr.isatty()
    text = format == "text" or (format == "auto" and terminal)
    limiter = Limiter(time.monotonic)

    def bind(_: object, __: str, line: Any) -> Any:
        return {**bound, **line}

    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        bind,
        structlog.processors.add_log_level,
        stamp,
        structlog.processors.StackInfoRenderer(),
        *([] if text else [structlog.processors.format_exc_info]),
    ]
    renderer: Any = _text_renderer(terminal) if text else structlog.processors.JSONRenderer()

    def dropped_line(count: int) -> str:
        line = bind(None, "", {"event": DROPPED, "count": count, "level": "warning"})
        return str(renderer(None, "warning", stamp(None, "warning", line)))

    def tick() -> float | None:
        for line in limiter.due():
            sys.stderr.write(f"{renderer(None, line['level'], line)}\n")
        return limiter.next_due_s()

    # Tracebacks of the interpreter and messages of commands are written to sys.stderr too, and must not block either.
    sys.stderr = _never_blocking(sys.stderr, dropped_line=dropped_line, tick=tick)
    structlog.configure(
        processors=[*shared, limiter, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _capture_libraries(shared, renderer)
    # The SDKs log as libraries do; in our own processes they get the configured level.
    logging.getLogger("dragoman").setLevel(level.upper())


def _text_renderer(colors: bool) -> Any:
    """Renders lines as text, and escapes control characters in them."""

    def traceback(stream: TextIO, info: Any) -> None:
        plain = io.StringIO()
        structlog.dev.plain_traceback(plain, info)
        stream.write(visible_lines(plain.getvalue()))

    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback)

    def render(logger: Any, method: str, line: Any) -> str:
        safe = {name: _safe(name, value) for name, value in line.items()}
        return str(console(logger, method, safe))

    return render


def _safe(name: str, value: Any) -> Any:
    """The renderer writes strings as they are, and the `repr` of everything else."""
    if not isinstance(value, str):
        return value
    return visible_lines(value) if name in ("stack", "exception") else visible(value)


def say(text: str) -> None:
    """Print a line to stdout. A closed or full pipe drops it instead of stopping the server."""
    if sys.stdout is not None:
        _never_blocking(sys.stdout).write(f"{text}\n")


def dropped() -> int:
    """The log lines that this process has dropped."""
    return sys.stderr.dropped if isinstance(sys.stderr, Writer) else 0


@cache
def _never_blocking(stream: TextIO, **options: Any) -> TextIO:
    """The stream behind a `Writer`. A stream without a descriptor, as in tests, is returned unchanged."""
    if isinstance(stream, Writer):
        return stream
    try:
        return cast(TextIO, Writer(stream.fileno(), encoding=stream.encoding, **options))
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return stream


def _capture_libraries(shared: list[Any], renderer: Any) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=LIBRARIES, handlers=[handler], force=True)
    logging.captureWarnings(True)


# -- repeated lines --------------------------------------------------------------------------------
#
# Limits repeated log lines to one a second.
#
# The first line of its kind with `limited=True` is written at once. The kind is its level and event, and with
# `each="<field>"` also the value of that field, such as the id of a node. Further lines of the kind are counted, and
# once a second one of them is written, with their number as `repeated`: with `limited="<field>"` the line in which that
# field is largest, otherwise the last one.

WINDOW_S = 1.0
MAX_KINDS = 1000  # beyond it, `each` is ignored

Line = MutableMapping[str, Any]


@dataclass(slots=True)
class _Window:
    ends_at: float
    count: int = 0
    shown: Line | None = None


class Limiter:
    """A processor of structlog; `due` returns the lines whose second is over."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, ...], _Window] = {}
        self._lock = threading.Lock()

    def __call__(self, logger: object, method: str, line: Line) -> Line:
        by, each = line.pop("limited", None), line.pop("each", None)
        if not by:
            return line
        kind: tuple[str, ...] = (str(line.get("level")), str(line.get("event")))
        with self._lock:
            if each is not None:
                one = (*kind, str(line.get(each)))
                kind = one if one in self._windows or len(self._windows) < MAX_KINDS else kind
            window = self._windows.get(kind)
            if window is None:
                self._windows[kind] = _Window(self._clock() + WINDOW_S)
                return line
            window.count += 1
            if window.shown is None or by is True or line.get(by, 0) >= window.shown.get(by, 0):
                window.shown = line
        raise structlog.DropEvent

    def due(self) -> list[Line]:
        now = self._clock()
        lines: list[Line] = []
        with self._lock:
            for kind, window in list(self._windows.items()):
                if now < window.ends_at:
                    continue
                if window.shown is None:
                    del self._windows[kind]
                    continue
                lines.append({**window.shown, "repeated": window.count})
                self._windows[kind] = _Window(now + WINDOW_S)
        return lines

    def next_due_s(self) -> float | None:
        """The seconds until `due` has to be called again; None while no line is limited."""
        with self._lock:
            ends = [window.ends_at for window in self._windows.values()]
        return max(0.0, min(ends) - self._clock()) if ends else None


# -- writing without blocking ----------------------------------------------------------------------
#
# Writes lines to a descriptor from a thread of its own: the caller never waits and never gets an error.
#
# The reader of a log pipe may be slow, stopped or dead. A blocking write would stop the event loop, and an error raised
# by a log call would end the work that was being logged. So lines wait in a bounded queue; when it is full they are
# dropped and counted, and the count is written as soon as the descriptor accepts lines again.

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
