"""Limits repeated log lines to one a second.

The first line of its kind with `limited=True` is written at once. The kind is its level and event, and with
`each="<field>"` also the value of that field, such as the id of a node. Further lines of the kind are counted, and once
a second one of them is written, with their number as `repeated`: with `limited="<field>"` the line in which that field
is largest, otherwise the last one.
"""

import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from structlog import DropEvent

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
        raise DropEvent

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
