"""`dragoman bench`: the speed on this machine, beside that of peers in the same run. One command a bench."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dragoman.cli import output
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.settings import option, settings

if TYPE_CHECKING:
    from dragoman.tools.bench.mixed_load import Part

app = typer.Typer(no_args_is_help=True, help="Measure speed, with peers beside us in the same run.")

SECONDS, QUICK_SECONDS = 1.0, 0.2
LONG_SECONDS, QUICK_LONG_SECONDS = 20.0, 2.0
WARMUP_S, QUICK_WARMUP_S = 5.0, 0.5
CHAT_WARMUP_S = 9.0  # messages of users that have just connected take another way
ROUNDS, QUICK_ROUNDS = 3, 1
ROOM_ROUNDS = 5
MAX_DELAY_MS = 10_000
QUICK_LIVE_SECONDS = 7.0
MAX_SPEAKERS = 1000
ABUSE_SECONDS, QUICK_ABUSE_SECONDS = 4.0, 0.5

JsonFile = Annotated[Path | None, option("--json", metavar="FILE", help="Also write the results to this file.")]
Seconds = Annotated[
    float | None,
    option(min=0.01, max=60, help=f"Seconds of each measurement. [{SECONDS:g}, with --quick {QUICK_SECONDS:g}]"),
]
LongSeconds = Annotated[
    float | None,
    option(
        min=0.1, max=600, help=f"Seconds of each measurement. [{LONG_SECONDS:g}, with --quick {QUICK_LONG_SECONDS:g}]"
    ),
]
Warmup = Annotated[
    float | None,
    option(
        min=0.0,
        max=600,
        help=f"Warm-up before each measurement, in seconds. [{WARMUP_S:g}, with --quick {QUICK_WARMUP_S:g}]",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="One short round instead of three, to see that it runs.")]


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
    """The Redis layer beside redis-py, and the Redis cost of one job, on private Redis servers."""
    from dragoman.tools.bench import store as bench_store

    chosen = bench_store.Settings(
        modes=(only,) if only else ("single", "cluster"),
        seconds=seconds or (QUICK_SECONDS if quick else SECONDS),
        rounds=QUICK_ROUNDS if quick else ROUNDS,
    )
    _run(ctx, bench_store, chosen, json)


@app.command()
def speech(
    ctx: typer.Context,
    seconds: LongSeconds = None,
    warmup: Warmup = None,
    sessions: Annotated[int, typer.Option(min=1, max=15_000, help="Speech clients.")] = 200,
    nodes: Annotated[int, typer.Option(min=1, max=5_000, help="Simulated nodes; they answer at once.")] = 20,
    queues: Annotated[bool, typer.Option("--queues/--no-queues", help="Compare with task queues.")] = True,
    growth: Annotated[bool, typer.Option("--growth", help="Also with more nodes, and with more sessions.")] = False,
    scale_out: Annotated[bool, typer.Option("--scale-out", help="Also one instance against two.")] = False,
    idle: Annotated[bool, typer.Option("--idle", help="Also the memory of idle sessions.")] = False,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Complete jobs per second of one instance, beside the no-op tasks of task queues on the same Redis."""
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
    _run(ctx, bench_speech, chosen, json)


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
    from dragoman.tools.bench import dispatch as bench_dispatch

    chosen = bench_dispatch.Settings(
        seconds=seconds or (QUICK_LONG_SECONDS if quick else LONG_SECONDS),
        warmup_s=(QUICK_WARMUP_S if quick else WARMUP_S) if warmup is None else warmup,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        per_s=rate,
    )
    _run(ctx, bench_dispatch, chosen, json)


