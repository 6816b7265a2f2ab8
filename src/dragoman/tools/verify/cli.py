"""`dragoman verify`: break a cluster on purpose, and show that every promise holds."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli import output
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.settings import option, settings
from dragoman.tools.verify import TITLES

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.tools.verify.environment import Load
    from dragoman.tools.verify.faults import Fault
    from dragoman.tools.verify.results import Row
    from dragoman.tools.verify.run import Order, Outcome

BROKEN = 1
PIPE_WIDTH = 150

HELP = """Break a private cluster in every known way, and check that no promise to a client was broken.

Starts Redis, a database, two instances and five nodes. Clients speak, chat and share a room through the SDKs while
faults are injected at times drawn from the seed. Then what was promised to clients is compared with what the stores
have. One row a fault; exit status 0: every promise held, 1: a promise was broken, 2: the verification could not run.

Faults: """


def verify(
    ctx: typer.Context,
    seed: Annotated[
        int, typer.Option(help="Draws the time and the target of each fault. The same seed draws the same.")
    ] = 1,
    seconds: Annotated[
        float | None,
        option(
            min=1, help="Seconds of load, shared by all faults; each gets at least what one injection needs. [one each]"
        ),
    ] = None,
    faults: Annotated[
        str | None, option(metavar="NAME,NAME…", help="Only these faults; --list shows their names.")
    ] = None,
    only: Annotated[
        str | None, option(metavar="speech|chat|rooms|NAME", help="Only this load, or only this one fault.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds, each with the next seed.")] = 1,
    redis: Annotated[Literal["single", "cluster"], typer.Option(help="One Redis, or a Cluster of six.")] = "single",
    db: Annotated[Literal["sqlite", "postgres"], typer.Option(help="Where messages are stored.")] = "sqlite",
    mode: Annotated[
        Literal["save_first", "deliver_first", "off"] | None,
        typer.Option(help="How chat saves and delivers, in every round. [by the seed]"),
    ] = None,
    messages_per_s: Annotated[float, typer.Option(min=1, max=10_000, help="Chat messages a second.")] = 60.0,
    utterances_per_s: Annotated[float, typer.Option(min=0.1, max=1_000, help="Utterances a second.")] = 10.0,
    captions_per_s: Annotated[float, typer.Option(min=0.1, max=100, help="Captions of a room a second.")] = 5.0,
    real_lengths: Annotated[
        bool,
        typer.Option("--real-lengths", help="Default settings and long faults: database 60 s, pause 20 s, link 10 s."),
    ] = False,
    json: Annotated[Path | None, option("--json", metavar="FILE", help="Also write the results to this file.")] = None,
    names: Annotated[bool, typer.Option("--list", help="List the names of all faults, and exit.")] = False,
) -> int:
    from dragoman.tools.verify.environment import Setup

    if names:
        return _list()
    if json is not None and not json.absolute().parent.is_dir():
        raise Failure(f"--json names {json}, whose folder does not exist.", USAGE)
    load, chosen = _chosen(faults, only)
    setup = Setup(
        redis,
        db,
        real_lengths,
        messages_per_s=messages_per_s,
        utterances_per_s=utterances_per_s,
        captions_per_s=captions_per_s,
        path=mode,
    )
    from dragoman.tools.verify.run import Order

    order = Order(setup.only(load), tuple(chosen), seed, seconds or 0.0, repeat)
    return _run(order, settings(ctx).config.embedded.redis_server, json)


verify.__doc__ = HELP + ", ".join(TITLES) + "."


def _list() -> int:
    from dragoman.tools.verify.faults import BY_NAME

    for name, fault in BY_NAME.items():
        needs = f"  (only with --redis {fault.redis})" if fault.redis else ""
        output.line(f"{name:20} {fault.title}{needs}")
    return 0


def _chosen(faults: str | None, only: str | None) -> "tuple[Load | None, list[Fault]]":
    from dragoman.tools.processes import CannotRun
    from dragoman.tools.verify.environment import LOADS
    from dragoman.tools.verify.faults import FAULTS, named

    load: Load | None = next((one for one in LOADS if one == only), None)
    asked = [name.strip() for name in (faults or "").split(",") if name.strip()]
    if only is not None and load is None:
        asked = [only]
    try:
        return load, named(asked) if asked else list(FAULTS)
    except CannotRun as error:
        raise Failure(str(error), USAGE) from None


def _run(order: "Order", server: str, json: Path | None) -> int:
    from dragoman.embedded.binary import EngineError, find_server
    from dragoman.tools.processes import CannotRun
    from dragoman.tools.report import machine, progress_bar
    from dragoman.tools.verify import results
    from dragoman.tools.verify.run import settings_of, until_ended, verify

    progress, console = output.console(stderr=True), output.console(pipe_width=PIPE_WIDTH)
    on = machine()
    try:
        binary = find_server(server)
        with progress_bar(order.steps, progress) as on_step:
            bar, row = (on_step, _nothing) if progress.is_terminal else (_line, _row)
            outcome = asyncio.run(until_ended(verify(order, binary, bar, row)))
        results.show(outcome.rows, _title(order, outcome), console)
        if json is not None:
            results.write(results.as_json(outcome.rows, settings_of(order, outcome), on), json)
    except (CannotRun, EngineError) as error:
        raise Failure(str(error), USAGE) from error
    except KeyboardInterrupt:
        raise Failure("stopped; every process of the verification has ended.", 130) from None
    return _verdict(outcome, console)


def _line(step: str) -> None:
    output.error(f"dragoman verify: {step} …")


def _row(row: "Row") -> None:
    from dragoman.tools.verify.results import verdict

    output.error(f"dragoman verify: {row.title}: {verdict(row)}, {row.kept} of {row.promised} promises kept")


def _nothing(row: "Row") -> None: ...


def _title(order: "Order", outcome: "Outcome") -> str:
    lengths = "real lengths" if order.setup.real_lengths else "short lengths"
    seeds = f"seed {order.seed}" if order.repeat == 1 else f"seeds {order.seed} to {order.seed + order.repeat - 1}"
    return f"{order.setup.redis} Redis, {order.setup.database}, {lengths}, {seeds}, {outcome.seconds:.0f} s"


def _verdict(outcome: "Outcome", console: "Console") -> int:
    if outcome.holds:
        console.print("Every promise held.")
        return 0
    console.print(f"A promise was broken. Logs and events are in {outcome.evidence}.", soft_wrap=True)
    return BROKEN
