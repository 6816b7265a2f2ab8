"""The engines by name, and the pipeline of three of them.

`Setup` is the operator's choice. `open_engines` opens its engines, checks that everything is installed, finds the
languages that they serve together, and closes them at the end of its block. Without a recogniser the node serves text
jobs only; with one it serves them, too.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.engines.apertium import PACKAGE as APERTIUM_PACKAGE
from dragoman.engines.apertium import Apertium
from dragoman.engines.bergamot import Bergamot
from dragoman.engines.ctranslate import CTranslate
from dragoman.engines.engine import (
    APT,
    Engine,
    EngineFailed,
    Missing,
    Recogniser,
    Synthesiser,
    Translator,
    has_module,
    need_module,
)
from dragoman.engines.espeak import Espeak
from dragoman.engines.kokoro import Kokoro
from dragoman.engines.languages import Served, code_of, served
from dragoman.engines.libretranslate import DEFAULT_URL as LIBRETRANSLATE_URL
from dragoman.engines.libretranslate import LibreTranslate
from dragoman.engines.models import State, folder_of, known, models_dir, state
from dragoman.engines.openai import DEFAULT_URL as OPENAI_URL
from dragoman.engines.openai import OpenAIRecogniser, OpenAISynthesiser, OpenAITranslator
from dragoman.engines.pipeline import AUTO, Pipeline
from dragoman.engines.piper import Piper
from dragoman.engines.pocketsphinx import PocketSphinx
from dragoman.engines.whisper import PREVIEW_MS, Whisper
from dragoman.protocol.node import InstalledService


@dataclass(frozen=True, slots=True)
class Step:
    """One of the three steps: its engine and the settings of the engine. An empty setting is the engine's default."""

    engine: str
    url: str = ""
    model: str = ""
    voice: str = ""
    key: str = field(default="", repr=False)
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """The three steps, and the settings of the node."""

    recognise: Step
    translate: Step
    synthesise: Step
    slots: int = 1
    languages: frozenset[str] = frozenset()
    job_s: float | None = None
    models: Path = field(default_factory=models_dir)
    device: str = "cpu"
    preview_ms: int = PREVIEW_MS


PRESETS: Mapping[str, tuple[str, str, str]] = {
    "local": ("pocketsphinx", "apertium", "espeak"),
    "openai": ("openai", "openai", "openai"),
}
RECOGNISERS: Mapping[str, Callable[[Step, Setup], Recogniser | None]] = {
    "pocketsphinx": lambda step, setup: PocketSphinx(setup.slots),
    "whisper": lambda step, setup: Whisper(
        step.model, setup.models, slots=setup.slots, device=setup.device, preview_ms=setup.preview_ms
    ),
    "openai": lambda step, setup: OpenAIRecogniser(
        step.url or OPENAI_URL, step.model or "whisper-1", step.key, step.stream
    ),
    "none": lambda step, setup: None,  # text jobs only
}
TRANSLATORS: Mapping[str, Callable[[Step, Setup], Translator]] = {
    "apertium": lambda step, setup: Apertium(),
    "bergamot": lambda step, setup: Bergamot(setup.slots),
    "nllb": lambda step, setup: _ctranslate(step, setup),
    "opus-mt": lambda step, setup: _ctranslate(step, setup),
    "ctranslate2": lambda step, setup: _ctranslate(step, setup),
    "openai": lambda step, setup: OpenAITranslator(step.url or OPENAI_URL, step.model or "gpt-4o-mini", step.key),
    "libretranslate": lambda step, setup: LibreTranslate(step.url or LIBRETRANSLATE_URL, step.key),
}
SYNTHESISERS: Mapping[str, Callable[[Step, Setup], Synthesiser | None]] = {
    "espeak": lambda step, setup: Espeak(step.voice),
    "piper": lambda step, setup: Piper(step.model or step.voice, setup.models, device=setup.device),
    "kokoro": lambda step, setup: Kokoro(step.model, step.voice, setup.models, device=setup.device),
    "openai": lambda step, setup: OpenAISynthesiser(
        step.url or OPENAI_URL, step.model or "tts-1", step.voice or "alloy", step.key
    ),
    "none": lambda step, setup: None,  # no audio
}
# These compute on this machine, so a node takes one job per core by default.
ON_THIS_MACHINE = ("pocketsphinx", "whisper", "nllb", "opus-mt", "ctranslate2", "kokoro")
# A model may be chosen with the engine: whisper:base.
HAVE_MODELS = ("whisper", "nllb", "opus-mt", "ctranslate2", "piper", "kokoro", "openai")


def _ctranslate(step: Step, setup: Setup) -> CTranslate:
    return CTranslate(step.engine, step.model, setup.models, slots=setup.slots, device=setup.device)


@dataclass(frozen=True, slots=True)
class OpenEngines:
    """The pipeline, the languages that it serves, its services for the registration, and remarks on its quality."""

    pipeline: Pipeline
    served: Served
    text_pairs: tuple[tuple[str, str], ...]
    services: tuple[InstalledService, ...]
    remarks: tuple[str, ...]


