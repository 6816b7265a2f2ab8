"""The peers of `dragoman bench rooms`, each installed by its own package manager into a cache folder.

    socket.io   two Node processes, connected by the Redis streams adapter
    NATS        one server with a WebSocket listener

A peer that cannot be installed or started raises CannotRun: the bench reports it as not measured.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from dragoman.embedded.engine import free_port
from dragoman.embedded.parent_watch import Child
from dragoman.tools.bench.environment import Servers
from dragoman.tools.processes import CannotRun, last_line, until

SOCKETIO, NATS = "4.8.4", "2.10.29"
NPM_PACKAGES = {"socket.io": SOCKETIO, "@socket.io/redis-streams-adapter": "0.3.1", "ioredis": "5.8.2"}
NATS_MODULE = f"github.com/nats-io/nats-server/v2@v{NATS}"
PROCESSES = 2  # of socket.io
INSTALL_TIMEOUT_S = 600.0
START_TIMEOUT_S = 30.0
_SERVER = Path(__file__).with_name("rooms_socketio.js")
_NATS_CONFIG = 'listen: "127.0.0.1:%d"\nwebsocket { listen: "127.0.0.1:%d", no_tls: true }\n'


@dataclass(frozen=True, slots=True)
class Peer:
    urls: list[str]
    pids: list[int]


def cache_folder() -> Path:
    """Where the peers are installed; delete it to install them again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dragoman" / "bench-peers"


# -- installation ----------------------------------------------------------------------------------


def install_socketio() -> Path:
    """The folder with the packages."""
    folder = cache_folder() / f"socketio-{SOCKETIO}"
    if not all(_version(folder / "node_modules" / name) == wanted for name, wanted in NPM_PACKAGES.items()):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n')
        packages = [f"{name}@{version}" for name, version in NPM_PACKAGES.items()]
        _install(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages], folder)
    _find("node")
    return folder


def install_nats() -> Path:
    """The server."""
    folder = cache_folder() / f"nats-{NATS}"
    server = folder / "nats-server"
    if not server.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _install(["go", "install", NATS_MODULE], folder, {"GOBIN": str(folder)})
    return server


INSTALLERS: dict[str, Callable[[], Path]] = {"socketio": install_socketio, "nats": install_nats}


def _version(package: Path) -> str:
    try:
        return str(json.loads((package / "package.json").read_text())["version"])
    except (OSError, ValueError, KeyError):
        return ""


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise CannotRun(f"{program} is not installed")
    return found


def _install(command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            [_find(command[0]), *command[1:]],
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{command[0]} did not install it: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise CannotRun(f"{command[0]} did not install it: {lines[-1] if lines else 'it printed nothing'}")


# -- servers ---------------------------------------------------------------------------------------


@asynccontextmanager
async def peer(name: str, servers: Servers) -> AsyncIterator[Peer]:
    """The servers of a peer, on an empty Redis."""
    installed = INSTALLERS[name]()
    servers.clear()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-")))
        ports = [free_port() for _ in range(PROCESSES)]
        if name == "socketio":
            redis = servers.urls[0]
            commands = [[_find("node"), str(_SERVER), str(installed), redis, str(port)] for port in ports]
        else:
            config = folder / "nats.conf"
            config.write_text(_NATS_CONFIG % (ports[0], ports[1]))
            commands, ports = [[str(installed), "-c", str(config)]], ports[1:]
        log = folder / "peer.log"
        output = stack.enter_context(log.open("ab"))
        children = []
        for command in commands:
            children.append(child := Child(command, dies_by=SIGKILL, output=output))
            stack.enter_context(closing(child))
            stack.callback(child.wait)
            stack.callback(child.process.kill)
        for port in ports:
            if not await until(lambda port=port: _listens(port), START_TIMEOUT_S):  # type: ignore[misc]
                raise CannotRun(f"it did not start: {last_line(log)}")
        yield Peer([f"ws://127.0.0.1:{port}" for port in ports], [child.pid for child in children])


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
