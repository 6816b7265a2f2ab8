"""`dragoman serve` and `dragoman demo`: run the supervisor with its workers, and print the addresses."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from dragoman.cli import output
from dragoman.cli.models import AUTO, LOCAL, SIM, Choice, choose
from dragoman.cli.output import Failure
from dragoman.cli.settings import ConfigFile, Overrides, authority, option, settings

if TYPE_CHECKING:
    from dragoman.config import Config, Loaded
    from dragoman.embedded.parent_watch import Child
    from dragoman.supervisor import Ready


IMPORTED = time.monotonic()

Port = Annotated[
    int | None, option(min=0, max=65535, metavar="PORT", help="Port to listen on; 0 chooses a free one. [server.port]")
]

Workers = Annotated[
    int | None, option(min=1, metavar="N", help="Number of instances behind the port. [server.workers]")
]


def serve(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    host: Annotated[str | None, option(metavar="HOST", help="Address to listen on. [server.host]")] = None,
    port: Port = None,
    workers: Workers = None,
) -> int:
    """Run Dragoman until Ctrl-C or SIGTERM. Running jobs finish first; a second Ctrl-C ends it at once.

    If no Redis is configured, it runs a private one with its data in embedded.data_dir.
    """
    from dragoman import logs  # first: see its docstring
    from dragoman.cli.token import check_secrets
    from dragoman.supervisor import run

    flags = {"server.host": host, "server.port": port, "server.workers": workers}
    loaded = settings(ctx, config, override, flags).config
    check_secrets(loaded)
    logs.configure(loaded.log.level, loaded.log.format)
    return run(loaded, on_ready=lambda ready: output.server_text(addresses(loaded, ready)), started=process_started())


def process_started() -> float:
    """The monotonic time at which this process started, so that the start-up time includes loading Python."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        began = ticks / 100  # USER_HZ is 100 in the kernel's interface, whatever its own clock
        return time.monotonic() - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return IMPORTED


def addresses(config: "Config", ready: "Ready") -> str:
    """What the server prints when it is ready."""
    from dragoman.config.secrets import has_secret

    base = authority(config.server.host, ready.port)
    if ready.engine is not None:
        engine = f"private {ready.engine.binary}, data in {ready.engine.data_dir}, log {ready.engine.log_path}"
    else:
        engine = f"shared Redis ({config.scheduler.phase2.redis.mode})"
    count = len(ready.workers)
    access = "   (needs an operator token)" if has_secret(config) else ""
    return (
        f"\nDragoman is ready after {ready.elapsed_s:.2f} s with {count} instance{'s' if count > 1 else ''}.\n"
        f"  page      http://{base}/\n"
        f"  try       http://{base}/try   (one voice, and a chat)\n"
        f"  console   http://{base}/console{access}\n"
        f"  clients   ws://{base}/ws/session\n"
        f"  nodes     ws://{base}/ws/node\n"
        f"  chat      ws://{base}/ws   (login: POST http://{base}/auth/login)\n"
        f"  health    http://{base}/health/ready\n"
        f"  cluster   http://{base}/api/v1/cluster   (or: dragoman status){access}\n"
        f"  metrics   http://{base}/metrics{access}\n"
        f"  engine    {engine}\n"
        f"  messages  {_archive(config)}\n"
    )


def _archive(config: "Config") -> str:
    """The database of the messages, without its password."""
    from dragoman.archive.archive import archive_url, sqlite_path

    url = archive_url(config)
    if url.startswith("sqlite:"):
        return f"SQLite, {sqlite_path(url)}"
    parts = urlsplit(url)
    return f"PostgreSQL, {parts.hostname or 'local'}{parts.path}"


# -- demo ------------------------------------------------------------------------------------------
#
# `dragoman demo`, which `make run` starts: a server on its embedded engine, and local nodes.
#
# The nodes use offline engines if these are installed or can be installed, and are simulated otherwise. The output says
# which, and why.


NODE_STOP_S = 5.0  # then a node is killed
TOKEN_LIFETIME_S = 365 * 86_400
ROOM_TOKEN_S = 60
LOCAL_SLOTS = 2
LOCAL_ATTEMPT_MS = 25_000


