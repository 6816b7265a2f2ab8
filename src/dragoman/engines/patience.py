"""How long a job may still take: known to whatever works for it, however deep, without being handed down by everybody.

Set once by the pipeline. An engine that would wait for longer than `left_s` gives up at once instead.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

NO_JOB_S = 30.0
_deadline: ContextVar[float | None] = ContextVar("dragoman_engines_deadline", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def left_s() -> float:
    """Seconds; what is asked for outside of a job has half a minute."""
    deadline = _deadline.get()
    return NO_JOB_S if deadline is None else max(0.0, deadline - time.monotonic())
