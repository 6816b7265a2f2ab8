"""One line a second for what would otherwise be logged thousands of times.

A line with `limited=True` is written when it is the first of its kind: its level and event, and with `each="<field>"`
the value of that field too, such as the node it is about, so that one node hides no other. Those that follow are
counted. A second later, and every second for as long as more come, one line stands for them: it is one of them, and
`repeated` says how many it stands for. With `limited="<field>"` it is the one in which that field is largest, otherwise
the last.
"""

import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from structlog import DropEvent

WINDOW_S = 1.0
MAX_KINDS = 1000  # beyond it, `each` makes no difference: lines about many nodes share a second

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
