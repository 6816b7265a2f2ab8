"""`dragoman node`: a node from the command line, simulated or with real engines."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import output
from dragoman.cli.failure import USAGE, Failure

if TYPE_CHECKING:
    from dragoman.engines.catalog import Opened, Setup, Step
    from dragoman.node import Node, SimSettings

DEFAULT_URL = "ws://127.0.0.1:5010/ws/node"
SIM = "sim"
SIM_LANGUAGES = "en,es,zh"
SLOTS = 4
STEPS = ("recognise", "translate", "synthesise")
# Not by options: what is on a command line can be read by everybody on the machine.
KEYS = {"openai": "OPENAI_API_KEY", "libretranslate": "LIBRETRANSLATE_API_KEY"}


def node(
    url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Where to dial in; may be repeated.", show_default=DEFAULT_URL),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="What does the work. sim: simulated. local: offline, English to Spanish and what else is installed, "
            "of demo quality. openai: any server with OpenAI's API.",
            show_default=SIM,
        ),
    ] = None,
    recognise: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who recognises, instead: pocketsphinx, openai.", show_default=False),
    ] = None,
    translate: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Who translates, instead: apertium, openai, libretranslate.", show_default=False
        ),
    ] = None,
    synthesise: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who speaks, instead: espeak, openai, none.", show_default=False)
    ] = None,
    recognise_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Server of that step.  [$OPENAI_BASE_URL]", show_default=False)
    ] = None,
    translate_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Server of that step.  [$OPENAI_BASE_URL]", show_default=False)
    ] = None,
    synthesise_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Server of that step.  [$OPENAI_BASE_URL]", show_default=False)
    ] = None,
    recognise_model: Annotated[
        str, typer.Option(metavar="MODEL", help="Model of that step.", show_default="whisper-1")
    ] = "",
    translate_model: Annotated[
        str, typer.Option(metavar="MODEL", help="Model of that step.", show_default="gpt-4o-mini")
    ] = "",
    synthesise_model: Annotated[
        str, typer.Option(metavar="MODEL", help="Model of that step.", show_default="tts-1")
    ] = "",
    voice: Annotated[str, typer.Option(help="Voice of who speaks.", show_default="its plain one")] = "",
    stream: Annotated[bool, typer.Option("--stream", help="openai: ask for transcriptions in pieces.")] = False,
    job_s: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="How long a job may take, retries of servers included.",
            show_default="the server's deadline, less 1 s",
        ),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(help="Languages served, comma separated; of real engines those they have.", show_default=False),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Jobs at a time.", show_default="4; local: one a core")
    ] = None,
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
    """Run a node until Ctrl-C; it finishes what it has begun, and a second Ctrl-C ends it at once.

    Credentials of servers come from the environment: OPENAI_API_KEY, LIBRETRANSLATE_API_KEY; of a single step, where
    it has its own, RECOGNISE_API_KEY, TRANSLATE_API_KEY, SYNTHESISE_API_KEY.
    """
    from dragoman import logs  # isort: skip  # first: see there

    import uvloop

    from dragoman.node import NodeRefused, SimSettings

    names = (recognise, translate, synthesise)
    engine = engine or ("local" if any(names) else SIM)
    spoken = _spoken(languages)
    dial = Dial([_checked(each) for each in url or [DEFAULT_URL]], node_id, token, quiet)
    if engine == SIM:
        if any(names):
            raise Failure("--engine sim does all three steps; leave it out to choose who does each.", USAGE)
        try:
            settings = SimSettings(delay_ms, jitter_ms, failure, empty, silence, die_after, seed=seed)
        except ValueError as error:
            raise Failure(f"{error}.".capitalize(), USAGE) from None
        run = dial.simulated(settings, spoken or SIM_LANGUAGES.split(","), slots or SLOTS)
    else:
        chosen = _chosen(engine, names)
        urls = (recognise_url, translate_url, synthesise_url)
        models = (recognise_model, translate_model, synthesise_model)
        each = zip(STEPS, chosen, urls, models, strict=True)
        steps = [_step(*one, voice, stream) for one in each]
        run = dial.real(_setup(steps, slots, spoken, job_s))
    logs.configure("warning" if quiet else "info", "auto")
    try:
        uvloop.run(run)
    except NodeRefused as error:
        raise Failure(f"The server refuses this node: {error}.", 1) from None
    except KeyboardInterrupt:  # while engines were being opened
        raise typer.Exit(130) from None


class Dial:
    """Where the node goes, and as whom."""

    def __init__(self, urls: list[str], node_id: str | None, token: str | None, quiet: bool) -> None:
        self._urls, self._node_id, self._token, self._quiet = urls, node_id, token, quiet

    def say(self, sentence: str) -> None:
        if not self._quiet:
            output.error(sentence)

    async def simulated(self, settings: "SimSettings", languages: list[str], slots: int) -> None:
        from dragoman.node import run_sim_node

        await run_sim_node(
            self._urls,
            settings,
            languages=languages,
            slots=slots,
            node_id=self._node_id,
            token=self._token,
            signals=True,
        )

    async def real(self, setup: "Setup") -> None:
        from dragoman.engines import Missing
        from dragoman.engines.catalog import opened

        try:
            async with opened(setup) as engines:
                self.say(_introduction(setup, engines))
                await self._node(setup, engines).run(signals=True)
        except Missing as missing:
            raise Failure(f"{missing.what}. What helps: {missing.remedy}", 1) from None

    def _node(self, setup: "Setup", engines: "Opened") -> "Node":
        from dragoman.node import Capabilities, Node

        hears, writes, speaks = map(sorted, engines.served)
        return Node(
            self._urls,
            engines.pipeline,
            Capabilities(hears, writes, speaks, setup.slots, services=engines.services),
            node_id=self._node_id,
            token=self._token,
        )


def _introduction(setup: "Setup", engines: "Opened") -> str:
    """Which way it goes, by whom, and how good that is."""
    hears, writes, _ = map(sorted, engines.served)
    steps = [setup.recognise.engine, setup.translate.engine, setup.synthesise.engine]
    by = " → ".join(steps) if engines.pipeline.has_voice else f"{' → '.join(steps[:2])}, text only"
    return f"{', '.join(hears)} → {', '.join(writes)} by {by}. Know that {'; '.join(engines.remarks)}."


def _chosen(engine: str, names: tuple[str | None, ...]) -> list[str]:
    from dragoman.engines.catalog import PRESETS, RECOGNISERS, SYNTHESISERS, TRANSLATORS

    if engine not in PRESETS:
        raise Failure(f"There is no engine {engine!r}; there are: {', '.join([SIM, *PRESETS])}.", USAGE)
    chosen = [name or preset for name, preset in zip(names, PRESETS[engine], strict=True)]
    there = (RECOGNISERS, TRANSLATORS, SYNTHESISERS)
    for step, known, name in zip(STEPS, there, chosen, strict=True):
        if name not in known:
            raise Failure(f"--{step} {name!r} is not there; there are: {', '.join(known)}.", USAGE)
    return chosen


def _step(step: str, engine: str, url: str | None, model: str, voice: str, stream: bool) -> "Step":
    from dragoman.engines.catalog import Step

    if engine == "openai":
        url = url or os.environ.get("OPENAI_BASE_URL")
    key = os.environ.get(f"{step.upper()}_API_KEY") or os.environ.get(KEYS.get(engine, ""), "")
    return Step(engine, url or "", model, voice, key, stream)


def _setup(steps: "list[Step]", slots: int | None, languages: list[str] | None, job_s: float | None) -> "Setup":
    from dragoman.engines.catalog import Setup

    if slots is None:
        here = any(step.engine == "pocketsphinx" for step in steps)
        slots = min(os.cpu_count() or 1, SLOTS) if here else SLOTS
    return Setup(steps[0], steps[1], steps[2], slots, frozenset(languages or ()), job_s)


def _spoken(languages: str | None) -> list[str] | None:
    if languages is None:
        return None
    spoken = [language.strip() for language in languages.split(",") if language.strip()]
    if not spoken:
        raise Failure("--languages names none: write them with commas, as in en,es,zh.", USAGE)
    return spoken


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
