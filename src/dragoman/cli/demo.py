"""`dragoman demo`: what `make run` starts: a server on its embedded engine and nodes beside it.

The nodes are real ones where their engines are there or can be installed, and simulated ones otherwise; it says which,
and why.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from signal import SIGTERM
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import output
from dragoman.cli.address import authority
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.serve import Port, Workers, started, where_to_look
from dragoman.cli.settings import ConfigFile, Overrides, settings

if TYPE_CHECKING:
    from dragoman.config import Config, Loaded
    from dragoman.embedded.parent_watch import Child
    from dragoman.supervisor import Ready

NODE_PATIENCE_S = 5.0
TOKEN_S = 365 * 86_400
LOCAL_SLOTS = 2
LOCAL_ATTEMPT_MS = 25_000
INSTALL_TIMEOUT_S = 90.0
_APT_GET = "apt-get install "
AUTO, LOCAL, SIM = "auto", "local", "sim"


def demo(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    port: Port = None,
    workers: Workers = None,
    nodes: Annotated[int, typer.Option(min=0, max=50, help="Nodes beside it.")] = 2,
    engine: Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help="What its nodes are. local: offline, English to Spanish, of demo quality. sim: simulated. "
            "auto: local, if that is installed or can be, else sim.",
        ),
    ] = AUTO,
    install_engines: Annotated[
        bool | None,
        typer.Option(
            help="Install what local lacks with apt-get, as root. Without this option it asks, if standard input is a "
            "terminal; otherwise it installs nothing."
        ),
    ] = None,
) -> int:
    """Run Dragoman with nodes beside it, and say where to look; Ctrl-C ends all of it."""
    from dragoman import logs  # first: see there
    from dragoman.supervisor import run

    asked = settings(ctx, config, override, {"server.port": port, "server.workers": workers})
    logs.configure(asked.config.log.level, asked.config.log.format)
    chosen = _choose(engine, install_engines) if nodes else Choice(SIM, "")
    loaded = _demonstrating(asked, chosen.engine)
    children: list[Child] = []

    def ready(told: "Ready") -> None:
        children.extend(_start_node(loaded, told.port, chosen.engine, number) for number in range(1, nodes + 1))
        many = f"{nodes} {chosen.kind} node{'' if nodes == 1 else 's'}"
        watch = f"dragoman status --watch --url {authority(loaded.server.host, told.port)}"
        speak = f"dragoman say --url {authority(loaded.server.host, told.port)}"
        chat = f"dragoman chat --as alice --to bob --url {authority(loaded.server.host, told.port)}"
        output.server_text(
            f"{where_to_look(loaded, told)}  {many} dialling in{chosen.why}. In a second terminal, from this folder:\n"
            f"    .venv/bin/{speak}\n    .venv/bin/{chat}\n    .venv/bin/{watch}\n  Ctrl-C ends everything.\n"
        )

    try:
        return run(loaded, on_ready=ready, started=started())
    finally:
        _end(children)


@dataclass(frozen=True, slots=True)
class Choice:
    engine: str
    why: str

    @property
    def kind(self) -> str:
        return "simulated" if self.engine == SIM else self.engine


def _choose(engine: str, may_install: bool | None) -> Choice:
    """Raises Failure for `local` where that cannot be."""
    if engine not in (AUTO, LOCAL, SIM):
        raise Failure(f"There is no engine {engine!r} for the demo; there are: {AUTO}, {LOCAL}, {SIM}.", USAGE)
    if engine == SIM:
        return Choice(SIM, ", as asked for")
    from dragoman.engines.catalog import local_lacks

    lacks = asyncio.run(local_lacks())
    not_installed = ""
    if lacks is not None and lacks.remedy.startswith(_APT_GET):
        not_installed = _install(lacks.remedy.removeprefix(_APT_GET).split(), may_install)
        lacks = asyncio.run(local_lacks())
    if lacks is None:
        return Choice(LOCAL, ": offline, English → Spanish, every part real and of demo quality")
    tried = f" ({not_installed})" if not_installed else ""
    if engine == LOCAL:
        raise Failure(f"{lacks.what}{tried}. What helps: {lacks.remedy}", 1)
    return Choice(SIM, f": nothing is really translated. {lacks.what}{tried}; what helps: {lacks.remedy}")


def _install(packages: list[str], may_install: bool | None) -> str:
    """Install the packages if the user wants it. Return why they were not installed, or nothing."""
    if may_install is None:
        if not (_can_install() and sys.stdin.isatty()):
            return ""
        may_install = typer.confirm(f"Install {' '.join(packages)} with apt-get, for nodes that really translate?")
    if not may_install:
        return ""
    command = [sys.executable, "-m", "dragoman.tools.debian", "--timeout", f"{INSTALL_TIMEOUT_S:g}", *packages]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def _can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _demonstrating(loaded: "Loaded", engine: str) -> "Config":
    """Unless the settings say otherwise, both receipts of chat are shown, and a small machine may take its time."""
    from msgspec.structs import replace

    from dragoman.config.sources import DEFAULT

    config = loaded.config
    if loaded.sources["chat.two_phase.enabled"] == DEFAULT:
        config = replace(config, chat=replace(config.chat, two_phase=replace(config.chat.two_phase, enabled=True)))
    times = ("speech.attempt_timeout_ms", "speech.job_timeout_ms")
    if engine == LOCAL and all(loaded.sources[time] == DEFAULT for time in times):
        config = replace(config, speech=replace(config.speech, attempt_timeout_ms=LOCAL_ATTEMPT_MS))
    return config


def _start_node(config: "Config", port: int, engine: str, number: int) -> "Child":
    from dragoman.config.secrets import has_secret
    from dragoman.embedded.parent_watch import Child

    name = f"{engine}-{number}"
    if has_secret(config):
        # By the environment: what is on a command line can be read by everybody on the machine.
        os.environ["DRAGOMAN_NODE_TOKEN"] = _token(config, name)
    url = f"ws://{authority(config.server.host, port)}/ws/node"
    options = ["--quiet", "--url", url, "--engine", engine, "--node-id", name]
    if engine == LOCAL:
        options += ["--slots", str(LOCAL_SLOTS)]
    return Child([sys.executable, "-m", "dragoman.cli.main", "node", *options], dies_by=SIGTERM)


def _token(config: "Config", node_id: str) -> str:
    from dragoman.cli.secrets import made

    return made(config, "node", node_id, TOKEN_S)


def _end(children: "list[Child]") -> None:
    for child in children:
        child.signal(SIGTERM)
    for child in children:
        if child.wait(NODE_PATIENCE_S) is None:
            child.process.kill()
            child.wait()
        child.close()
