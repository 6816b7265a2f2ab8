"""Logs: text on a terminal, one JSON object a line otherwise. To stderr; stdout is for what a command answers.

What libraries say through `logging` becomes lines of the same kind. Import this before anything else that logs: see
below. No log call waits or raises, whatever the reader of stderr does (`writer`); lines that come in floods are
summarised (`limiter`).
"""

import io
import logging
import os
import sys
import time
from functools import cache
from typing import Any, TextIO, cast

if "structlog" not in sys.modules and "rich" not in sys.modules:
    # structlog takes rich for tracebacks where it finds it: a tenth of a second in every process, and those tracebacks
    # show local variables, so tokens and audio.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]
else:
    import structlog

from dragoman.logs.limiter import Limiter
from dragoman.logs.writer import Writer
from dragoman.visible import visible, visible_lines

LIBRARIES = logging.WARNING
DROPPED = "log lines were dropped: what reads them is too slow or gone"


def configure(level: str, format: str, **bound: Any) -> None:
    """`bound` goes into every line of this process, e.g. its instance."""
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

    # Tracebacks of the interpreter and sentences of commands go to sys.stderr as well, and must not block either.
    sys.stderr = _never_blocking(sys.stderr, dropped_line=dropped_line, tick=tick)
    structlog.configure(
        processors=[*shared, limiter, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _hear_libraries(shared, renderer)
    # The SDKs log as libraries do; inside our own processes they are not strangers.
    logging.getLogger("dragoman").setLevel(level.upper())


def _text_renderer(colors: bool) -> Any:
    """Lines as text. What a client, a node or a library wrote cannot steer the terminal that shows them."""

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
    """Print a line to stdout, if somebody reads it: neither a closed nor a full pipe stops a server."""
    if sys.stdout is not None:
        _never_blocking(sys.stdout).write(f"{text}\n")


def dropped() -> int:
    """The log lines that this process has dropped."""
    return sys.stderr.dropped if isinstance(sys.stderr, Writer) else 0


@cache
def _never_blocking(stream: TextIO, **options: Any) -> TextIO:
    """The same stream behind a `Writer`; one without a descriptor, as tests put in its place, stays what it is."""
    if isinstance(stream, Writer):
        return stream
    try:
        return cast(TextIO, Writer(stream.fileno(), encoding=stream.encoding, **options))
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return stream


def _hear_libraries(shared: list[Any], renderer: Any) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=LIBRARIES, handlers=[handler], force=True)
    logging.captureWarnings(True)
