"""`dragoman node`: runs a node, simulated or with real engines.

Credentials are not options: every user of the machine can read a command line.
"""

import os
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import output
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.settings import node_url

if TYPE_CHECKING:
    from dragoman.engines.catalog import OpenEngines, Setup, Step
    from dragoman.node import Node, SimSettings

DEFAULT_URL = "ws://127.0.0.1:5010/ws/node"
SIM = "sim"
SIM_LANGUAGES = "en,es,zh"
SLOTS = 4
NONE = "none"
SHOWN_PAIRS = 8
STEPS = ("recognise", "translate", "synthesise")
DEVICES = ("cpu", "cuda", "auto")
PREVIEW_MS = 700
API_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "libretranslate": "LIBRETRANSLATE_API_KEY"}

# -- options -------------------------------------------------------------------------------------


def _text(metavar: str, help: str) -> Any:
    return typer.Option(metavar=metavar, help=help, show_default=False)


def _model(default: str) -> Any:
    return typer.Option(metavar="MODEL", help="Model of this step.", show_default=default)


def _share(help: str) -> Any:
    return typer.Option(min=0, max=1, help=f"sim: share of jobs {help}.")


Urls = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="Address of a server; may be repeated.", show_default=DEFAULT_URL),
]
NodeId = Annotated[str | None, _text("ID", "Id of the node; without it, the server assigns one.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="DRAGOMAN_NODE_TOKEN",
        metavar="TOKEN",
        help="Node token, needed if security.secret is set. [$DRAGOMAN_NODE_TOKEN]",
        show_default=False,
        show_envvar=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only.")]
Languages = Annotated[
    str | None, _text("LIST", "Languages to serve, comma separated; with real engines, a subset of theirs.")
]
Slots = Annotated[
    int | None, typer.Option(min=1, help="Jobs at a time.", show_default="4; engines that compute here: one per core")
]
EngineName = Annotated[
    str | None,
    typer.Option(
        metavar="ENGINE",
        help="sim: simulated. local: offline, English to Spanish and other installed languages, demo quality. "
        "openai: any server with OpenAI's API.",
        show_default=SIM,
    ),
]
Recogniser = Annotated[
    str | None,
    _text(
        "NAME[:MODEL]",
        "Recogniser, instead of the engine's: whisper (whisper:base), pocketsphinx, openai, none (the node translates "
        "text only).",
    ),
]
Translator = Annotated[
    str | None,
    _text(
        "NAME[:MODEL]",
        "Translator, instead of the engine's: nllb (nllb:600m), opus-mt (opus-mt:en-es,es-en), ctranslate2 "
        "(ctranslate2:FOLDER), bergamot, apertium, openai, libretranslate.",
    ),
]
Synthesiser = Annotated[
    str | None,
    typer.Option(
        "--synthesise",
        "--speak",
        metavar="NAME[:MODEL]",
        help="Synthesiser, instead of the engine's: piper (piper:en_US-joe-medium), kokoro, espeak, openai, none.",
        show_default=False,
    ),
]
Models = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        envvar="DRAGOMAN_MODELS",
        help="Folder of the models, see 'dragoman models'. [$DRAGOMAN_MODELS]",
        show_default="~/.local/share/dragoman/models",
        show_envvar=False,
    ),
]
Device = Annotated[
    str,
    typer.Option(metavar="DEVICE", help="Where models compute: cpu, cuda, or auto (whisper, nllb, opus-mt)."),
]
PreviewMs = Annotated[
    int, typer.Option(min=100, help="whisper: how much new speech it waits for before it shows words again.")
]
MaxPreviews = Annotated[
    int | None,
    typer.Option(
        "--previews",
        min=0,
        help="Utterances at a time whose words it shows while they are spoken, if its recogniser can. 0: none.",
        show_default="as many as slots",
    ),
]
StepUrl = Annotated[str | None, _text("URL", "Server of this step.  [$OPENAI_BASE_URL]")]
RecogniserModel = Annotated[str, _model("whisper-1")]
TranslatorModel = Annotated[str, _model("gpt-4o-mini")]
SynthesiserModel = Annotated[str, _model("tts-1")]
Voice = Annotated[str, typer.Option(help="Voice of the synthesiser.", show_default="its default")]
Stream = Annotated[bool, typer.Option("--stream", help="openai: request transcriptions as a stream.")]
JobSeconds = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Time limit of a job, including retries of requests.",
        show_default="the server's deadline, less 1 s",
    ),
]
DelayMs = Annotated[float, typer.Option(min=0, help="sim: duration of a job.")]
JitterMs = Annotated[float, typer.Option(min=0, help="sim: random deviation from the delay.")]
DieAfter = Annotated[
    int | None, typer.Option(min=0, help="sim: end without a goodbye after this many jobs.", show_default=False)
]
Seed = Annotated[int | None, typer.Option(help="sim: seed for a repeatable run.", show_default=False)]


