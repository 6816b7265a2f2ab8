"""Instances and nodes that are forked, as a pytest plugin: otherwise each start takes a second of CPU for imports.

Each test process has one *preloader*, which has imported what they import and forks for each. A forked process executes
`python -m <module> …` in a session of its own, as `tools.processes` would start it. Tests of how processes start
(`serve`, `demo`, the supervisor) start them without it.

    test process ── preloader ── keeper ── instance        each ends with the one before it

The keeper waits for its instance and reports the pid and then the exit code.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import getrandbits
from signal import Signals
from typing import IO, Any, cast

import pytest

from dragoman.embedded.parent_watch import Child
from dragoman.tools.processes import Process

PRELOADED = (
    "dragoman.instance.instance",
    "dragoman.cli.node",
    "dragoman.engines.catalog",
    "dragoman.node",
    "typer",
    "uvloop",
)
_LONGEST = 1 << 17
_ABOVE_ALL = 500  # no process is given a descriptor of this number or a higher one
_PR_SET_PDEATHSIG = 1


# -- the side of the tests -------------------------------------------------------------------------


class Forked:
    """What is used of a `Popen`, for a process that is not our child."""

    def __init__(self, reports: int, stdin: IO[bytes] | None) -> None:
        self._reports, self.stdin = os.fdopen(reports, "rb", buffering=0), stdin
        self.returncode: int | None = None
        self.pid = int(self._reports.read(8))

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._reports], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            self.returncode = int(self._reports.read(8) or -signal.SIGKILL)
            self._reports.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since, and its parent has waited for it
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Preloader:
    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._child = Child(command, dies_by=signal.SIGKILL, pass_fds=[theirs.fileno()])

    def fork(self, arguments: Sequence[str], descriptors: dict[int, int]) -> int:
        """Where the pid and the exit code can be read. `descriptors`: ours, by their number in the new process."""
        reports, end = os.pipe()
        try:
            request = {"arguments": arguments, "numbers": list(descriptors), "environment": dict(os.environ)}
            socket.send_fds(self._ours, [json.dumps(request).encode()], [end, *descriptors.values()])
        finally:
            os.close(end)
        return reports

    def close(self) -> None:
        self._ours.close()
        self._child.wait_or_kill(0.0)


class ForkedChild(Child):
    _preloader: Preloader | None = None

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        dies_by: Signals,
        stdin: int = subprocess.DEVNULL,
        output: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
        **options: Any,
    ) -> None:
        if command[1] != "-m" or output is None:
            super().__init__(command, dies_by=dies_by, stdin=stdin, output=output, pass_fds=pass_fds, **options)
            return
        self._pipe = None
        if ForkedChild._preloader is None:
            ForkedChild._preloader = Preloader()
        theirs, ours = os.pipe()
        try:
            mine = {0: theirs, 1: output.fileno(), 2: output.fileno(), **{fd: fd for fd in pass_fds}}
            reports = ForkedChild._preloader.fork([*map(str, command[2:])], mine)
        finally:
            os.close(theirs)
        if stdin != subprocess.PIPE:
            os.close(ours)
        forked = Forked(reports, os.fdopen(ours, "wb", buffering=0) if stdin == subprocess.PIPE else None)
        self.process = cast("subprocess.Popen[bytes]", forked)


def pytest_configure() -> None:
    if sys.platform == "linux":
        Process.start_child = ForkedChild


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    if ForkedChild._preloader is not None:
        ForkedChild._preloader.close()


# -- the preloader ---------------------------------------------------------------------------------


def _bind() -> None:
    """End with the parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _serve(requests: socket.socket) -> None:
    """Return in each forked process that is to run, and at the end of the requests."""
    keepers = set[int]()
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _LONGEST, 16)
        if not data:
            os._exit(0)
        keepers -= {pid for pid in keepers if os.waitpid(pid, os.WNOHANG)[0]}
        keeper = os.fork()
        if keeper == 0:
            requests.close()
            _keep(json.loads(data), descriptors)
            return
        keepers.add(keeper)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(request: dict[str, Any], descriptors: list[int]) -> None:
    _bind()
    reports, *given = descriptors
    pid = os.fork()
    if pid:
        for descriptor in given:
            os.close(descriptor)
        os.write(reports, b"%8d" % pid)
        os.write(reports, b"%8d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    _bind()
    os.setsid()
    os.close(reports)
    # The numbers are those of another process: one may stand where another is to go.
    above = [os.dup2(one, _ABOVE_ALL + at) for at, one in enumerate(given)]
    os.closerange(0, _ABOVE_ALL)
    for number, one in zip(request["numbers"], above, strict=True):
        os.dup2(one, number)
    os.closerange(_ABOVE_ALL, _ABOVE_ALL + len(above))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    # The only value that is drawn at an import: the ids of connections, which differ from process to process.
    sys.modules["dragoman.gateway.websocket"].__dict__["_ids"] = count(getrandbits(48))


if __name__ == "__main__":
    sys.path[0] = os.getcwd()
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