@app.command()
def live(
    ctx: typer.Context,
    seconds: Annotated[
        float | None,
        option(
            min=5, max=600, help=f"Seconds of each measurement. [{LONG_SECONDS:g}, with --quick {QUICK_LIVE_SECONDS:g}]"
        ),
    ] = None,
    warmup: Warmup = None,
    speakers: Annotated[
        str | None,
        option(metavar="N,N,…", help="Measure with so many speakers. [1,50,200, with --quick 1,4]"),
    ] = None,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """From the start of speech to the first words, from its end to the translated caption; CPU per second of audio."""
    from dragoman.tools.bench import live as bench_live

    chosen = bench_live.Settings(
        speakers=_numbers("--speakers", speakers or ("1,4" if quick else "1,50,200"), 1, MAX_SPEAKERS),
        seconds=seconds or (QUICK_LIVE_SECONDS if quick else LONG_SECONDS),
        warmup_s=(QUICK_WARMUP_S if quick else WARMUP_S) if warmup is None else warmup,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
    )
    _run(ctx, bench_live, chosen, json)


@app.command()
def chat(
    ctx: typer.Context,
    seconds: LongSeconds = None,
    warmup: Warmup = None,
    rate: Annotated[float, typer.Option(min=1, max=100_000, help="Messages per second.")] = 2000.0,
    clients: Annotated[int, typer.Option(min=2, max=10_000, help="Clients that write to each other.")] = 200,
    pings: Annotated[
        bool,
        typer.Option("--pings", help="Each client also sends PING every second, as the original load tester does."),
    ] = False,
    skew: Annotated[
        int, typer.Option(min=1, max=99, help="So many of a hundred clients are connected to the first instance.")
    ] = 50,
    db_delay: Annotated[
        str | None,
        option(
            metavar="MS,MS,…",
            help="All modes on SQLite, and on PostgreSQL with every commit answered so many ms later.",
        ),
    ] = None,
    modes: Annotated[
        bool, typer.Option("--modes", help="Also with two-phase off, and with delivery before saving.")
    ] = False,
    postgres: Annotated[bool, typer.Option("--postgres", help="Also on PostgreSQL.")] = False,
    slow: Annotated[bool, typer.Option("--slow", help="Also with every commit slowed by 50 ms.")] = False,
    ramp: Annotated[
        bool,
        typer.Option(
            "--ramp",
            help="Instead: the highest sustained rate, which is sought from --rate upwards, and what happens from half "
            "of it to three times it.",
        ),
    ] = False,
    svg: Annotated[Path | None, option(metavar="FILE", help="A plot of --ramp.")] = None,
    translate: Annotated[
        bool,
        typer.Option(
            "--translate",
            help="Instead: what queued translations of messages do to the dispatch of speech.",
        ),
    ] = False,
    translations: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="Queued translations, with --translate.")
    ] = 10_000,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Messages of two instances at a steady rate: accepted, saved and received, timed from when each was due."""
    from dragoman.tools.bench import chat as bench_chat
    from dragoman.tools.bench.chat import PATHS

    long_s = seconds or (QUICK_LONG_SECONDS if quick else LONG_SECONDS)
    warmup_s = (QUICK_WARMUP_S if quick else CHAT_WARMUP_S) if warmup is None else warmup
    if translate:
        from dragoman.tools.bench import chat_translate

        rounds = QUICK_ROUNDS if quick else ROOM_ROUNDS
        _run(ctx, chat_translate, chat_translate.Settings(long_s, warmup_s, rounds, translations=translations), json)
        return
    if ramp:
        _ramp(ctx, rate, seconds, clients, pings, svg, quick, json)
        return
    chosen = bench_chat.Settings(
        rate=rate,
        seconds=long_s,
        warmup_s=warmup_s,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        clients=clients,
        pings=pings,
        skew=skew,
        db_delays_ms=_numbers("--db-delay", db_delay or "", 0, MAX_DELAY_MS),
        modes=PATHS if modes else ("save_first",),
        databases=("sqlite", "postgres") if postgres else ("sqlite",),
        slow=slow,
    )
    _run(ctx, bench_chat, chosen, json)


def _ramp(
    ctx: typer.Context,
    rate: float,
    seconds: float | None,
    clients: int,
    pings: bool,
    svg: Path | None,
    quick: bool,
    json: Path | None,
) -> None:
    from dragoman.tools.bench import chat_ramp

    if svg is not None and not _writable(svg):
        raise Failure(f"--svg names {svg}, which cannot be written.", USAGE)
    chosen = chat_ramp.Settings(rate=rate, clients=clients, pings=pings, svg=svg)
    if quick:
        chosen = replace(chosen, seconds=QUICK_LONG_SECONDS, after_s=3, loads=chat_ramp.QUICK_LOADS, max_steps=2)
    _run(ctx, chat_ramp, replace(chosen, seconds=seconds) if seconds else chosen, json)


def _numbers(name: str, text: str, least: int, most: int) -> tuple[int, ...]:
    """Each once, in their order."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := [part for part in parts if not part.isdecimal() or not least <= int(part) <= most]:
        raise Failure(f"{name} takes numbers from {least} to {most}, not {wrong[0]!r}.", USAGE)
    return tuple(dict.fromkeys(map(int, parts)))


