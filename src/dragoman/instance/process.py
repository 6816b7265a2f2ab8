"""This process and others: its limit of open files, and whether the process that wrote a presence is dead.

A process is identified by the boot of its machine, its PID namespace, its PID and its start time in clock ticks since
the boot; no two processes have all four in common. If this process runs in the same boot and namespace, it can
ask the kernel. Anything that is not certain counts as *not dead*: a stopped process, a zombie (threads of it may still
run), a process that cannot be inspected, and every process of another machine or container.
"""

import os
import resource
from pathlib import Path

from dragoman.store.instances import Presence

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STARTED = 19  # the field of the start time in /proc/<pid>/stat, counted after the name


def machine() -> str:
    """The boot and PID namespace of this process; empty if they are unknown, as on macOS."""
    try:
        # A /proc of another PID namespace would answer for other processes.
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """The start time of a process; 0 if it is unknown."""
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
    now_running = start_ticks(presence.pid)
    return now_running not in (0, presence.start_ticks)


# -- open files ------------------------------------------------------------------------------------
#
# Raises the limit of open files, and so of sockets, to what the system allows.
#
# The usual soft limit of 1024 is used up by a thousand clients; then not even Redis could be reached again.

MACOS = 10_240  # macOS reports no hard limit, and refuses a soft limit above this


def raise_file_limit(wanted: int = 0) -> bool:
    """Set the soft limit to the hard limit; children inherit it. False: it is below `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (MACOS, hard))
            return wanted <= MACOS
    return hard == resource.RLIM_INFINITY or hard >= wanted
