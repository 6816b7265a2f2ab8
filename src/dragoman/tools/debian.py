"""`python -m dragoman.tools.debian [--timeout SECONDS] PACKAGE…` installs the Debian packages that are not there.

Engines for nodes and the browser of the tests are such packages. Only root can install them, and only with apt-get.
The command tries once, within the timeout. If it fails, it prints the reason and ends with status 1.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from dragoman.cli import output

TIMEOUT_S = 300.0
_LOCK_S = 20
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
_OPTIONS = (
    *("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"),
    *("-o", f"DPkg::Lock::Timeout={_LOCK_S}"),
)


def lacking(packages: Sequence[str]) -> list[str]:
    """The packages that are not installed; all of them on a system without dpkg."""
    query = shutil.which("dpkg-query")
    if query is None:
        return list(packages)
    return [package for package in packages if not _installed(query, package)]


def install(packages: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Return why the packages could not be installed; empty if they are installed now."""
    apt = shutil.which("apt-get")
    if apt is None:
        return "there is no apt-get"
    if os.geteuid() != 0:
        return "only root may install packages"
    deadline = time.monotonic() + timeout_s
    wanted = ("install", "-y", "-q", "--no-install-recommends", *packages)
    # Most often the lists are fresh enough; asking for new ones takes longer than the packages.
    for command in (wanted, ("update", "-q"), wanted):
        failed = _run((apt, *_OPTIONS, *command), deadline)
        if failed is None:
            return f"it was not done within {timeout_s:g} s"
        if not failed and command is wanted:
            return ""
    return "apt-get could not get them; is there a network?"


def _run(command: Sequence[str], deadline: float) -> bool | None:
    """Whether it failed; None if the deadline passed."""
    child = subprocess.Popen(
        command,
        env={**os.environ, **_QUIET},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return child.wait(max(0.1, deadline - time.monotonic())) != 0
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            # It ends as by Ctrl-C, so that dpkg is not left half done.
            os.killpg(child.pid, signal.SIGINT)
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def _installed(query: str, package: str) -> bool:
    told = subprocess.run(
        (query, "--show", "--showformat=${db:Status-Status}", package), capture_output=True, text=True, check=False
    )
    return told.stdout == "installed"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m dragoman.tools.debian")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS")
    parser.add_argument("packages", nargs="+")
    given = parser.parse_args(arguments)
    absent = lacking(given.packages)
    if not absent:
        return 0
    output.note(f"installing {' '.join(absent)} with apt-get, at most {given.timeout:g} s …")
    why = install(absent, given.timeout)
    if why:
        output.line(why)
    return int(bool(why))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
