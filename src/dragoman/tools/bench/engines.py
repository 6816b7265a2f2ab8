"""`dragoman bench engines`: the accuracy, the latency and the memory of the engines whose models are there.

    recognise   the share of words that are right, of sample sentences that the best voice here speaks
    translate   the time of a sentence; how good it is, a reader must say: the translation is printed
    speak       the time before the audio is there, and per second of audio; the share of its words that the best
                recogniser here understands

Each engine runs in a process of its own, so that its memory and its processor time are its own. An engine that is not
there, because its library or its model is missing, is named as such, and has no figures; nor has one that does not
answer within CHILD_S, or for which nothing is left of TOTAL_S.
"""

import asyncio
import difflib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dragoman.domain.sample_sentences import SENTENCES
from dragoman.embedded.binary import ServerBinary
from dragoman.engines.catalog import RECOGNISERS, SYNTHESISERS, TRANSLATORS, Setup, Step
from dragoman.engines.engine import Engine, Missing, deadline_in
from dragoman.engines.models import models_dir
from dragoman.engines.sound import Sound
from dragoman.tools.processes import CannotRun, cpu_s
from dragoman.tools.report import OnStep, Report, number, table

# Those that run on this machine, each with the model that the manifest has.
PARTS = {
    "recognise": ("whisper:base", "whisper:small", "pocketsphinx"),
    "translate": ("nllb:600m", "opus-mt", "bergamot", "apertium"),
    "speak": ("kokoro:int8", "piper", "espeak"),
}
VOICES, RECOGNISER = ("kokoro:int8", "piper", "espeak"), "whisper:base"  # the best first
TARGETS = {"en": "es", "es": "en", "fr": "en", "pt": "en"}
CHILD_S, TOTAL_S = 100.0, 280.0
NOT_HERE = "not here"


@dataclass(frozen=True, slots=True)
class Settings:
    languages: tuple[str, ...] = ("en", "es")
    models: Path = field(default_factory=models_dir)


class Measured(msgspec.Struct):
    """What a child process reports of one engine in one language. `missing`: why there are no figures."""

    missing: str = ""
    seconds: float = 0.0  # of all sentences
    cpu_s: float = 0.0
    first_s: float = 0.0  # to open the engine
    audio_s: float = 0.0
    memory_mb: float = 0.0
    sentences: int = 0
    texts: list[str] = []
    sounds: list[tuple[bytes, int]] = []


def steps(settings: Settings) -> int:
    return sum(map(len, PARTS.values())) * len(settings.languages)


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    """Every engine in every language. `binary` is not needed: no server takes part."""
    report = Report({"languages": ",".join(settings.languages), "models": str(settings.models)})
    children = Children(settings.models, time.monotonic() + TOTAL_S)
    _recognise(children, report, on_step, spoken := _spoken(settings, children, report, on_step))
    _translate(settings, children, report, on_step)
    report.settings["not_measured"] = children.not_measured
    report.notes += [f"{what}: not measured; {why}." for what, why in children.not_measured.items()]
    report.notes.append(
        "Words right: of the sample sentences, spoken by the best voice that is here "
        f"({', '.join(sorted({voice for voice, _ in spoken.values()})) or 'none'}); a person speaks less clearly."
    )
    return report


def _spoken(
    settings: Settings, children: "Children", report: Report, on_step: OnStep
) -> dict[str, tuple[str, Measured]]:
    """The voices; and for each language the best one with what it said."""
    best: dict[str, tuple[str, Measured]] = {}
    rows: list[list[str]] = []
    for language in settings.languages:
        for engine in PARTS["speak"]:
            on_step(f"{engine} speaks {language}")
            got = children.measure("speak", engine, language)
            rows.append(_row(engine, language, got, report, _understood(children, language, got), True))
            if not got.missing and (language not in best or VOICES.index(engine) < VOICES.index(best[language][0])):
                best[language] = engine, got
    report.tables.append(table("Speak", _columns("words understood"), rows))
    return best


def _recognise(children: "Children", report: Report, on_step: OnStep, spoken: dict[str, tuple[str, Measured]]) -> None:
    rows: list[list[str]] = []
    for language, (_, sounds) in spoken.items():
        for engine in PARTS["recognise"]:
            on_step(f"{engine} recognises {language}")
            got = children.measure("recognise", engine, language, sounds.sounds)
            rows.append(_row(engine, language, got, report, words_right(language, got.texts), True))
    report.tables.append(table("Recognise", _columns("words right"), rows))


def _translate(settings: Settings, children: "Children", report: Report, on_step: OnStep) -> None:
    rows: list[list[str]] = []
    for language in settings.languages:
        for engine in PARTS["translate"]:
            on_step(f"{engine} translates {language}")
            got = children.measure("translate", engine, language)
            rows.append(_row(engine, f"{language} → {TARGETS.get(language, 'en')}", got, report, None, False))
            report.notes += [f"{engine}: {text}" for text in got.texts]
    report.tables.append(table("Translate", _columns(""), rows))


def _understood(children: "Children", language: str, spoken: Measured) -> float | None:
    heard = children.measure("recognise", RECOGNISER, language, spoken.sounds) if spoken.sounds else Measured("")
    return words_right(language, heard.texts) if heard.texts else None


def words_right(language: str, texts: Sequence[str]) -> float:
    """The share of the words of the sample sentences that `texts` have, in their order."""
    right = total = 0
    for sentence, text in zip(SENTENCES[language][1:], texts, strict=False):
        wanted, got = words(sentence), words(text)
        matcher = difflib.SequenceMatcher(None, wanted, got, autojunk=False)
        right += sum(block.size for block in matcher.get_matching_blocks())
        total += len(wanted)
    return right / total if total else 0.0


