"""The script that `lifeline.Child` starts: it binds itself to its parent and then becomes the command (same pid).

    become.py <pid of the parent> <signal> <descriptor of the watched pipe, or ''> <user id, or ''> <command …>

It runs without site-packages and must start fast, so it imports nothing it can do without.
"""

import contextlib
import os
import select
import sys


def bind_by_kernel(parent: int, number: int, user: str) -> None:
    import ctypes

    pr_set_pdeathsig = 1
    library = ctypes.CDLL(None)
    # Before the binding, which a change of user undoes; after the import, which the other user may not be able to read.
    turn_into(user)
    library.prctl(pr_set_pdeathsig, number, 0, 0, 0)
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


def turn_into(user: str) -> None:
    """For servers that refuse to be root; the group of the same number goes with it."""
    if user:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))


def become(arguments: list[str]) -> None:
    parent, number, line, user, *command = arguments
    if line:
        leave_watcher(int(line), int(number))
        turn_into(user)
    else:
        bind_by_kernel(int(parent), int(number), user)
    os.execvp(command[0], command)


if __name__ == "__main__":
    become(sys.argv[1:])
