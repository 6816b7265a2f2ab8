"""One Redis or Valkey server as a child process, in a data directory of its own.

It listens on a Unix socket (0700), and on a TCP port of the loopback if one is asked for; writes an append-only file
and never evicts. `start` returns when it answers; after `kill`, or when it died by itself, `start` takes up the same
data. It does not outlive the process that started it (see `parent_watch`): it then gets SIGTERM, so that it still
flushes its file. Who restarts it, and when, is left to the caller.
"""

import os
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from dragoman.embedded.binary import ServerBinary, find_server
from dragoman.embedded.datadir import DataDirectory
from dragoman.embedded.errors import EngineError, ServerEnded
from dragoman.embedded.parent_watch import Child
from dragoman.embedded.wire import Refused, wire

__all__ = ["EngineError", "RedisServer", "ServerBinary", "ServerEnded", "find_server", "free_port"]

LOG_FILE = "redis.log"
SOCKET_FILE = "redis.sock"
CHOOSE_PORT = 0
_LOG_MAX_BYTES = 16 * 1024 * 1024
# sun_path holds 108 bytes on Linux and 104 elsewhere, the closing zero included.
_SOCKET_PATH_MAX_BYTES = 103
# Below the range the kernel takes for outgoing connections, with the Cluster bus (port + 10000) as well.
_PORTS = range(11000, 22000)
_PORT_TRIES = 20
# Measured with the commands of chat messages on two busy cores: 21 to 27 MB a second.
LOAD_BYTES_PER_S = 20_000_000


def free_port(*, with_bus: bool = False) -> int:
    """A port of the loopback that nobody held a moment ago; another process may still be faster."""
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
    """`port`: None = Unix socket only, CHOOSE_PORT = a free one. `settings`: further lines of its configuration."""

    def __init__(
        self,
        binary: ServerBinary,
        data_dir: Path,
        *,
        port: int | None = None,
        fsync: str = "everysec",
        appendonly: bool = True,
        settings: Mapping[str, str] | None = None,
        start_patience_s: float = 15.0,
        lock_patience_s: float = 2.0,
    ) -> None:
        self.binary = binary
        self.remarks: list[str] = []
        self._directory = DataDirectory(data_dir)
        self._choose_port = port == CHOOSE_PORT
        self.port = port
        self._settings = {"appendonly": "yes" if appendonly else "no", "appendfsync": fsync, **(settings or {})}
        self._start_patience_s = start_patience_s
        self._lock_patience_s = lock_patience_s
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
        """Run until it answers. With CHOOSE_PORT, a port that somebody took meanwhile is exchanged for another."""
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
        """Take the directory and check that this server may open it. Repeating it changes nothing."""
        self._directory.claim(self._lock_patience_s)
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

        Called from the main thread, it needs nothing but the kernel to be bound to this process: see `parent_watch`.
        """
        if self.running:
            raise RuntimeError("the server runs already")
        if self.port == CHOOSE_PORT:
            self.port = free_port()
        self._let_go()
        lock = self._directory.lock
        try:
            with open(os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
                self._log_start = log.seek(0, os.SEEK_END)
                self._child = Child(self._command(), dies_by=signal.SIGTERM, pass_fds=(lock,), output=log)
            self._directory.name_holder(self.pid)
        except OSError as error:
            raise EngineError(f"{self.binary} cannot be started in {self.data_dir}: {error}.") from error

    def wait_ready(self, on_loading: Callable[[int], None] = lambda size: None) -> None:
        """Return when it answers; one that is still loading its data is waited for however long that takes.

        `on_loading` is called once if it loads, with the bytes there are.
        """
        until, told = time.monotonic() + self._start_patience_s, False
        while (answer := self._ping()) != "PONG":
            if (code := self.child.ended()) is not None:
                raise self._ended(code)
            if answer == "LOADING":
                if not told:
                    told = True
                    on_loading(self._directory.data_bytes())
                until = time.monotonic() + self._start_patience_s
            elif time.monotonic() > until:
                self.kill()
                raise ServerEnded(
                    f"{self.binary} at {self.binary.path} did not answer within {self._start_patience_s:g} s and was "
                    f"stopped: see its log {self.log_path}.",
                    self.log_tail(),
                )
            time.sleep(0.003)

    def stop(self, patience_s: float = 10.0) -> None:
        """End it in good order (it flushes its file), by force after `patience_s`, and give the directory back."""
        until = time.monotonic() + patience_s
        asked = self.running and self._shut_down()
        while self.running and time.monotonic() < until:
            # Again and again: a server that is writing its first file refuses to end and forgets that it was asked.
            if not asked:
                self.child.signal(signal.SIGTERM)
            self.child.wait(min(1.0, patience_s))
            asked = False
        self.kill()
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        self._directory.release()

    def kill(self) -> None:
        """-9. The directory stays ours, so that `start` takes up the same data."""
        if self._child is not None:
            self._child.process.kill()
            self._child.wait()
            self._let_go()

    def call(self, *command: str | bytes | int | float) -> Any:
        """One command on a connection of its own; for tests and for building a Cluster."""
        with wire(self.socket_path) as connection:
            return connection.call(*command)

    def log_tail(self, lines: int = 5) -> str:
        """The last lines written since the last launch."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 16384))
                told = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join([line for line in told if line.strip()][-lines:])

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
                f"The path of {self.data_dir} is too long for a Unix socket, which is at {self.socket_path} instead."
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
            # Such that a server that was killed has loaded its file within 2 s (see LOAD_BYTES_PER_S), and that a
            # rewrite, which writes all data again, comes no more often than every 10 s at a thousand messages a second.
            "auto-aof-rewrite-min-size": "32mb",
            "auto-aof-rewrite-percentage": "50",
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            **self._settings,
        }
        return [str(self.binary.path), *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def _ping(self) -> str | None:
        try:
            with wire(self.socket_path, patience_s=2.0) as connection:
                return str(connection.call("PING"))
        except Refused as error:
            return str(error).split(" ", 1)[0]
        except OSError:
            return None

    def _shut_down(self) -> bool:
        """Ask by command, which it obeys at once; a signal waits for its next round, a tenth of a second."""
        try:
            with wire(self.socket_path, patience_s=1.0) as connection:
                connection.call("SHUTDOWN", "NOSAVE")
        except ConnectionError:
            return True
        except (OSError, Refused):
            pass
        return False

    def _ended(self, code: int) -> ServerEnded:
        tail = self.log_tail()
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        sentence = (
            f"{self.binary} at {self.binary.path} ended {how} while starting; the end of its log {self.log_path}:"
        )
        return ServerEnded(f"{sentence}\n{tail or '(nothing was written)'}", tail)

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.close()