@asynccontextmanager
async def open_engines(setup: Setup) -> AsyncIterator[OpenEngines]:
    """Open the engines. Raises Missing."""
    recogniser = RECOGNISERS[setup.recognise.engine](setup.recognise, setup)
    translator = TRANSLATORS[setup.translate.engine](setup.translate, setup)
    synthesiser = SYNTHESISERS[setup.synthesise.engine](setup.synthesise, setup)
    kinds: dict[str, Engine] = {"nmt": translator}
    if recogniser is not None:
        kinds = {"asr": recogniser, "nmt": translator, "semantic": translator}
    if synthesiser is not None:
        kinds["tts"] = synthesiser
    async with AsyncExitStack() as stack:
        # The recogniser last: if another engine is missing, its model need not be loaded.
        with_sound = recogniser is not None or synthesiser is not None
        await _open(dict.fromkeys(reversed(kinds.values())), stack, with_sound)
        voices = synthesiser.languages if synthesiser is not None else frozenset[str]()
        spoken = recogniser.languages if recogniser is not None else frozenset[str]()
        languages = served(spoken, translator.pairs, voices, setup.languages)
        text_pairs = pairs_of(translator, setup.languages)
        if recogniser is not None and not languages.asr:
            raise Missing(
                f"{translator.name} translates no language that {recogniser.name} recognises",
                "choose other engines or other --languages",
            )
        if not text_pairs:
            raise Missing(f"{translator.name} translates none of these languages", "choose other --languages")
        pipeline = Pipeline(
            recogniser.recognise if recogniser is not None else None,
            translator.translate,
            synthesiser.synthesise if synthesiser is not None else None,
            preview=getattr(recogniser, "preview", None),
            asr_languages=languages.asr,
            tts_languages=voices,
            job_s=setup.job_s,
            threads=setup.slots + 1,
        )
        services = tuple(
            InstalledService(f"{one.name}-{kind}", kind, setup.device, "running") for kind, one in kinds.items()
        )
        written = languages.semantic.union(target for _, target in text_pairs)
        yield OpenEngines(
            pipeline,
            languages._replace(tts=written & voices),
            text_pairs,
            services,
            tuple(dict.fromkeys(engine.remark for engine in kinds.values())),
        )


def pairs_of(translator: Translator, only: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """The pairs of text jobs, in order; of languages `only`, unless that is empty."""
    pairs = {pair for pair in translator.pairs if pair[0] != pair[1] and (not only or only.issuperset(pair))}
    if translator.detects:  # from any language
        pairs = {(AUTO, target) for _, target in pairs}
    return tuple(sorted(pairs))


def best_local(between: tuple[str, str], models: Path | None = None) -> tuple[str, str, str]:
    """The best engines that run offline, of those whose libraries and models are there, in both directions."""
    folder = models_dir(models)

    def there(module: str, *names: str) -> bool:
        return has_module(module) and all(state(known()[name], folder) is State.THERE for name in names)

    pairs = [f"{one}-{other}" for one, other in (between, between[::-1])]
    opus = [folder_of(f"opus-mt:{pair}", folder) / "model.bin" for pair in pairs]
    piper = [name for name in known() if name.startswith("piper:") and there("piper", name)]
    spoken = {code_of(name.removeprefix("piper:")) for name in piper}
    recognise = "whisper:base" if there("faster_whisper", "whisper:base") else "pocketsphinx"
    translate = "apertium"
    if there("ctranslate2", "nllb:600m") and has_module("sentencepiece"):
        translate = "nllb:600m"
    elif has_module("ctranslate2") and has_module("sentencepiece") and all(path.is_file() for path in opus):
        translate = f"opus-mt:{','.join(pairs)}"
    speak = "kokoro:int8" if there("kokoro_onnx", "kokoro:int8") else "espeak"
    return recognise, translate, "piper" if spoken.issuperset(between) else speak


async def local_lacks(steps: Iterable[str] = PRESETS["local"]) -> Missing | None:
    """What these engines need and is not installed; of engines with models, `best_local` chooses what is there.

    Loads no model.
    """
    apertium, chosen = Apertium(), frozenset(steps)
    engines: list[Engine] = [Espeak()] if "espeak" in chosen else []
    async with AsyncExitStack() as stack:
        try:
            await _open([*engines, *([apertium] if "apertium" in chosen else [])], stack)
            if "pocketsphinx" in chosen:
                need_module("pocketsphinx")
        except Missing as missing:
            return missing
        if "apertium" in chosen and not served(PocketSphinx.languages, apertium.pairs, ()).asr:
            return Missing("Apertium has no translation from English", APT + APERTIUM_PACKAGE)
    return None


async def _open(engines: Iterable[Engine], stack: AsyncExitStack, with_sound: bool = True) -> None:
    missing: list[Missing] = []
    try:
        if with_sound:
            need_module("av")
    except Missing as error:
        missing.append(error)
    for engine in engines:
        try:
            await engine.open()
            stack.push_async_callback(engine.close)
        except Missing as error:
            missing.append(error)
        except EngineFailed as error:
            missing.append(
                Missing(f"{engine.name} is installed but does not work. {error}".rstrip("."), "install it again")
            )
    if missing:
        raise Missing.several(missing)