@app.command()
def rooms(
    ctx: typer.Context,
    text: Annotated[bool, typer.Option("--text", help="Captions are written instead of spoken.")] = False,
    seconds: LongSeconds = None,
    readers: Annotated[int, typer.Option(min=16, max=5_000, help="Readers of the room.")] = 1000,
    rate: Annotated[float, typer.Option(min=0.1, max=1000, help="Captions per second.")] = 2.0,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Compare with socket.io and NATS.")] = True,
    most: Annotated[bool, typer.Option("--max/--no-max", help="Also the highest sustained rate of captions.")] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="One short round instead of five, to see that it runs.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Captions of a room with a thousand readers on two instances, beside socket.io and NATS."""
    from dragoman.tools.bench import rooms as bench_rooms

    chosen = bench_rooms.Settings(
        readers=readers,
        rate=rate,
        seconds=seconds or (QUICK_LONG_SECONDS if quick else LONG_SECONDS),
        rounds=QUICK_ROUNDS if quick else ROOM_ROUNDS,
        peers=peers,
        max=most,
        text=text,
    )
    _run(ctx, bench_rooms, chosen, json)


@app.command()
def abuse(
    ctx: typer.Context,
    seconds: Annotated[
        float | None,
        option(
            min=0.1,
            max=600,
            help=f"Seconds of each attack, at least. [{ABUSE_SECONDS:g}, with --quick {QUICK_ABUSE_SECONDS:g}]",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, option(metavar="ATTACK", help="Only this attack; can be given more than once.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short and with fewer clients, to see that it runs.")] = False,
    json: JsonFile = None,
) -> None:
    """What healthy clients notice of attacks by others, and whether anything is left of the attacks."""
    from dragoman.tools.bench.abuse import bench as bench_abuse
    from dragoman.tools.bench.abuse.attack import QUICK, Scale
    from dragoman.tools.bench.abuse.attacker import BY_NAME

    if unknown := [name for name in only or () if name not in BY_NAME]:
        raise Failure(f"There is no attack {unknown[0]}; choose from {', '.join(BY_NAME)}.", USAGE)
    chosen = bench_abuse.Settings(
        seconds=seconds or (QUICK_ABUSE_SECONDS if quick else ABUSE_SECONDS),
        scale=QUICK if quick else Scale(),
        give_way=not quick,
        only=tuple(only or ()),
    )
    _run(ctx, bench_abuse, chosen, json)


@app.command()
def load(
    ctx: typer.Context,
    minutes: Annotated[
        float | None, option(min=0.01, max=600, help="Minutes of the part `half`. [10, with --quick 0.1]")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.01, max=1, help="The share for the part `half`; the load itself needs CPU too.")
    ] = 0.5,
    only: Annotated[
        str, typer.Option(metavar="PARTS", help="Only some of sockets,messages,jobs,half,target,storm,above.")
    ] = "",
    instances: Annotated[int, typer.Option(min=1, max=16, help="Instances in all parts except `sockets`.")] = 2,
    first_rate: Annotated[
        float, typer.Option(min=1, max=100000, help="The first rate of messages per second.", show_default=True)
    ] = 800.0,
    quick: Annotated[bool, typer.Option("--quick", help="Small numbers and short times, to see that it runs.")] = False,
    json: JsonFile = None,
) -> None:
    """The most sockets, messages and jobs; all of them together; a storm of reconnects; and an overload."""
    from dragoman.tools.bench import load as bench_load
    from dragoman.tools.bench.mixed_load import QUICK, Settings

    chosen = replace(QUICK if quick else Settings(), parts=_parts(only), instances=instances)
    chosen = replace(
        chosen,
        minutes=minutes or chosen.minutes,
        share=share,
        first_rate=min(first_rate, chosen.first_rate) if quick else first_rate,
    )
    _run(ctx, bench_load, chosen, json)


@app.command()
def engines(
    ctx: typer.Context,
    languages: Annotated[str, typer.Option(metavar="LIST", help="Languages, comma separated.")] = "en,es",
    models: Annotated[
        Path | None, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_MODELS", help="Folder of the models.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Accuracy, latency and memory of the engines whose models are there; see 'dragoman models'."""
    from dragoman.domain.sample_sentences import SENTENCES
    from dragoman.engines.models import models_dir
    from dragoman.tools.bench import engines as bench_engines

    chosen = tuple(code.strip() for code in languages.split(","))
    if unknown := [code for code in chosen if code not in SENTENCES]:
        raise Failure(f"There are no sample sentences in {', '.join(unknown)}, only in {', '.join(SENTENCES)}.", USAGE)
    _run(ctx, bench_engines, bench_engines.Settings(chosen, models_dir(models)), json)


def _parts(only: str) -> "tuple[Part, ...]":
    """In the order of execution: some parts use the results of others."""
    from dragoman.tools.bench.mixed_load import PARTS

    named = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in named if name not in PARTS]:
        raise Failure(f"--only knows {', '.join(PARTS)}, and not {unknown[0]!r}.", USAGE)
    return tuple(part for part in PARTS if part in named) if named else PARTS


def _run(ctx: typer.Context, bench: Any, chosen: object, json: Path | None) -> None:
    """Measure with a progress bar, show the tables, write the file; a failure is one sentence.

    `bench`: a module with `run(settings, binary, on_step)` and `steps(settings)`.
    """
    from dragoman.embedded.binary import EngineError, find_server
    from dragoman.tools.processes import CannotRun
    from dragoman.tools.report import progress_bar

    if json is not None and not _writable(json):
        raise Failure(f"--json names {json}, which cannot be written.", USAGE)
    try:
        with progress_bar(bench.steps(chosen), output.console(stderr=True)) as on_step:
            report = bench.run(chosen, find_server(settings(ctx).config.embedded.redis_server), on_step)
        report.show(output.console())
        if json is not None:
            report.write(json)
    except (CannotRun, EngineError) as error:
        raise Failure(str(error)) from error


def _writable(path: Path) -> bool:
    """Checked before the measurement, which takes minutes."""
    return os.access(path, os.W_OK) if path.is_file() else not path.exists() and os.access(path.parent, os.W_OK)
