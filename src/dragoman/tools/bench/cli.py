"""`dragoman bench`: how fast this is here, beside others in the same run. One command a bench."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli import output
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from dragoman.tools.bench.pressure.settings import Part
    from dragoman.tools.bench.progress import OnStep
    from dragoman.tools.bench.report import Report

app = typer.Typer(no_args_is_help=True, help="Measure speed, with peers beside us in the same run.")

SECONDS, QUICK_SECONDS = 1.0, 0.2
LONG_SECONDS, QUICK_LONG_SECONDS = 20.0, 2.0
WARMUP_S, QUICK_WARMUP_S = 5.0, 0.5
ROUNDS, QUICK_ROUNDS = 3, 1
ABUSE_SECONDS, QUICK_ABUSE_SECONDS = 4.0, 0.5

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the figures there as well.", show_default=False),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=60,
        help=f"How long each measurement takes. [{SECONDS:g}, with --quick {QUICK_SECONDS:g}]",
        show_default=False,
    ),
]
LongSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        max=600,
        help=f"How long each measurement takes. [{LONG_SECONDS:g}, with --quick {QUICK_LONG_SECONDS:g}]",
        show_default=False,
    ),
]
Warmup = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=600,
        help=f"Seconds before each of them that do not count. [{WARMUP_S:g}, with --quick {QUICK_WARMUP_S:g}]",
        show_default=False,
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="One short round instead of three: does it run at all?")]


@app.callback()
def bench() -> None:
    """Measure speed, with peers beside us in the same run."""


@app.command()
def store(
    ctx: typer.Context,
    seconds: Seconds = None,
    quick: Quick = False,
    only: Annotated[
        Literal["single", "cluster"] | None, typer.Option(help="Only on a single Redis, or only on a Cluster.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """The Redis layer beside redis-py, and what one job costs in coordination, on Redis servers of its own."""
    from dragoman.embedded.binary import find_server
    from dragoman.tools.bench import store as bench_store

    chosen = bench_store.Settings(
        modes=(only,) if only else ("single", "cluster"),
        seconds=seconds or (QUICK_SECONDS if quick else SECONDS),
        rounds=QUICK_ROUNDS if quick else ROUNDS,
    )
    server = settings(ctx).config.embedded.redis_server

    def measure(on_step: "OnStep") -> "Report":
        return bench_store.run(chosen, find_server(server), on_step)

    _report(measure, bench_store.steps(chosen), json)


@app.command()
def speech(
    ctx: typer.Context,
    seconds: LongSeconds = None,
    warmup: Warmup = None,
    sessions: Annotated[int, typer.Option(min=1, max=15_000, help="Clients that speak.")] = 200,
    nodes: Annotated[int, typer.Option(min=1, max=5_000, help="Nodes that answer at once.")] = 20,
    queues: Annotated[bool, typer.Option("--queues/--no-queues", help="With task queues beside us.")] = True,
    growth: Annotated[bool, typer.Option("--growth", help="Also with more nodes, and with more sessions.")] = False,
    scale_out: Annotated[bool, typer.Option("--scale-out", help="Also one instance against two.")] = False,
    idle: Annotated[bool, typer.Option("--idle", help="Also the memory of idle sessions.")] = False,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Whole jobs per second of one instance, beside the no-op tasks of task queues on the same Redis."""
    from dragoman.embedded.binary import find_server
    from dragoman.tools.bench import speech as bench_speech

    chosen = bench_speech.Settings(
        seconds=seconds or (QUICK_LONG_SECONDS if quick else LONG_SECONDS),
        warmup_s=(QUICK_WARMUP_S if quick else WARMUP_S) if warmup is None else warmup,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        sessions=sessions,
        nodes=nodes,
        queues=queues,
        growth_nodes=((10, 100) if quick else (10, 100, 1000)) if growth else (),
        growth_sessions=((10, 100) if quick else (10, 1000, 10_000)) if growth else (),
        scale_out=scale_out,
        idle_sessions=(100 if quick else 10_000) if idle else 0,
    )
    server = settings(ctx).config.embedded.redis_server

    def measure(on_step: "OnStep") -> "Report":
        return bench_speech.run(chosen, find_server(server), on_step)

    _report(measure, bench_speech.steps(chosen), json)


