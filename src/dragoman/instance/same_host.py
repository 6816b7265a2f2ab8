"""Whether the process that wrote a presence is dead, where the kernel of this machine can tell.

A process is named by the boot of its machine, its PID namespace, its PID and the moment it started, in clock ticks
since the boot; no two processes have all four in common. If this process runs in the same boot and namespace, it can
ask the kernel. Anything that is not certain counts as *not dead*: a stopped process, a zombie (threads of it may still
run), a process that cannot be looked at, and every process of another machine or container.
"""

import os
from pathlib import Path

from dragoman.store.instances import Presence

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STARTED = 19  # the place of the start time in /proc/<pid>/stat, counted behind the name


def machine() -> str:
    """The boot and PID namespace of this process; empty where they cannot be known, e.g. on macOS."""
    try:
        # A /proc of another PID namespace would answer for other processes.
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """When the process started; 0 if that cannot be known."""
    try:
        # Its name may contain anything, spaces and brackets too.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return 0


def is_dead(presence: Presence) -> bool:
    """Whether it is certain that the process which wrote `presence` has ended."""
    if not presence.machine or not presence.start_ticks or presence.machine != machine():
        return False
    try:
        os.kill(presence.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    now_there = start_ticks(presence.pid)
    return now_there not in (0, presence.start_ticks)
