"""What a process has used, as the kernel counts it."""

import os
from pathlib import Path
from typing import IO

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TAIL_BYTES = 4096


def cpu_s(pid: int) -> float:
    """CPU time of all its threads so far, user and system."""
    # The name in brackets may hold spaces; what is counted from is the bracket that closes it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def last_words(log: IO[bytes]) -> str:
    """The last line that children wrote to the file they share; where they are in it stays where it is."""
    size = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
    lines = tail.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was said")


def stand_aside() -> None:
    """For a process that stands for other machines: it has what nobody else wants of this one.

    A low priority is not enough: whoever wakes up while it runs waits until the scheduler looks again, some 4 ms.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
