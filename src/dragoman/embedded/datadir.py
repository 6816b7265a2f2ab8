"""The data directory of a server: private (0700), locked by one server at a time, with a record of who wrote it.

- The lock is an flock whose descriptor the server inherits: it lasts as long as the server runs, even after the process
  that started it was killed.
- The record names the kind and version of the server that wrote the data. An older server or one of another kind is
  refused: Redis 6.2 starts empty, without an error, on the data of a newer version. The record is written before the
  server starts, so that it is never older than the data.
"""

import fcntl
import json
import os
import stat
import time
from pathlib import Path

from dragoman.embedded.binary import EngineError, ServerBinary, Version, dotted

LOCK_FILE = "dragoman.lock"
RECORD_FILE = "dragoman-engine.json"
_DATA = ("appendonlydir", "appendonly.aof", "dump.rdb")


class DataDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._lock: int | None = None

    @property
    def lock(self) -> int:
        """The descriptor that a server inherits to keep the directory locked."""
        if self._lock is None:
            raise RuntimeError("the data directory was not claimed")
        return self._lock

    def claim(self, timeout_s: float) -> None:
        """Create and lock the directory. Waits up to `timeout_s` for a server that is just ending."""
        if self._lock is not None:
            return
        try:
            self._make_private()
            lock = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            taken = _locked(lock, timeout_s)
        except OSError as error:
            raise EngineError(
                f"The data directory {self.path} cannot be used ({error.strerror}): "
                "change its owner, or set another embedded.data_dir."
            ) from error
        if not taken:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
            os.close(lock)
            raise EngineError(
                f"The data directory {self.path} is in use by another server"
                f"{f' (pid {holder})' if holder else ''}: stop that one, or set another embedded.data_dir."
            )
        self._lock = lock

    def _make_private(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = self.path.stat().st_mode
        if not mode & 0o077:
            return
        # Only a directory of our own is made private: a shared one (/tmp, a home) would be closed to its users.
        if not (self.path / RECORD_FILE).exists() and (mode & stat.S_ISVTX or any(self.path.iterdir())):
            raise EngineError(
                f"The data directory {self.path} is open to others and holds other files: "
                "set embedded.data_dir to a directory of its own, or make it private (chmod 700)."
            )
        self.path.chmod(0o700)

    def name_holder(self, pid: int) -> None:
        """Write the pid of the server into the lock file, for the error of a second server."""
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{pid}\n".encode(), 0)

    def admit(self, binary: ServerBinary) -> None:
        """Refuse a server that cannot read the data; otherwise record it as the writer."""
        if self._holds_data():
            kind, version = self._read_record()
            if kind != binary.kind or version > binary.version:
                wrote = f"{kind.capitalize()} {dotted(version)}"
                raise EngineError(
                    f"The data in {self.path} was written by {wrote}, which {binary} ({binary.source}) cannot be "
                    f"trusted to read: name {wrote} or newer in embedded.redis_server, "
                    "or choose another embedded.data_dir."
                )
            if version == binary.version:
                return
        self._write_record(binary)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def data_bytes(self) -> int:
        """The bytes that a server loads when it starts."""
        paths = [self.path / name for name in _DATA]
        files = [file for path in paths for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()]
        return sum(file.stat().st_size for file in files)

    def _holds_data(self) -> bool:
        return any((self.path / name).exists() for name in _DATA)

    def _read_record(self) -> tuple[str, Version]:
        try:
            record = json.loads((self.path / RECORD_FILE).read_bytes())
            major, minor, patch = (int(part) for part in record["version"].split("."))
            return str(record["kind"]), (major, minor, patch)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{self.path} holds data, but no readable {RECORD_FILE} that tells which server wrote it: "
                "choose another embedded.data_dir, or move the data away."
            ) from error

    def _write_record(self, binary: ServerBinary) -> None:
        draft = self.path / f"{RECORD_FILE}.new"
        with draft.open("w") as file:
            json.dump({"kind": binary.kind, "version": dotted(binary.version)}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path / RECORD_FILE)


def _locked(descriptor: int, timeout_s: float) -> bool:
    until = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        else:
            return True
