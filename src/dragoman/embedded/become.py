"""The script that `lifeline.Child` starts: it binds itself to its parent and then becomes the command (same pid).

    become.py <pid of the parent> <signal> <descriptor of the watched pipe, or ''> <command …>

It runs without site-packages and must start fast, so it imports nothing it can do without.
"""

import contextlib
import os
import select
import sys


def bind_by_kernel(parent: int, number: int) -> None:
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number, 0, 0, 0)
    # The parent may have ended before the call: nobody would send the signal then.
    if os.getppid() != parent:
        sys.exit(1)


def leave_watcher(line: int, number: int) -> None:
    command = os.getpid()
    if os.fork() != 0:
        os.close(line)
        return
    # Everything else is closed: an inherited lock or pipe must not live on in the watcher.
    for descriptor in map(int, os.listdir("/dev/fd")):
        if descriptor != line:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    while os.getppid() == command:
        if select.select([line], [], [], 0.2)[0]:
            os.kill(command, number)
            break
    os._exit(0)


def become(arguments: list[str]) -> None:
    parent, number, line, *command = arguments
    if line:
        leave_watcher(int(line), int(number))
    else:
        bind_by_kernel(int(parent), int(number))
    os.execvp(command[0], command)


if __name__ == "__main__":
    become(sys.argv[1:])
