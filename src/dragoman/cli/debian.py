"""Packages of Debian that make more of Dragoman work: installed where that is possible, done without where not.

Only root may install, and only where there is apt. It is tried once, within a time, and no failure of it is an error
of ours: the answer is a sentence. `python -m dragoman.cli.debian PACKAGE…` does it for the Makefile.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

ENGINES = ("apertium-eng-spa", "espeak-ng")
PATIENCE_S = 90.0
MAKE_PATIENCE_S = 300.0
_LOCK_S = 20
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
_OPTIONS = (
    *("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"),
    *("-o", f"DPkg::Lock::Timeout={_LOCK_S}"),
)


def lacking(packages: Sequence[str]) -> list[str]:
    """Those that are not installed; all of them where that cannot be known."""
    query = shutil.which("dpkg-query")
    if query is None:
        return list(packages)
    return [package for package in packages if not _installed(query, package)]


def install(packages: Sequence[str], patience_s: float = PATIENCE_S) -> str:
    """Empty if they are there now; else why not."""
    apt = shutil.which("apt-get")
    if apt is None:
        return "there is no apt-get"
    if os.geteuid() != 0:
        return "only root may install packages"
    deadline = time.monotonic() + patience_s
    wanted = ("install", "-y", "-q", "--no-install-recommends", *packages)
    # Most often the lists are fresh enough; asking for new ones takes longer than the packages.
    for command in (wanted, ("update", "-q"), wanted):
        failed = _run((apt, *_OPTIONS, *command), deadline)
        if failed is None:
            return f"it was not done within {patience_s:g} s"
        if not failed and command is wanted:
            return ""
    return "apt-get could not get them; is there a network?"


def _run(command: Sequence[str], deadline: float) -> bool | None:
    """Whether it failed; None if its time was up."""
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


def main(packages: Sequence[str], say: Callable[[str], None] = print) -> None:
    absent = lacking(packages)
    if not absent:
        return
    say(f"installing {' '.join(absent)} by apt-get, at most {MAKE_PATIENCE_S:g} s …")
    if why := install(absent, MAKE_PATIENCE_S):
        say(f"not installed: {why}. What needs them is skipped. By hand: apt-get install {' '.join(absent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