def words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in text.casefold()).split()


def _columns(last: str) -> list[str]:
    return ["engine", "language", "ms a sentence", "CPU s / s of audio", "opened in s", "MB", *([last] if last else [])]


def _row(engine: str, language: str, got: Measured, report: Report, share: float | None, has_share: bool) -> list[str]:
    name = f"{engine}, {language}"
    if got.missing:
        return [engine, language, got.missing, "", "", "", *([""] if has_share else [])]
    figures = {
        "ms": 1000 * got.seconds / max(1, got.sentences),
        "cpu_per_audio_s": got.cpu_s / got.audio_s if got.audio_s else None,
        "open_s": got.first_s,
        "memory_mb": got.memory_mb,
        "words_right": share,
    }
    report.figures.update({f"{name} {key}": value for key, value in figures.items() if value is not None})
    shown = [number(figures[key]) for key in ("ms", "cpu_per_audio_s", "open_s", "memory_mb")]
    return [engine, language, *shown, *([f"{100 * share:.0f} %" if share is not None else ""] if has_share else [])]


# ---------------------------------------------------------------- the process of one engine


class Task(msgspec.Struct):
    part: str
    engine: str
    language: str
    models: str
    sounds: list[tuple[bytes, int]] = []


@dataclass(slots=True)
class Children:
    """Measures, one child process after another, until the time is over."""

    models: Path
    deadline: float  # on the monotonic clock
    not_measured: dict[str, str] = field(default_factory=dict)
    _known: dict[bytes, Measured] = field(default_factory=dict)  # the best voice is recognised once

    def measure(self, part: str, engine: str, language: str, sounds: Sequence[tuple[bytes, int]] = ()) -> Measured:
        task = msgspec.msgpack.encode(Task(part, engine, language, str(self.models), list(sounds)))
        if task not in self._known:
            self._known[task] = got = self._run(task, f"{engine}, {language}")
            if got.missing and got.missing != NOT_HERE:
                self.not_measured[f"{engine}, {language}"] = got.missing
        return self._known[task]

    def _run(self, task: bytes, what: str) -> Measured:
        left_s = min(self.deadline - time.monotonic(), CHILD_S)
        if left_s <= 0:
            return Measured("no time left")
        command = [sys.executable, "-m", "dragoman.tools.bench.engines"]
        try:
            done = subprocess.run(command, input=task, stdout=subprocess.PIPE, timeout=left_s, check=True)
        except subprocess.TimeoutExpired:
            return Measured("too slow")
        except (subprocess.SubprocessError, OSError) as error:
            raise CannotRun(f"{what} cannot be measured: {error}") from error
        return msgspec.msgpack.decode(done.stdout, type=Measured)


async def measured(task: Task) -> Measured:
    """Open the engine, do one sentence that is not measured, then all."""
    name, _, model = task.engine.partition(":")
    step = Step(name, model=model)
    setup = Setup(step, step, step, models=Path(task.models))
    engine = _made(task.part, name, setup)
    began = time.perf_counter()
    try:
        await engine.open()
    except Missing:
        return Measured(NOT_HERE)
    got = Measured(first_s=time.perf_counter() - began)
    try:
        if not _knows(engine, task):
            return Measured(NOT_HERE)
        with deadline_in(CHILD_S):
            await _do(engine, task, Measured(), 1)
            cpu, began = _cpu_s(), time.perf_counter()
            await _do(engine, task, got, None)
            got.seconds, got.cpu_s = time.perf_counter() - began, _cpu_s() - cpu
    finally:
        await engine.close()
    got.memory_mb = max(resource.getrusage(who).ru_maxrss for who in _WHO) / 1024
    return got


_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _cpu_s() -> float:
    """Also of programs that the engine runs or has run."""
    children = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return sum(sum(resource.getrusage(who)[:2]) for who in _WHO) + sum(map(cpu_s, children))


def _made(part: str, name: str, setup: Setup) -> Any:
    makers: Any = {"recognise": RECOGNISERS, "translate": TRANSLATORS, "speak": SYNTHESISERS}[part]
    return makers[name](getattr(setup, {"speak": "synthesise"}.get(part, part)), setup)


def _knows(engine: Engine, task: Task) -> bool:
    known: Any = getattr(engine, "languages", None)
    if known is None:
        return (task.language, TARGETS.get(task.language, "en")) in engine.pairs  # type: ignore[attr-defined]
    return task.language in known


async def _do(engine: Any, task: Task, got: Measured, count: int | None) -> None:
    for sentence in SENTENCES[task.language][1:][:count] if task.part != "recognise" else ():
        got.sentences += 1
        if task.part == "translate":
            got.texts = [*got.texts, await engine.translate(sentence, task.language, TARGETS.get(task.language, "en"))]
        elif task.part == "speak":
            sound = await engine.synthesise(sentence, task.language)
            got.audio_s += sound.duration_ms / 1000
            got.sounds = [*got.sounds, (sound.pcm, sound.rate)]
    for pcm, rate in task.sounds[:count]:
        got.sentences += 1
        sound = Sound(pcm, rate)
        got.audio_s += sound.duration_ms / 1000
        text = await engine.recognise(sound, task.language, lambda text: None)
        got.texts = [*got.texts, text if isinstance(text, str) else text.text]


if __name__ == "__main__":
    # What libraries print must not get into the answer.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    given = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task)
    answer.write(msgspec.msgpack.encode(asyncio.run(measured(given))))
    answer.flush()
