"""The engines by name, and how three of them become a pipeline.

`Setup` is the choice of the operator. `opened` finds out whether everything is installed and which languages the three
serve together; at the end of its block it closes them.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from dragoman.engines.apertium import PACKAGE as APERTIUM_PACKAGE
from dragoman.engines.apertium import Apertium
from dragoman.engines.engine import APT, Engine, EngineFailed, Missing, Recogniser, Synthesiser, Translator, need_module
from dragoman.engines.espeak import Espeak
from dragoman.engines.languages import Served, served
from dragoman.engines.libretranslate import DEFAULT_URL as LIBRETRANSLATE_URL
from dragoman.engines.libretranslate import LibreTranslate
from dragoman.engines.openai import DEFAULT_URL as OPENAI_URL
from dragoman.engines.openai import OpenAIRecogniser, OpenAISynthesiser, OpenAITranslator
from dragoman.engines.pipeline import Pipeline
from dragoman.engines.pocketsphinx import PocketSphinx
from dragoman.protocol.node import InstalledService


@dataclass(frozen=True, slots=True)
class Step:
    """One of the three steps: its engine and the engine's settings. Empty: the engine's default."""

    engine: str
    url: str = ""
    model: str = ""
    voice: str = ""
    key: str = field(default="", repr=False)
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    recognise: Step
    translate: Step
    synthesise: Step
    slots: int = 1
    languages: frozenset[str] = frozenset()
    job_s: float | None = None


PRESETS: Mapping[str, tuple[str, str, str]] = {
    "local": ("pocketsphinx", "apertium", "espeak"),
    "openai": ("openai", "openai", "openai"),
}
RECOGNISERS: Mapping[str, Callable[[Step, int], Recogniser]] = {
    "pocketsphinx": lambda step, slots: PocketSphinx(slots),
    "openai": lambda step, slots: OpenAIRecogniser(
        step.url or OPENAI_URL, step.model or "whisper-1", step.key, step.stream
    ),
}
TRANSLATORS: Mapping[str, Callable[[Step], Translator]] = {
    "apertium": lambda step: Apertium(),
    "openai": lambda step: OpenAITranslator(step.url or OPENAI_URL, step.model or "gpt-4o-mini", step.key),
    "libretranslate": lambda step: LibreTranslate(step.url or LIBRETRANSLATE_URL, step.key),
}
SYNTHESISERS: Mapping[str, Callable[[Step], Synthesiser | None]] = {
    "espeak": lambda step: Espeak(step.voice),
    "openai": lambda step: OpenAISynthesiser(
        step.url or OPENAI_URL, step.model or "tts-1", step.voice or "alloy", step.key
    ),
    "none": lambda step: None,  # text only
}


@dataclass(frozen=True, slots=True)
class Opened:
    pipeline: Pipeline
    served: Served
    services: tuple[InstalledService, ...]
    remarks: tuple[str, ...]


@asynccontextmanager
async def opened(setup: Setup) -> AsyncIterator[Opened]:
    """Open the three engines. Raises Missing."""
    recogniser = RECOGNISERS[setup.recognise.engine](setup.recognise, setup.slots)
    translator = TRANSLATORS[setup.translate.engine](setup.translate)
    synthesiser = SYNTHESISERS[setup.synthesise.engine](setup.synthesise)
    kinds: dict[str, Engine] = {"asr": recogniser, "nmt": translator, "semantic": translator}
    if synthesiser is not None:
        kinds["tts"] = synthesiser
    async with AsyncExitStack() as open_ones:
        # The recogniser last: what is missing is then known before its model is loaded.
        await _open(dict.fromkeys(reversed(kinds.values())), open_ones)
        voices = synthesiser.languages if synthesiser is not None else frozenset[str]()
        languages = served(recogniser.languages, translator.pairs, voices, setup.languages)
        if not languages.asr:
            raise Missing(
                f"{translator.name} translates no language that {recogniser.name} recognises",
                "choose others, or --languages",
            )
        pipeline = Pipeline(
            recogniser.recognise,
            translator.translate,
            synthesiser.synthesise if synthesiser is not None else None,
            asr_languages=languages.asr,
            tts_languages=voices,
            job_s=setup.job_s,
            threads=setup.slots + 1,
        )
        services = tuple(InstalledService(f"{one.name}-{kind}", kind, "cpu", "running") for kind, one in kinds.items())
        yield Opened(pipeline, languages, services, tuple(dict.fromkeys(engine.remark for engine in kinds.values())))


async def local_lacks() -> Missing | None:
    """What is not installed for `--engine local`; checked without loading a model."""
    apertium = Apertium()
    async with AsyncExitStack() as open_ones:
        try:
            await _open((Espeak(), apertium), open_ones)
            need_module("pocketsphinx")
        except Missing as missing:
            return missing
        if not served(PocketSphinx.languages, apertium.pairs, ()).asr:
            return Missing("Apertium has no translation from English", APT + APERTIUM_PACKAGE)
    return None


async def _open(engines: Iterable[Engine], open_ones: AsyncExitStack) -> None:
    missing: list[Missing] = []
    try:
        need_module("av")
    except Missing as error:
        missing.append(error)
    for engine in engines:
        try:
            await engine.open()
            open_ones.push_async_callback(engine.close)
        except Missing as error:
            missing.append(error)
        except EngineFailed as error:
            missing.append(
                Missing(f"{engine.name} is installed, but does not work. {error}".rstrip("."), "install it again")
            )
    if missing:
        raise Missing.several(missing)