def demo(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    port: Port = None,
    workers: Workers = None,
    nodes: Annotated[int, typer.Option(min=0, max=50, help="Number of nodes.")] = 2,
    engine: Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help="Engine of the nodes. local: the best offline engines that are there, English and Spanish. "
            "sim: simulated. auto: local if it is installed or can be installed, else sim.",
        ),
    ] = AUTO,
    install_engines: Annotated[
        bool | None,
        typer.Option(
            help="Get what real engines need and is missing: packages with apt-get, as root, libraries and models. "
            "Without this option, the command asks once if standard input is a terminal, and gets nothing otherwise."
        ),
    ] = None,
) -> int:
    """Run Dragoman with local nodes and print its addresses. Ctrl-C ends everything."""
    from dragoman import logs  # first: see its docstring
    from dragoman.supervisor import run

    loaded = settings(ctx, config, override, {"server.port": port, "server.workers": workers})
    logs.configure(loaded.config.log.level, loaded.config.log.format)
    chosen = choose(engine, install_engines) if nodes else Choice(SIM, "")
    demo_config = _for_demo(loaded, chosen.engine)
    children: list[Child] = []

    def on_ready(ready: "Ready") -> None:
        children.extend(_start_node(demo_config, ready.port, chosen, number) for number in range(1, nodes + 1))
        count = f"{nodes} {chosen.kind} node{'' if nodes == 1 else 's'}"
        output.server_text(
            f"{addresses(demo_config, ready)}{_room(demo_config, ready.port)}  {count}: {chosen.why}.\n"
            f"{_what_to_try(authority(demo_config.server.host, ready.port))}  Ctrl-C ends everything.\n"
        )

    try:
        return run(demo_config, on_ready=on_ready, started=process_started())
    finally:
        _end(children)


def _room(config: "Config", port: int) -> str:
    """The line with the demo's room. A later run with the same data finds the same room."""
    from dragoman.cli.api import Api, Refusal, segment
    from dragoman.cli.room import ROOMS
    from dragoman.cli.token import signed_token
    from dragoman.config.secrets import has_secret

    base, noted = authority(config.server.host, port), Path(config.embedded.data_dir) / "demo-room"
    api = Api(config, base, signed_token(config, "operator", "demo", ROOM_TOKEN_S) if has_secret(config) else None)
    try:
        row = None
        with suppress(OSError, ValueError, Refusal):
            row = api.get(f"{ROOMS}/{segment(noted.read_text(encoding='utf-8').strip())}")
        if row is None or row["closed"]:
            row = api.post(ROOMS, {"persistent": True})
            with suppress(OSError):
                noted.write_text(row["room_id"], encoding="utf-8")
    except Failure as failure:
        return f"  room      none: {failure}\n"
    return f"  room      {api.base}{row['link']}   (code {row['code']})\n"


def _what_to_try(address: str) -> str:
    """Commands for a second terminal: those of the checkout if it is the working directory."""
    program = ".venv/bin/dragoman" if Path(".venv/bin/dragoman").is_file() else "dragoman"
    commands = ("say", "chat --as alice --to bob", "status --watch")
    lines = "".join(f"    {program} {command} --url {address}\n" for command in commands)
    return f"  In a second terminal, in this folder:\n{lines}"


def _for_demo(loaded: "Loaded", engine: str) -> "Config":
    """The settings of the demo: two receipts in chat, and long timeouts for a small machine, unless configured."""
    from msgspec.structs import replace

    from dragoman.config.load import DEFAULT

    config = loaded.config
    if loaded.sources["chat.two_phase.enabled"] == DEFAULT:
        config = replace(config, chat=replace(config.chat, two_phase=replace(config.chat.two_phase, enabled=True)))
    times = ("speech.attempt_timeout_ms", "speech.job_timeout_ms")
    if engine == LOCAL and all(loaded.sources[time] == DEFAULT for time in times):
        config = replace(config, speech=replace(config.speech, attempt_timeout_ms=LOCAL_ATTEMPT_MS))
    return config


def _start_node(config: "Config", port: int, choice: Choice, number: int) -> "Child":
    from dragoman.config.secrets import has_secret
    from dragoman.embedded.parent_watch import Child

    name = f"{choice.engine}-{number}"
    if has_secret(config):
        # In the environment: every user of the machine can read a command line.
        os.environ["DRAGOMAN_NODE_TOKEN"] = _token(config, name)
    url = f"ws://{authority(config.server.host, port)}/ws/node"
    options = ["--quiet", "--url", url, *choice.options, "--node-id", name]
    if choice.engine == LOCAL:
        options += ["--slots", str(LOCAL_SLOTS)]
    return Child([sys.executable, "-m", "dragoman.cli.main", "node", *options], dies_by=SIGTERM)


def _token(config: "Config", node_id: str) -> str:
    from dragoman.cli.token import signed_token

    return signed_token(config, "node", node_id, TOKEN_LIFETIME_S)


def _end(children: "list[Child]") -> None:
    for child in children:
        child.signal(SIGTERM)
    for child in children:
        child.wait_or_kill(NODE_STOP_S)
