"""One Redis or Valkey server as a child process, in a data directory of its own.

It listens on a Unix socket (0700), and on a TCP port of the loopback if requested, writes an append-only file and never
evicts. `start` returns when it answers. After `kill`, or after it ended by itself, `start` loads the same data. It does
not outlive the process that started it (see `parent_watch`): it then gets SIGTERM, so that it flushes its file. The
caller decides when to restart it.
"""

import os
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import hiredis

from dragoman.embedded.binary import EngineError, ServerBinary, ServerEnded
from dragoman.embedded.datadir import DataDirectory
from dragoman.embedded.parent_watch import Child

LOG_FILE = "redis.log"
SOCKET_FILE = "redis.sock"
CHOOSE_PORT = 0
_LOG_MAX_BYTES = 16 * 1024 * 1024
# sun_path holds 108 bytes on Linux and 104 elsewhere, the closing zero included.
_SOCKET_PATH_MAX_BYTES = 103
# Below the range of the kernel for outgoing connections, as is the port of the Cluster bus (port + 10000).
_PORTS = range(11000, 22000)
_PORT_TRIES = 20
# Measured with the commands of chat messages on two busy cores: 21 to 27 MB a second.
LOAD_BYTES_PER_S = 20_000_000


def free_port(*, with_bus: bool = False) -> int:
    """A port of the loopback that was free a moment ago; another process may bind it first."""
    for _ in range(1000):
        port = random.choice(_PORTS)
        if _can_bind(port) and (not with_bus or _can_bind(port + 10000)):
            return port
    raise EngineError(f"No free port was found between {_PORTS.start} and {_PORTS.stop}.")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class RedisServer:
    """A server process. `port`: None is the Unix socket only, CHOOSE_PORT a free port. `settings`: more settings."""

    def __init__(
        self,
        binary: ServerBinary,
        data_dir: Path,
        *,
        port: int | None = None,
        fsync: str = "everysec",
        appendonly: bool = True,
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = 15.0,
        lock_timeout_s: float = 2.0,
    ) -> None:
        self.binary = binary
        self.remarks: list[str] = []
        self._directory = DataDirectory(data_dir)
        self._choose_port = port == CHOOSE_PORT
        self.port = port
        self._settings = {"appendonly": "yes" if appendonly else "no", "appendfsync": fsync, **(settings or {})}
        self._start_timeout_s = start_timeout_s
        self._lock_timeout_s = lock_timeout_s
        self._child: Child | None = None
        self._log_start = 0
        self._socket_dir: Path | None = None

    @property
    def data_dir(self) -> Path:
        return self._directory.path

    @property
    def log_path(self) -> Path:
        return self.data_dir / LOG_FILE

    @property
    def socket_path(self) -> Path:
        return (self._socket_dir or self.data_dir) / SOCKET_FILE

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def tcp_url(self) -> str:
        if not self.port:
            raise RuntimeError("the server listens on its Unix socket only")
        return f"redis://127.0.0.1:{self.port}"

    @property
    def child(self) -> Child:
        if self._child is None:
            raise RuntimeError("the server was not started")
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.ended() is None

    def start(self) -> None:
        """Start and wait until it answers. With CHOOSE_PORT, tries another port if another process took the first."""
        self.prepare()
        for left in reversed(range(_PORT_TRIES)):
            self.launch()
            try:
                self.wait_ready()
                return
            except ServerEnded as error:
                if not (self._choose_port and error.port_was_taken and left):
                    raise
                self.port = CHOOSE_PORT

    def prepare(self) -> None:
        """Lock the directory and check that this server can read it. Idempotent."""
        self._directory.claim(self._lock_timeout_s)
        try:
            self._directory.admit(self.binary)
            self._place_socket()
            if self.log_path.exists() and self.log_path.stat().st_size > _LOG_MAX_BYTES:
                self.log_path.replace(self.log_path.with_suffix(".log.1"))
        except BaseException:
            self._directory.release()
            raise

    def launch(self) -> None:
        """Start the process and return at once.

        From the main thread, the kernel alone binds it to this process: see `parent_watch`.
        """
        if self.running:
            raise RuntimeError("the server is running already")
        if self.port == CHOOSE_PORT:
            self.port = free_port()
        self._close_child()
        lock = self._directory.lock
        try:
            with open(os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
                self._log_start = log.seek(0, os.SEEK_END)
                self._child = Child(self._command(), dies_by=signal.SIGTERM, pass_fds=(lock,), output=log)
            self._directory.name_holder(self.pid)
        except OSError as error:
            raise EngineError(f"{self.binary} cannot be started in {self.data_dir}: {error}.") from error

    def wait_ready(self, on_loading: Callable[[int], None] = lambda size: None) -> None:
        """Return when it answers. There is no time limit while it loads its data.

        `on_loading` is called once if it loads data, with the number of bytes.
        """
        until, reported = time.monotonic() + self._start_timeout_s, False
        while (answer := self._ping()) != "PONG":
            if (code := self.child.ended()) is not None:
                raise self._ended(code)
            if answer == "LOADING":
                if not reported:
                    reported = True
                    on_loading(self._directory.data_bytes())
                until = time.monotonic() + self._start_timeout_s
            elif time.monotonic() > until:
                self.kill()
                raise ServerEnded(
                    f"{self.binary} at {self.binary.path} did not answer within {self._start_timeout_s:g} s and was "
                    f"stopped: see its log {self.log_path}.",
                    self.log_tail(),
                )
            time.sleep(0.003)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Shut it down (it flushes its file), kill it after `timeout_s`, and unlock the directory."""
        until = time.monotonic() + timeout_s
        asked = self.running and self._shut_down()
        while self.running and time.monotonic() < until:
            # Repeated: a server that is writing its first file ignores the request.
            if not asked:
                self.child.signal(signal.SIGTERM)
            self.child.wait(min(1.0, timeout_s))
            asked = False
        self.kill()
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        self._directory.release()

    def kill(self) -> None:
        """Kill it. The directory stays locked, so that `start` loads the same data."""
        if self._child is not None:
            self._child.process.kill()
            self._child.wait()
            self._close_child()

    def call(self, *command: str | bytes | int | float) -> Any:
        """Send one command on a connection of its own; for tests and for building a Cluster."""
        with wire(self.socket_path) as connection:
            return connection.call(*command)

    def log_tail(self, lines: int = 5) -> str:
        """The last lines of its log since the last launch."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 16384))
                text = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join([line for line in text if line.strip()][-lines:])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _place_socket(self) -> None:
        if self._socket_dir is None and len(os.fsencode(self.socket_path)) > _SOCKET_PATH_MAX_BYTES:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="dragoman-"))
            self.remarks.append(
                f"The path of {self.data_dir} is too long for a Unix socket; the socket is {self.socket_path}."
            )

    def _command(self) -> list[str]:
        settings = {
            "dir": str(self.data_dir),
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "port": str(self.port or 0),
            "bind": "127.0.0.1",
            "daemonize": "no",
            "save": "",
            # Small enough that a restarted server loads its file within 2 s (see LOAD_BYTES_PER_S), large enough that
            # a rewrite of all data happens at most every 10 s at 1,000 messages a second.
            "auto-aof-rewrite-min-size": "32mb",
            "auto-aof-rewrite-percentage": "50",
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            **self._settings,
        }
        return [str(self.binary.path), *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def _ping(self) -> str | None:
        try:
            with wire(self.socket_path, timeout_s=2.0) as connection:
                return str(connection.call("PING"))
        except CommandFailed as error:
            return str(error).split(" ", 1)[0]
        except OSError:
            return None

    def _shut_down(self) -> bool:
        """Send SHUTDOWN, which takes effect at once; a signal takes up to 0.1 s."""
        try:
            with wire(self.socket_path, timeout_s=1.0) as connection:
                connection.call("SHUTDOWN", "NOSAVE")
        except ConnectionError:
            return True
        except (OSError, CommandFailed):
            pass
        return False

    def _ended(self, code: int) -> ServerEnded:
        tail = self.log_tail()
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        sentence = (
            f"{self.binary} at {self.binary.path} ended {how} while starting; the end of its log {self.log_path}:"
        )
        return ServerEnded(f"{sentence}\n{tail or '(the log is empty)'}", tail)

    def _close_child(self) -> None:
        if self._child is not None:
            self._child.close()


# -- wire ------------------------------------------------------------------------------------------
#
# A blocking connection to the Unix socket of a server: to ping it, and to build a Cluster.
#
# The product itself uses the asynchronous connections of `dragoman.store`.


class CommandFailed(Exception):
    """The server answered with an error."""


class Wire:
    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def call(self, *command: str | bytes | int | float) -> Any:
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub takes one word only
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise CommandFailed(str(reply))
        return reply

    def close(self) -> None:
        self._socket.close()


@contextmanager
def wire(path: Path, timeout_s: float = 10.0) -> Iterator[Wire]:
    connection = Wire(path, timeout_s)
    try:
        yield connection
    finally:
        connection.close()