def node(
    url: Urls = None,
    engine: EngineName = None,
    recognise: Recogniser = None,
    translate: Translator = None,
    synthesise: Synthesiser = None,
    recognise_url: StepUrl = None,
    translate_url: StepUrl = None,
    synthesise_url: StepUrl = None,
    recognise_model: RecogniserModel = "",
    translate_model: TranslatorModel = "",
    synthesise_model: SynthesiserModel = "",
    voice: Voice = "",
    models: Models = None,
    device: Device = "cpu",
    previews: MaxPreviews = None,
    preview_ms: PreviewMs = PREVIEW_MS,
    stream: Stream = False,
    job_s: JobSeconds = None,
    languages: Languages = None,
    slots: Slots = None,
    node_id: NodeId = None,
    token: Token = None,
    quiet: Quiet = False,
    delay_ms: DelayMs = 300.0,
    jitter_ms: JitterMs = 100.0,
    failure: Annotated[float, _share("that fail")] = 0.0,
    empty: Annotated[float, _share("without speech")] = 0.0,
    silence: Annotated[float, _share("that get no answer")] = 0.0,
    die_after: DieAfter = None,
    seed: Seed = None,
) -> None:
    """Run a node until Ctrl-C. It finishes its jobs first; a second Ctrl-C ends it at once.

    API keys come from the environment: OPENAI_API_KEY and LIBRETRANSLATE_API_KEY, or for one step only
    RECOGNISE_API_KEY, TRANSLATE_API_KEY and SYNTHESISE_API_KEY.
    """
    runner = Runner([node_url(each) for each in url or [DEFAULT_URL]], node_id, token, quiet, previews)
    names = (recognise, translate, synthesise)
    engine = engine or ("local" if any(names) else SIM)
    codes = _language_codes(languages)
    if engine == SIM:
        text_only = recognise == NONE
        if any(names[text_only:]):
            raise Failure("--engine sim simulates all three steps. Leave it out to choose their engines.", USAGE)
        settings = _sim_settings(delay_ms, jitter_ms, failure, empty, silence, die_after, seed)
        runner.run(runner.simulated(settings, codes or SIM_LANGUAGES.split(","), slots or SLOTS, text_only))
    else:
        urls = (recognise_url, translate_url, synthesise_url)
        named = (recognise_model, translate_model, synthesise_model)
        chosen = zip(STEPS, _chosen(engine, names), urls, named, strict=True)
        steps = [_step(*one, voice, stream) for one in chosen]
        runner.run(runner.real(_setup(steps, slots, codes, job_s, models, _device(device), preview_ms)))


# -- running -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs a node with these servers, id and token. `previews`: at a time; None: as many as slots, if it can."""

    urls: list[str]
    node_id: str | None
    token: str | None
    quiet: bool
    previews: int | None = None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        from dragoman import logs  # isort: skip  # first: see its docstring

        import uvloop

        from dragoman.node import NodeRefused

        logs.configure("warning" if self.quiet else "info", "auto")
        try:
            uvloop.run(work)
        except NodeRefused as error:
            raise Failure(f"The server refuses this node: {error}.") from None
        except KeyboardInterrupt:  # while the engines were opening
            raise typer.Exit(130) from None

    async def simulated(self, settings: "SimSettings", languages: list[str], slots: int, text_only: bool) -> None:
        from dragoman.node import run_sim_node

        await run_sim_node(
            self.urls,
            settings,
            languages=languages,
            slots=slots,
            text_only=text_only,
            previews=self.previews,
            node_id=self.node_id,
            token=self.token,
            signals=True,
        )

    async def real(self, setup: "Setup") -> None:
        from dragoman.engines import Missing
        from dragoman.engines.catalog import open_engines

        try:
            async with open_engines(setup) as engines:
                if not self.quiet:
                    output.error(_introduction(setup, engines))
                await self._node(setup, engines).run(signals=True)
        except Missing as missing:
            raise Failure(f"{missing.what}. To fix it: {missing.remedy}") from None

    def _node(self, setup: "Setup", engines: "OpenEngines") -> "Node":
        from dragoman.node import Capabilities, Node

        asr, semantic, tts = map(sorted, engines.served)
        if self.previews and engines.pipeline.preview is None:
            raise Failure(f"--previews: {setup.recognise.engine} shows no words while one speaks.", USAGE)
        capabilities = Capabilities(
            asr,
            semantic,
            tts,
            setup.slots,
            services=engines.services,
            text_pairs=engines.text_pairs,
            previews=self.previews,
        )
        return Node(self.urls, engines.pipeline, capabilities, node_id=self.node_id, token=self.token)


