"""`dragoman demo`: what `make run` starts: a server on its embedded engine and simulated nodes beside it."""

import os
import sys
import time
from signal import SIGTERM
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.address import authority
from dragoman.cli.serve import Port, started, tell, where_to_look
from dragoman.cli.settings import ConfigFile, Overrides, settings

if TYPE_CHECKING:
    from dragoman.config import Config, Loaded
    from dragoman.embedded.lifeline import Child
    from dragoman.supervisor import Ready

NODE_PATIENCE_S = 5.0
TOKEN_S = 365 * 86_400


def demo(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    port: Port = None,
    nodes: Annotated[int, typer.Option(min=0, max=50, help="Simulated nodes beside it.")] = 2,
) -> int:
    """Run Dragoman with simulated nodes, and say where to look; Ctrl-C ends all of it."""
    from dragoman import logs  # first: see there
    from dragoman.supervisor import run

    loaded = _demonstrating(settings(ctx, config, override, {"server.port": port}))
    logs.configure(loaded.log.level, loaded.log.format)
    children: list[Child] = []

    def ready(told: "Ready") -> None:
        children.extend(_start_node(loaded, told.port, number) for number in range(1, nodes + 1))
        many = f"{nodes} simulated node{'' if nodes == 1 else 's'}"
        watch = f"dragoman status --watch --url {authority(loaded.server.host, told.port)}"
        speak = f"dragoman say --url {authority(loaded.server.host, told.port)}"
        chat = f"dragoman chat --as alice --to bob --url {authority(loaded.server.host, told.port)}"
        tell(
            f"{where_to_look(loaded, told)}  {many} dialling in. In a second terminal, from this folder:\n"
            f"    .venv/bin/{speak}\n    .venv/bin/{chat}\n    .venv/bin/{watch}\n  Ctrl-C ends everything.\n"
        )

    try:
        return run(loaded, on_ready=ready, started=started())
    finally:
        _end(children)


def _demonstrating(loaded: "Loaded") -> "Config":
    """Both receipts of chat are shown, unless the settings say otherwise."""
    from msgspec.structs import replace

    from dragoman.config.sources import DEFAULT

    config = loaded.config
    if loaded.sources["chat.two_phase.enabled"] != DEFAULT:
        return config
    return replace(config, chat=replace(config.chat, two_phase=replace(config.chat.two_phase, enabled=True)))


def _start_node(config: "Config", port: int, number: int) -> "Child":
    from dragoman.embedded.lifeline import Child

    name = f"sim-{number}"
    if config.security.secret:
        # By the environment: what is on a command line can be read by everybody on the machine.
        os.environ["DRAGOMAN_NODE_TOKEN"] = _token(config, name)
    url = f"ws://{authority(config.server.host, port)}/ws/node"
    options = ["--quiet", "--url", url, "--engine", "sim", "--node-id", name]
    return Child([sys.executable, "-m", "dragoman.cli.main", "node", *options], dies_by=SIGTERM)


def _token(config: "Config", node_id: str) -> str:
    import jwt

    claims = {"iss": config.security.issuer, "exp": time.time() + TOKEN_S, "typ": "node", "sub": node_id}
    return jwt.encode(claims, config.security.secret)


def _end(children: "list[Child]") -> None:
    for child in children:
        child.signal(SIGTERM)
    for child in children:
        if child.wait(NODE_PATIENCE_S) is None:
            child.process.kill()
            child.wait()
        child.close()
