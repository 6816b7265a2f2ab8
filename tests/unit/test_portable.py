"""What only Linux has is used where it is there, and nothing needs it at import."""

import resource
import subprocess
import sys

import pytest

from dragoman.instance.open_files import raise_file_limit

# The standard library's own selector is made first, and keeps what it needs of epoll.
SCRIPT = """
import asyncio, os, pkgutil, select, selectors, socket, time, importlib
for module, names in ((select, dir(select)), (time, ["CLOCK_BOOTTIME"]), (os, ["pipe2", "pidfd_open", "O_DIRECT"])):
    for name in names:
        if module is not select or (name.lower().startswith("epoll") and name != "EPOLLIN"):
            delattr(module, name)
import dragoman
for found in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
    if not found.name.startswith("dragoman.tools.bench") and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
from dragoman.gateway import idle_poller
print(idle_poller.POLLER.__name__)
"""


def test_every_module_but_the_benches_can_be_imported_without_what_only_linux_has() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Selector\n"), done.stderr


def test_a_hard_limit_of_open_files_that_the_system_refuses_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS says that there is no limit, and then allows 10,240."""
    given: list[int] = []

    def setrlimit(what: int, limits: tuple[int, int]) -> None:
        if not 0 <= limits[0] <= 10_240:
            raise ValueError("current limit exceeds maximum limit")
        given.append(limits[0])

    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert raise_file_limit(10_000)
    assert not raise_file_limit(20_000)
    assert given == [10_240, 10_240]