def _introduction(setup: "Setup", engines: "OpenEngines") -> str:
    """The languages, the engines and the quality of the node."""
    sources, targets, _ = map(sorted, engines.served)
    steps = [setup.recognise.engine, setup.translate.engine, setup.synthesise.engine]
    if not sources:
        pairs = [f"{source} → {target}" for source, target in engines.text_pairs]
        more = f" and {len(pairs) - SHOWN_PAIRS} more" if len(pairs) > SHOWN_PAIRS else ""
        used = [name for name in steps if name != NONE]
        shown = ", ".join(pairs[:SHOWN_PAIRS])
        return f"Text {shown}{more} with {' → '.join(used)}. Note: {'; '.join(engines.remarks)}."
    by = " → ".join(steps) if engines.pipeline.has_voice else f"{' → '.join(steps[:2])}, text only"
    return f"{', '.join(sources)} → {', '.join(targets)} with {by}. Note: {'; '.join(engines.remarks)}."


# -- reading the options -------------------------------------------------------------------------


def _sim_settings(
    delay_ms: float,
    jitter_ms: float,
    failure: float,
    empty: float,
    silence: float,
    die_after: int | None,
    seed: int | None,
) -> "SimSettings":
    from dragoman.node import SimSettings

    try:
        return SimSettings(delay_ms, jitter_ms, failure, empty, silence, die_after, seed=seed)
    except ValueError as error:
        raise Failure(f"{error}.".capitalize(), USAGE) from None


def _device(device: str) -> str:
    if device not in DEVICES:
        raise Failure(f"--device {device!r} is unknown. Choose one of: {', '.join(DEVICES)}.", USAGE)
    return device


def _chosen(engine: str, names: tuple[str | None, ...]) -> list[str]:
    """The engines of the three steps: those that are named, and the preset's for the others. A model may follow."""
    from dragoman.engines.catalog import HAVE_MODELS, PRESETS, RECOGNISERS, SYNTHESISERS, TRANSLATORS

    if engine not in PRESETS:
        raise Failure(f"--engine {engine!r} is unknown. Choose one of: {', '.join([SIM, *PRESETS])}.", USAGE)
    chosen = [name or preset for name, preset in zip(names, PRESETS[engine], strict=True)]
    for step, known, one in zip(STEPS, (RECOGNISERS, TRANSLATORS, SYNTHESISERS), chosen, strict=True):
        name, _, model = one.partition(":")
        if name not in known:
            raise Failure(f"--{step} {name!r} is unknown. Choose one of: {', '.join(known)}.", USAGE)
        if model and name not in HAVE_MODELS:
            raise Failure(f"--{step} {one!r} names a model, but {name} has none to choose from.", USAGE)
    return chosen


def _step(step: str, engine: str, url: str | None, model: str, voice: str, stream: bool) -> "Step":
    from dragoman.engines.catalog import Step

    engine, _, chosen = engine.partition(":")
    model = chosen or model
    if engine == "openai":
        url = url or os.environ.get("OPENAI_BASE_URL")
    key = os.environ.get(f"{step.upper()}_API_KEY") or os.environ.get(API_KEY_VARIABLES.get(engine, ""), "")
    return Step(engine, url or "", model, voice, key, stream)


def _setup(
    steps: "list[Step]",
    slots: int | None,
    languages: list[str] | None,
    job_s: float | None,
    models: Path | None = None,
    device: str = "cpu",
    preview_ms: int = PREVIEW_MS,
) -> "Setup":
    from dragoman.engines.catalog import ON_THIS_MACHINE, Setup
    from dragoman.engines.models import models_dir

    if slots is None:
        computes_here = any(step.engine in ON_THIS_MACHINE for step in steps)
        slots = min(os.cpu_count() or 1, SLOTS) if computes_here else SLOTS
    folder = models_dir(models)
    return Setup(steps[0], steps[1], steps[2], slots, frozenset(languages or ()), job_s, folder, device, preview_ms)


def _language_codes(languages: str | None) -> list[str] | None:
    if languages is None:
        return None
    codes = [language.strip() for language in languages.split(",") if language.strip()]
    if not codes:
        raise Failure("--languages is empty. Separate languages with commas, as in en,es,zh.", USAGE)
    return codes
