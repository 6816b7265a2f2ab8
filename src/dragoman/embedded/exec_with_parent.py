"""The script that `parent_watch.Child` starts: it binds itself to its parent, then executes the command (same pid).

    exec_with_parent.py <pid of the parent> <signal> <watched descriptor, or ''> <user id, or ''> <command …>

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
    change_user(user)
    library.prctl(pr_set_pdeathsig, number, 0, 0, 0)
    # The parent may have ended before the call; then the kernel sends no signal.
    if os.getppid() != parent:
        sys.exit(1)


def start_watcher(pipe: int, number: int) -> None:
    command = os.getpid()
    if os.fork() != 0:
        os.close(pipe)
        return
    # All other descriptors are closed: the watcher must not keep an inherited lock or pipe open.
    for descriptor in map(int, os.listdir("/dev/fd")):
        if descriptor != pipe:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    while os.getppid() == command:
        if select.select([pipe], [], [], 0.2)[0]:
            os.kill(command, number)
            break
    os._exit(0)


def change_user(user: str) -> None:
    """For servers that refuse to be root; the group of the same number goes with it."""
    if user:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))


def exec_with_parent(arguments: list[str]) -> None:
    parent, number, pipe, user, *command = arguments
    if pipe:
        start_watcher(int(pipe), int(number))
        change_user(user)
    else:
        bind_by_kernel(int(parent), int(number), user)
    os.execvp(command[0], command)


if __name__ == "__main__":
    exec_with_parent(sys.argv[1:])
