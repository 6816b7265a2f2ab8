"""The command line as a user has it: real processes in a folder of their own, a real terminal where one matters.

`Dragoman` is one running command in a process group of its own, so that Ctrl-C reaches what a terminal's would reach.
What it started is killed when the test is over, whatever happened.
"""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from dragoman.embedded.engine import Wire, free_port, wire
from support.waiting import Descendants, alive, wait_for

READY = "Dragoman is ready after"
TIMEOUT_S = 60.0
_direct = build_opener(ProxyHandler({}))


def environment(**variables: str) -> dict[str, str]:
    """Nothing of ours that the machine has set, and what the test sets."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DRAGOMAN_", "COLUMNS"))}
    # Not the models of the user: what a test finds must not depend on them.
    own = {"PYTHONUNBUFFERED": "1", "TERM": "xterm", "DRAGOMAN_MODELS": os.path.join(os.devnull, "models")}
    return {**inherited, **own, **variables}


class Dragoman:
    """One `dragoman …`; `tty`: on a terminal of 80 columns, which is then both its output and its errors.

    `python` runs it: that of the tests, or that of an environment where Dragoman is installed.
    """

    def __init__(
        self,
        folder: Path,
        *args: str,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._below = folder, Descendants()
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        self._terminal: int | None = None
        command = [str(python), "-m", "dragoman.cli.main", *args]
        if tty:
            self.process = self._on_terminal(command, environment(**env or {}))
        else:
            with self._out.open("wb") as out, self._err.open("wb") as err:
                self.process = subprocess.Popen(
                    command, cwd=folder, stdout=out, stderr=err, start_new_session=True, env=environment(**env or {})
                )

    def _on_terminal(self, command: list[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
        self._terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=env,
        )
        os.close(theirs)
        self._err.write_bytes(b"")
        self._reader = threading.Thread(target=self._read_terminal, daemon=True)
        self._reader.start()
        return process

    def _read_terminal(self) -> None:
        assert self._terminal is not None
        with self._out.open("wb", buffering=0) as out:
            try:
                while data := os.read(self._terminal, 65536):
                    out.write(data)
            except OSError:
                pass  # nobody has the other end any more

    # -- what it says ----------------------------------------------------------------------------

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def until(self, text: str) -> Self:
        """Wait until it has said so."""

        def said() -> bool:
            assert text in self.out + self.err or self.process.poll() is None, self.out + self.err
            return text in self.out + self.err

        wait_for(said, text, TIMEOUT_S)
        return self

    @property
    def base(self) -> str:
        """The address of its HTTP, once it is ready."""
        self.until(READY)
        found = re.search(r"http://(\S+)/health/ready", self.out)
        assert found is not None
        return found[1]

    # -- what it serves --------------------------------------------------------------------------

    def get(self, path: str, base: str = "", **headers: str) -> tuple[int, Any]:
        """Status and body, as JSON where it is some."""
        try:
            with _direct.open(Request(f"http://{base or self.base}{path}", headers=headers), timeout=10) as answer:
                return answer.status, _body(answer.read())
        except HTTPError as error:
            with error:
                return error.code, _body(error.read())

    @contextmanager
    def redis(self) -> Iterator[Wire]:
        """A connection to its private Redis."""
        with wire(self.folder / "data" / "redis.sock") as connection:
            yield connection

    # -- how it ends -----------------------------------------------------------------------------

    def below(self) -> list[int]:
        return self._below.of(self.process.pid)

    def type(self, text: str) -> None:
        """On its terminal."""
        assert self._terminal is not None
        os.write(self._terminal, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C: on a terminal the key itself, otherwise what a terminal would send to the whole group."""
        self.below()
        if self._terminal is not None:
            os.write(self._terminal, b"\x03")
        else:
            os.killpg(self.process.pid, signal.SIGINT)

    def exit_code(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        if self._terminal is not None:
            self._reader.join(TIMEOUT_S)
        return code

    def end(self) -> int:
        """Ctrl-C, and the exit code once nothing of it runs any more."""
        self.interrupt()
        below, code = self.below(), self.exit_code()
        wait_for(lambda: not any(map(alive, below)), "everything it started to end")
        return code

    def close(self) -> None:
        self.below()
        self.process.kill()
        self.process.wait()
        self._below.kill()
        if self._terminal is not None:
            self._reader.join(TIMEOUT_S)
            os.close(self._terminal)
            self._terminal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    folder: Path,
    *args: str,
    command: str = "serve",
    env: Mapping[str, str] | None = None,
    python: str | Path = sys.executable,
) -> Dragoman:
    """A server on free ports; the admin port of its first worker is one that is free, too."""
    ports = ("--port", "0", "--set", f"server.admin_port={free_port() - 1}")
    return Dragoman(folder, command, *ports, *args, env=env, python=python)


def answer(folder: Path, *args: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that ends by itself."""
    with Dragoman(folder, *args, env=env) as command:
        return command.exit_code(), command.out, command.err


def _body(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()