@app.command()
def dispatch(
    ctx: typer.Context,
    seconds: LongSeconds = None,
    warmup: Warmup = None,
    rate: Annotated[float, typer.Option(min=1, max=10_000, help="Jobs per second, and PINGs.")] = 200.0,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """From the cut of an utterance to its job_assign at the node, beside PING under the same load."""
    from dragoman.embedded.binary import find_server
    from dragoman.tools.bench import dispatch as bench_dispatch

    chosen = bench_dispatch.Settings(
        seconds=seconds or (QUICK_LONG_SECONDS if quick else LONG_SECONDS),
        warmup_s=(QUICK_WARMUP_S if quick else WARMUP_S) if warmup is None else warmup,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        per_s=rate,
    )
    server = settings(ctx).config.embedded.redis_server

    def measure(on_step: "OnStep") -> "Report":
        return bench_dispatch.run(chosen, find_server(server), on_step)

    _report(measure, bench_dispatch.steps(chosen), json)


@app.command()
def chat(
    ctx: typer.Context,
    seconds: LongSeconds = None,
    warmup: Warmup = None,
    rate: Annotated[float, typer.Option(min=1, max=100_000, help="Messages per second.")] = 2000.0,
    users: Annotated[int, typer.Option(min=2, max=10_000, help="Users that write to each other.")] = 200,
    modes: Annotated[
        bool, typer.Option("--modes", help="Also with two-phase off, and with delivery before saving.")
    ] = False,
    postgres: Annotated[bool, typer.Option("--postgres", help="Also on PostgreSQL.")] = False,
    slow: Annotated[bool, typer.Option("--slow", help="Also with every commit slowed by 50 ms.")] = False,
    most: Annotated[
        bool, typer.Option("--max", help="Also the highest rate that is kept up with, and what happens beyond it.")
    ] = False,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Messages of two instances at a steady rate: accepted, saved and received, timed from when each was due."""
    from dragoman.embedded.binary import find_server
    from dragoman.tools.bench import chat as bench_chat
    from dragoman.tools.bench.chat_stage import MODES

    chosen = bench_chat.Settings(
        rate=rate,
        seconds=seconds or (QUICK_LONG_SECONDS if quick else LONG_SECONDS),
        warmup_s=(QUICK_WARMUP_S if quick else WARMUP_S) if warmup is None else warmup,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        users=users,
        modes=MODES if modes else ("save_first",),
        databases=("sqlite", "postgres") if postgres else ("sqlite",),
        slow=slow,
        max=most,
    )
    server = settings(ctx).config.embedded.redis_server

    def measure(on_step: "OnStep") -> "Report":
        return bench_chat.run(chosen, find_server(server), on_step)

    _report(measure, bench_chat.steps(chosen), json)


@app.command()
def abuse(
    ctx: typer.Context,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=600,
            help=f"How long each attack goes on at least. [{ABUSE_SECONDS:g}, with --quick {QUICK_ABUSE_SECONDS:g}]",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ATTACK", help="Only this attack; can be given more than once.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short, and with smaller crowds: does it run at all?")] = False,
    json: JsonFile = None,
) -> None:
    """What it costs a session and two chat users when others misbehave, and whether anything of it is left."""
    from dragoman.embedded.binary import find_server
    from dragoman.tools.bench.abuse import abuse as bench_abuse
    from dragoman.tools.bench.abuse.attacks import BY_NAME
    from dragoman.tools.bench.abuse.scene import QUICK, Scale

    if unknown := [name for name in only or () if name not in BY_NAME]:
        raise Failure(f"There is no attack {unknown[0]}; there are {', '.join(BY_NAME)}.", USAGE)
    chosen = bench_abuse.Settings(
        seconds=seconds or (QUICK_ABUSE_SECONDS if quick else ABUSE_SECONDS),
        scale=QUICK if quick else Scale(),
        aside=not quick,
        only=tuple(only or ()),
    )
    server = settings(ctx).config.embedded.redis_server

    def measure(on_step: "OnStep") -> "Report":
        return bench_abuse.run(chosen, find_server(server), on_step)

    _report(measure, bench_abuse.steps(chosen), json)


@app.command()
def load(
    ctx: typer.Context,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=600, help="How long half of everything lasts. [10, with --quick 0.1]", show_default=False
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(min=0.01, max=1, help="Of everything, if it is not to be half: the load needs CPU as well."),
    ] = 0.5,
    only: Annotated[
        str,
        typer.Option(metavar="PARTS", help="Of sockets,messages,jobs,half,target,storm,above; all of them otherwise."),
    ] = "",
    instances: Annotated[int, typer.Option(min=1, max=16, help="Instances of all parts but the sockets.")] = 2,
    first_rate: Annotated[
        float, typer.Option(min=1, max=100_000, help="Messages per second to begin with.", show_default=True)
    ] = 800.0,
    quick: Annotated[bool, typer.Option("--quick", help="Small numbers and short times: does it run at all?")] = False,
    json: JsonFile = None,
) -> None:
    """The most of sockets, messages and jobs; all together; a storm of reconnects; and more than there is room for."""
    from dragoman.embedded.binary import find_server
    from dragoman.tools.bench.pressure import bench as bench_load
    from dragoman.tools.bench.pressure.settings import QUICK, Settings

    chosen = replace(QUICK if quick else Settings(), parts=_parts(only), instances=instances)
    chosen = replace(
        chosen,
        minutes=minutes or chosen.minutes,
        share=share,
        first_rate=min(first_rate, chosen.first_rate) if quick else first_rate,
    )
    server = settings(ctx).config.embedded.redis_server

    def measure(on_step: "OnStep") -> "Report":
        return bench_load.run(chosen, find_server(server), on_step)

    _report(measure, bench_load.steps(chosen), json)


def _parts(only: str) -> "tuple[Part, ...]":
    """In the order in which one may need what another found, however they were named."""
    from dragoman.tools.bench.pressure.settings import PARTS

    named = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in named if name not in PARTS]:
        raise Failure(f"--only knows {', '.join(PARTS)}, and not {unknown[0]!r}.", USAGE)
    return tuple(part for part in PARTS if part in named) if named else PARTS


def _report(measure: "Callable[[OnStep], Report]", steps: int, json: Path | None) -> None:
    """Measure with a bar, show the tables, write the file; what goes wrong is one sentence."""
    from dragoman.embedded.errors import EngineError
    from dragoman.tools.bench.errors import BenchError
    from dragoman.tools.bench.progress import bar

    if json is not None and not _writable(json):
        raise Failure(f"--json names {json}, which cannot be written.", USAGE)
    try:
        with bar(steps, output.console(stderr=True)) as on_step:
            report = measure(on_step)
        report.show(output.console())
        if json is not None:
            report.write(json)
    except (BenchError, EngineError) as error:
        raise Failure(str(error)) from error


def _writable(path: Path) -> bool:
    """Asked before minutes are spent on what could then not be kept."""
    return os.access(path, os.W_OK) if path.is_file() else not path.exists() and os.access(path.parent, os.W_OK)
