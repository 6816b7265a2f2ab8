"""What nodes saw, one JSON line an event, in the order of writing. Nodes write, the checker reads.

    began        the process is there                 given       a job_assign came
    registered   the server took the node             started     its turn has come
    lost         the connection is gone               ended       answered: ok, empty or failed
    alive        still there; several a second        cancelled   a job_cancel came

Times are of `time.monotonic`, which all processes of one machine share. Each line is one write, so a node that is
killed leaves whole lines; the last one alone may be cut off.
"""

import os
from collections.abc import Iterable
from enum import StrEnum, auto
from pathlib import Path

import msgspec


class Kind(StrEnum):
    BEGAN = auto()
    REGISTERED = auto()
    LOST = auto()
    ALIVE = auto()
    GIVEN = auto()
    STARTED = auto()
    ENDED = auto()
    CANCELLED = auto()


class NodeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    kind: Kind
    node: str
    pid: int
    slots: int = 0
    url: str = ""  # of the instance it is connected to
    job: str = ""
    attempt: int = 0
    session: str = ""
    index: int = -1
    turn: str = ""
    outcome: str = ""
    pieces: str = ""  # as `pieces.text` writes them


_decode = msgspec.json.Decoder(NodeEvent).decode


class EventFile:
    """Appended to by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: NodeEvent) -> None:
        os.write(self._file, msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(paths: Iterable[Path], since: float = 0.0) -> list[NodeEvent]:
    """All events of these files since then, in order of time."""
    found = list[NodeEvent]()
    for path in paths:
        if path.exists():
            found += [_decode(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return sorted((event for event in found if event.at >= since), key=lambda event: event.at)
