"""Install Debian packages that some parts of Dragoman use: engines for nodes, a browser for tests.

Only root can install, and only with apt-get. `install` tries once, within a time limit, and returns the reason if it
fails. `python -m dragoman.cli.debian PACKAGE…` serves the Makefile: after a failure the tests that need the packages
are skipped; with CI=true the failure is an error, because there nothing may be skipped.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from dragoman.cli import output

ENGINES = ("apertium-eng-spa", "espeak-ng")
TIMEOUT_S = 90.0
MAKE_TIMEOUT_S = 300.0
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


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Empty if they are there now; else why not."""
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


def main(packages: Sequence[str], say: Callable[[str], None] = output.line) -> int:
    absent = lacking(packages)
    if not absent:
        return 0
    say(f"installing {' '.join(absent)} with apt-get, at most {MAKE_TIMEOUT_S:g} s …")
    why = install(absent, MAKE_TIMEOUT_S)
    if not why:
        return 0
    required = os.environ.get("CI") == "true"
    effect = "CI=true: every part must be there" if required else "Tests that need them are skipped"
    say(f"not installed: {why}. {effect}. By hand: apt-get install {' '.join(absent)}")
    return int(required)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
