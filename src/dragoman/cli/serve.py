"""`dragoman serve`: the supervisor with its workers, and where to look."""

import time
from typing import TYPE_CHECKING, Annotated

STARTED = time.monotonic()

import typer  # noqa: E402

from dragoman.cli.settings import ConfigFile, Overrides, settings  # noqa: E402

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.supervisor import Ready


def serve(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", show_default=False)] = None,
    workers: Annotated[int | None, typer.Option(help="Equal instances behind the port.", show_default=False)] = None,
) -> int:
    """Run Dragoman until Ctrl-C: with no Redis configured, on a private one."""
    from dragoman import logs
    from dragoman.supervisor import run

    flags = {"server.host": host, "server.port": port, "server.workers": workers}
    loaded = settings(ctx, config, override, flags).config
    logs.configure(loaded.log.level, loaded.log.format)
    return run(loaded, on_ready=lambda ready: typer.echo(where_to_look(loaded, ready)), started=STARTED)


def where_to_look(config: "Config", ready: "Ready") -> str:
    host = "127.0.0.1" if config.server.host in ("0.0.0.0", "::") else config.server.host
    base = f"{host}:{ready.port}"
    redis = config.scheduler.phase2.redis
    if ready.engine is not None:
        engine = f"private {ready.engine.binary}, data in {ready.engine.data_dir}, log {ready.engine.log_path}"
    else:
        engine = f"shared Redis ({redis.mode})"
    count = len(ready.workers)
    return (
        f"\nDragoman is ready after {ready.elapsed_s:.2f} s with {count} instance{'s' if count > 1 else ''}.\n"
        f"  clients   ws://{base}/ws/session\n"
        f"  nodes     ws://{base}/ws/node\n"
        f"  health    http://{base}/health/ready\n"
        f"  cluster   http://{base}/api/v1/cluster   (or: dragoman status)\n"
        f"  metrics   http://{base}/metrics\n"
        f"  engine    {engine}\n"
    )
