"""Logs to stderr: text on a terminal, one JSON object per line otherwise. Stdout is for the output of commands.

Lines that libraries log through `logging` get the same format. Import this module before any other that imports
structlog: see below. A log call never blocks and never raises, whatever the reader of stderr does (`writer`); repeated
lines are summarised (`limiter`).
"""

import io
import logging
import os
import sys
import time
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

from dragoman.logs.limiter import Limiter
from dragoman.logs.writer import Writer
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
