"""`dragoman status`: the instances and nodes of the cluster, once or continuously.

The tables fit into 80 columns: nodes name their instance by its number, the headline holds what all instances have in
common, and long names wrap.
"""

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, AsJson, with_api
from dragoman.cli.output import Failure

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

CLUSTER = "/api/v1/cluster"
POLL_S = 1.0
SHOWN_NODES = 40
RETRYING = "Retrying every second; Ctrl-C ends."
SHOWN_LANGUAGES = 8


@with_api
def status(
    api: Api,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh once a second until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show instances, durability, inboxes and nodes."""
    cluster = api.get(CLUSTER)
    if as_json and not watch:
        output.as_json(cluster)
    elif as_json:
        _watch_json(api)
    elif watch:
        _watch(api, cluster)
    else:
        output.console().print(tables(cluster))


def _watch(api: Api, cluster: dict[str, Any]) -> None:
    """Refresh until Ctrl-C, also while the server is away, so that an operator can watch a restart."""
    from rich.console import Group
    from rich.live import Live

    try:
        with Live(tables(cluster), console=output.console(), auto_refresh=False) as live:
            while True:
                time.sleep(POLL_S)
                try:
                    cluster = api.get(CLUSTER)
                    live.update(tables(cluster), refresh=True)
                except Failure as failure:
                    live.update(Group(tables(cluster), output.styled((failure, "red")), RETRYING), refresh=True)
    except KeyboardInterrupt:
        pass


def _watch_json(api: Api) -> None:
    """Print one line of JSON a second, for programs."""
    try:
        while True:
            output.line(json.dumps(api.get(CLUSTER)))
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        pass


# -- the tables ----------------------------------------------------------------------------------


def tables(cluster: dict[str, Any]) -> "Group":
    from rich.console import Group

    try:
        numbers = {row["instance"]: number for number, row in enumerate(cluster["instances"], 1)}
        parts: list[Any] = [_headline(cluster), "", _instances(cluster, numbers), ""]
        if cluster["nodes"]:
            parts.append(_nodes(cluster["nodes"][:SHOWN_NODES], numbers, cluster.get("now_ms", 0)))
        else:
            parts.append("No node is connected. Start one: dragoman node --engine sim")
        if cluster["node_count"] > SHOWN_NODES:
            parts.append(f"… and {cluster['node_count'] - SHOWN_NODES} more nodes; see --json")
        if letters := sum(cluster["dead_letters"].values()):
            parts += ["", output.styled((output.many(letters, "dead letter"), "red"), (": see dragoman dlq list", ""))]
    except (KeyError, TypeError, AttributeError):
        raise Failure("The server is not Dragoman, or another release of it. Check --url, or use --json.") from None
    return Group(*parts)


def _headline(cluster: dict[str, Any]) -> "Text":
    alive = [row for row in cluster["instances"] if row["alive"]]
    durability = ", ".join(sorted({row.get("durability") or "unknown" for row in alive})) or "unknown"
    versions = ", ".join(sorted({row.get("version") or "?" for row in alive}))
    counts = f"{output.many(len(alive), 'instance')}, {output.many(cluster['node_count'], 'node')}"
    return output.styled((f"Dragoman {versions}", "bold"), (f": {counts}, durability {durability}", ""))


def _instances(cluster: dict[str, Any], numbers: dict[str, int]) -> "Table":
    table = output.table("#>", "instance", "state", "sessions>", "nodes>", "jobs>", "inbox>", "dead>")
    for row in cluster["instances"]:
        letters = cluster["dead_letters"].get(row["instance"], 0)
        state = _state(row)
        counts = [str(row.get(name, 0)) for name in ("sessions", "nodes", "jobs")]
        inbox, dead = str(row["inbox"]["waiting"]), output.styled((letters, "red" if letters else ""))
        table.add_row(str(numbers[row["instance"]]), str(row["instance"]), state, *counts, inbox, dead)
    return table


def _state(row: dict[str, Any]) -> "Text":
    if not row["alive"]:
        return output.styled(("dead", "red"))
    if not row.get("answering", True):
        return output.styled(("not answering", "red"))
    return output.styled(("draining" if row.get("draining") else "alive", ""))


def _nodes(nodes: list[dict[str, Any]], numbers: dict[str, int], now_ms: int) -> "Table":
    table = output.table("node", "at>", "slots>", "languages", "ready")
    for row in nodes:
        at = f"#{numbers[row['instance']]}" if row["instance"] in numbers else str(row["instance"])
        slots = f"{row['reserved']}/{row['slots']}"
        states = ["draining"] if row["draining"] else []
        marks = [(f" ({state})", "yellow") for state in states + _pauses(row, now_ms)]
        table.add_row(output.styled((row["node_id"], ""), *marks), at, slots, _languages(row), _ready(row["ready"]))
    return table


def _ready(services: list[str] | None) -> "Text":
    if services is None:
        return output.styled(("unknown", ""))
    return output.styled((", ".join(services), "") if services else ("nothing", "red"))


def _pauses(row: dict[str, Any], now_ms: int) -> list[str]:
    """The pauses of the node and of its services; a server of an earlier release does not report them."""
    services = {name: until - now_ms for name, until in (row.get("cooling_until_ms") or {}).items()}
    names = {name: "cooling down" if name == "*" else f"{name} cooling down" for name in services}
    states = [f"{names[name]}, {_seconds(left_ms)}" for name, left_ms in services.items() if left_ms > 0]
    if failing := row.get("failing"):
        left_ms = failing["paused_until_ms"] - now_ms
        states.append(f"failing, paused {_seconds(left_ms)}" if left_ms > 0 else "failing, one job at a time")
    return states


def _seconds(ms: int) -> str:
    return f"{-(-ms // 1000)} s"


def _languages(node: dict[str, Any]) -> str:
    """The languages of its speech, and the pairs of its text jobs; a server of 0.1 does not report those."""
    languages = node["languages"]
    pairs = languages.get("text") or ()
    if not pairs:
        return _speech(node)
    heard, written = {"auto", *languages["asr"]}, languages["semantic"]
    if all(source in heard and target in written for source, target in pairs):
        return f"{_speech(node)}, text"
    text = f"text {_few([f'{source}→{target}' for source, target in pairs])}"
    return f"{_speech(node)}; {text}" if languages["asr"] else text


def _speech(node: dict[str, Any]) -> str:
    heard, written = node["languages"]["asr"], node["languages"]["semantic"]
    pairs = _few(heard) if heard == written else f"{_few(heard)} → {_few(written)}"
    has_voice = node["ready"] is None or "tts" in node["ready"]
    spoken = [language for language in written if has_voice and language in node["languages"]["tts"]]
    if not written or spoken == written:
        return pairs
    return f"{pairs} (spoken: {_few(spoken)})" if spoken else f"{pairs} (text only)"


def _few(languages: list[str]) -> str:
    more = len(languages) - SHOWN_LANGUAGES
    return " ".join(languages[:SHOWN_LANGUAGES]) + (f" +{more}" if more > 0 else "") or "none"
