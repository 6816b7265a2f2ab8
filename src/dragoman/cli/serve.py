"""`dragoman serve`: runs the supervisor with its workers and prints the addresses."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

IMPORTED = time.monotonic()

import typer  # noqa: E402

from dragoman.cli import output  # noqa: E402
from dragoman.cli.address import authority  # noqa: E402
from dragoman.cli.settings import ConfigFile, Overrides, settings  # noqa: E402

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.supervisor import Ready

Port = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="Port to listen on; 0 chooses a free one. [server.port]",
        show_default=False,
    ),
]

Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of instances behind the port. [server.workers]", show_default=False),
]


def serve(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address to listen on. [server.host]", show_default=False)
    ] = None,
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
