"""`dragoman status`: the cluster in one look, or watched."""

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.api import Api, Token, Url
from dragoman.cli.settings import ConfigFile, Overrides, settings

if TYPE_CHECKING:
    from rich.console import Group

SHOWN_NODES = 40


def status(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep looking, once a second, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the API answers.")] = False,
) -> None:
    """Show instances, durability, inboxes and nodes."""
    api = Api(settings(ctx, config, override).config, url, token)
    if as_json:
        typer.echo(json.dumps(api.get("/api/v1/cluster"), indent=2))
        return
    from rich.console import Console

    console = Console()
    if not watch:
        console.print(picture(api.get("/api/v1/cluster")))
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=4) as live:
        while True:
            live.update(picture(api.get("/api/v1/cluster")))
            time.sleep(1)


def picture(cluster: dict[str, Any]) -> "Group":
    from rich.console import Group
    from rich.table import Table

    instances = Table("instance", "alive", "durability", "port", "sessions", "nodes", "jobs", "inbox", "dead letters")
    for row in cluster["instances"]:
        letters = cluster["dead_letters"].get(row["instance"], 0)
        instances.add_row(
            row["instance"],
            ("draining" if row.get("draining") else "yes") if row["alive"] else "[red]no[/red]",
            row.get("durability", "-"),
            str(row.get("port", "-")),
            str(row.get("sessions", 0)),
            str(row.get("nodes", 0)),
            str(row.get("jobs", 0)),
            str(row["inbox"]["waiting"]),
            f"[red]{letters}[/red]" if letters else "0",
        )
    nodes = Table("node", "at", "slots", "reserved", "languages", "ready")
    for row in cluster["nodes"][:SHOWN_NODES]:
        heard, said = ",".join(row["languages"]["asr"]), ",".join(row["languages"]["semantic"])
        ready = ",".join(row["ready"]) if row["ready"] is not None else "not told"
        nodes.add_row(
            row["node_id"], row["instance"], str(row["slots"]), str(row["reserved"]), f"{heard} → {said}", ready or "no"
        )
    parts: list[Any] = [instances, nodes]
    if not cluster["nodes"]:
        parts[1] = "No node is connected. Start one: dragoman node --engine sim"
    elif cluster["node_count"] > SHOWN_NODES:
        parts.append(f"… and {cluster['node_count'] - SHOWN_NODES} more nodes; see --json")
    return Group(*parts)
