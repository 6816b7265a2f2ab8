"""`dragoman demo`: what `make run` starts: a server on its embedded engine and a simulated node beside it."""

import subprocess
import sys
from signal import SIGTERM
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.serve import STARTED, where_to_look
from dragoman.cli.settings import ConfigFile, Overrides, settings

if TYPE_CHECKING:
    from dragoman.supervisor import Ready

NODE_PATIENCE_S = 5.0


def demo(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", show_default=False)] = None,
    nodes: Annotated[int, typer.Option(min=0, max=50, help="Simulated nodes beside it.")] = 1,
) -> int:
    """Run Dragoman with simulated nodes, and say where to look; Ctrl-C ends all of it."""
    from dragoman import logs
    from dragoman.embedded.lifeline import Child
    from dragoman.supervisor import run

    loaded = settings(ctx, config, override, {"server.port": port}).config
    logs.configure(loaded.log.level, loaded.log.format)
    children: list[Child] = []

    def ready(told: "Ready") -> None:
        typer.echo(where_to_look(loaded, told))
        command = [sys.executable, "-m", "dragoman.cli.main", "node", "--url", f"ws://127.0.0.1:{told.port}/ws/node"]
        for _ in range(nodes):
            children.append(Child([*command, "--engine", "sim"], dies_by=SIGTERM))
        typer.echo(
            f"  {nodes} simulated node{'' if nodes == 1 else 's'} dialling in; see them: dragoman status --watch"
        )
        typer.echo("  Ctrl-C ends everything.\n")

    try:
        return run(loaded, on_ready=ready, started=STARTED)
    finally:
        for child in children:
            child.signal(SIGTERM)
        for child in children:
            try:
                child.process.wait(NODE_PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
            child.close()
