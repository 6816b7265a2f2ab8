"""Logs: text on a terminal, one JSON object a line otherwise. To stderr; stdout is for what a command answers.

What libraries say through `logging` becomes lines of the same kind. Import this before anything else that logs: see
below.
"""

import logging
import sys
from typing import Any

if "structlog" not in sys.modules and "rich" not in sys.modules:
    # structlog takes rich for tracebacks where it finds it: a tenth of a second in every process, and those tracebacks
    # show local variables, so tokens and audio.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]
else:
    import structlog

LIBRARIES = logging.WARNING


def configure(level: str, format: str, **bound: Any) -> None:
    """`bound` goes into every line of this process, e.g. its instance."""
    text = format == "text" or (format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        *([] if text else [structlog.processors.format_exc_info]),
    ]
    renderer: Any = structlog.processors.JSONRenderer()
    if text:
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _hear_libraries(shared, renderer)
    # The SDKs log as libraries do; inside our own processes they are not strangers.
    logging.getLogger("dragoman").setLevel(level.upper())
    structlog.contextvars.bind_contextvars(**bound)


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
