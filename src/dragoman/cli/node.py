"""`dragoman node`: a node from the command line."""

from typing import Annotated

import typer

from dragoman.cli.failure import USAGE, Failure

DEFAULT_URL = "ws://127.0.0.1:5010/ws/node"


def node(
    url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Where to dial in; may be repeated.", show_default=DEFAULT_URL),
    ] = None,
    engine: Annotated[str, typer.Option(help="What does the work: sim is a simulated engine.")] = "sim",
    languages: Annotated[str, typer.Option(help="Languages served, comma separated.")] = "en,es,zh",
    slots: Annotated[int, typer.Option(min=1, help="Jobs at a time.")] = 4,
    node_id: Annotated[
        str | None, typer.Option(help="Keep this id; without, the server gives one.", show_default=False)
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DRAGOMAN_NODE_TOKEN",
            metavar="TOKEN",
            help="Credential of the node, where security.secret is set. [$DRAGOMAN_NODE_TOKEN]",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")] = False,
    delay_ms: Annotated[float, typer.Option(min=0, help="sim: how long a job takes.")] = 300.0,
    jitter_ms: Annotated[float, typer.Option(min=0, help="sim: spread around the delay.")] = 100.0,
    failure: Annotated[float, typer.Option(min=0, max=1, help="sim: share of jobs that fail.")] = 0.0,
    empty: Annotated[float, typer.Option(min=0, max=1, help="sim: share of jobs with nothing in them.")] = 0.0,
    silence: Annotated[float, typer.Option(min=0, max=1, help="sim: share of jobs never answered.")] = 0.0,
    die_after: Annotated[
        int | None, typer.Option(min=0, help="sim: die without a word after so many jobs.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="sim: for a run that can be repeated.", show_default=False)] = None,
) -> None:
    """Run a node until Ctrl-C; it finishes what it has begun, and a second Ctrl-C ends it at once."""
    from dragoman import logs  # isort: skip  # first: see there

    import uvloop

    from dragoman.node import NodeRefused, SimSettings, run_sim_node

    if engine != "sim":
        raise Failure(f"There is no engine {engine!r}; the one there is: sim.", USAGE)
    try:
        settings = SimSettings(delay_ms, jitter_ms, failure, empty, silence, die_after, seed=seed)
    except ValueError as error:
        raise Failure(f"{error}.".capitalize(), USAGE) from None
    urls = [_checked(each) for each in url or [DEFAULT_URL]]
    spoken = [language.strip() for language in languages.split(",") if language.strip()]
    if not spoken:
        raise Failure("--languages names none: write them with commas, as in en,es,zh.", USAGE)
    logs.configure("warning" if quiet else "info", "auto")

    def registered(name: str) -> None:
        if not quiet:
            typer.echo(f"node {name} serves {', '.join(spoken)} with {slots} slots", err=True)

    run = run_sim_node(
        urls,
        settings,
        languages=spoken,
        slots=slots,
        node_id=node_id,
        token=token,
        signals=True,
        on_registered=registered,
    )
    try:
        uvloop.run(run)
    except NodeRefused as error:
        raise Failure(f"The server refuses this node: {error}.", 1) from None


def _checked(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        right = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right:
        raise Failure(f"--url {url!r} is not an address like {DEFAULT_URL}.", USAGE)
    return url
