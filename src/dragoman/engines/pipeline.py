"""A handler for a node, made of three engines: recognition, translation, synthesis.

The time for a job is the server's deadline for the attempt minus the time that the answer needs to arrive: the reason
of a failure then reaches the server before its timeout. If the synthesis fails, or does not know the language, the
result has no audio.

A pipeline may have no synthesis: its results have no audio. Without recognition it does text jobs only; without
translation it recognises only.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from dragoman.engines.engine import (
    EngineFailed,
    EngineTimeout,
    Hints,
    Preview,
    Recognise,
    Recognised,
    Synthesise,
    Translate,
    Translated,
    deadline_in,
    give_hints,
)
from dragoman.engines.sound import Sound
from dragoman.node import Job, ModelNotAvailable, Result
from dragoman.node.threads import Threads
from dragoman.protocol.codes import EmptyReason

log = logging.getLogger("dragoman.engines")

JOB_S = 11.0  # for servers that set no deadline
ANSWER_S = 1.0  # reserved for the answer to arrive; a tenth of a deadline below 10 s
# As the server expects them in `service_timings` of the result.
TIMING_NAMES = {"recognition": "asr_ms", "translation": "nmt_ms", "synthesis": "tts_ms"}
GRACE_S = 0.25  # an engine that observes the deadline itself can report better than we can what took so long
THREADS = 8
AUTO = "auto"
TTS_FAILED = "TTS_FAILED"


class Pipeline:
    """A handler for `Node`, made of three functions, plain or async.

        def recognise(sound: Sound, language: str | None, partial) -> str | Recognised
        def translate(text: str, source: str, target: str) -> str
        def synthesise(text: str, language: str) -> Sound

    One of the first two is needed. A text job needs only `translate`, and `synthesise` if it asks for audio; its source
    is `auto` only if the node registered such a pair. `hints()` has the vocabulary of a job and what was said before.
    `preview`: shows words of an utterance while it is spoken, see `dragoman.node`; async.
    `asr_languages` and `tts_languages`: what the recogniser and the voice know, if that must be checked; empty: any
    language. `job_s`: a limit for each job, below the server's deadline.
    """

    def __init__(
        self,
        recognise: Recognise | None = None,
        translate: Translate | None = None,
        synthesise: Synthesise | None = None,
        *,
        preview: Preview | None = None,
        asr_languages: frozenset[str] = frozenset(),
        tts_languages: frozenset[str] = frozenset(),
        job_s: float | None = None,
        threads: int = THREADS,
    ) -> None:
        if recognise is None and translate is None:
            raise ValueError("a pipeline needs a function that recognises or one that translates")
        self._recognise, self._translate, self._synthesise = recognise, translate, synthesise
        self.preview = preview
        self._asr_languages, self._tts_languages = asr_languages, tts_languages
        self._job_s = job_s
        self._threads = Threads(threads, "dragoman-engine")

    @property
    def has_voice(self) -> bool:
        return self._synthesise is not None

    @property
    def recognises(self) -> bool:
        return self._recognise is not None

    @property
    def translates_text(self) -> bool:
        return self._translate is not None

    async def __call__(self, job: Job) -> Result | None:
        steps, time_s = StepTimer(), self._time_s(job)
        if time_s <= 0:
            raise EngineTimeout("The job waited in the queue of the node until its deadline had passed.")
        give_hints(Hints(job.context_text or "", tuple(job.vocabulary), self._among(job)))
        with deadline_in(time_s):
            try:
                async with asyncio.timeout(time_s + GRACE_S):
                    return await (self._translate_text if job.is_text else self._interpret)(job, steps)
            except TimeoutError:
                raise EngineTimeout(f"The {steps.current} was not done within {time_s:.3g} s.") from None

    def _time_s(self, job: Job) -> float:
        if job.left_s is None:
            return self._job_s or JOB_S
        time_s = job.left_s - min(ANSWER_S, job.left_s / 10)
        return min(time_s, self._job_s or time_s)

    async def _translate_text(self, job: Job, steps: "StepTimer") -> Result:
        text = job.text.strip()
        translated = Translated(text)
        if text and job.src_lang != job.tgt_lang:
            translated = await self._translated(text, job.src_lang, job.tgt_lang, steps)
        result = Result("", translated.text, extra=steps.took_ms, language=translated.language)
        if job.pipeline.use_tts and translated.text and self._synthesise is not None:
            await self._speak(self._synthesise, translated.text, job.tgt_lang, result, steps)
        return result

    async def _interpret(self, job: Job, steps: "StepTimer") -> Result | None:
        with steps.step("decoding"):
            sound = await self._in_thread(Sound.of_wire, job.audio, job.audio_format, job.sample_rate)
        with steps.step("recognition"):
            recognised = await self._recognise_speech(sound, self._source(job), job)
        text = recognised.text.strip()
        if not text:
            return Result(extra={"reason": EmptyReason.ASR_EMPTY})
        job.partial(text, True)
        source = recognised.language or self._source(job) or job.assign.lang_a or job.src_lang
        target = self._target(job, source)
        translated = text
        if job.pipeline.use_nmt and source != target:
            translated = (await self._translated(text, source, target, steps)).text
        result = Result(
            text,
            translated if job.pipeline.use_nmt else "",
            extra=steps.took_ms,
            language=recognised.language,
            language_probability=recognised.probability,
        )
        if job.pipeline.use_tts and translated and self._synthesise is not None:
            language = target if job.pipeline.use_nmt else source
            await self._speak(self._synthesise, translated, language, result, steps)
        return result

    async def _recognise_speech(self, sound: Sound, language: str | None, job: Job) -> Recognised:
        if self._recognise is None:
            raise ModelNotAvailable("asr", reason="this node does not recognise speech")
        # A preview has shown more words than the first partials of the job would.
        was_previewed = self.preview is not None and job.preview_id is not None
        recognised = await self._call(self._recognise, sound, language, _ignored if was_previewed else job.partial)
        return recognised if isinstance(recognised, Recognised) else Recognised(recognised)

    async def _translated(self, text: str, source: str, target: str, steps: "StepTimer") -> Translated:
        if self._translate is None:
            raise ModelNotAvailable("nmt", reason="this node does not translate")
        with steps.step("translation"):
            given = await self._call(self._translate, text, source, target)
        translated = given if isinstance(given, Translated) else Translated(given)
        return Translated(translated.text.strip(), translated.language)

    async def _speak(
        self, synthesise: Synthesise, text: str, language: str, result: Result, steps: "StepTimer"
    ) -> None:
        if self._tts_languages and language not in self._tts_languages:
            result.reason_codes = [TTS_FAILED]
            return
        try:
            with steps.step("synthesis"):
                sound = await self._call(synthesise, text, language)
                result.tts_audio = await self._in_thread(sound.opus)
        except EngineFailed as error:
            log.warning("a result has no audio: %s", error)
            result.reason_codes = [TTS_FAILED]

    # ------------------------------------------------------------ languages

    def _source(self, job: Job) -> str | None:
        """None: the recogniser detects it."""
        if job.src_lang != AUTO:
            return job.src_lang
        return next(iter(self._asr_languages)) if len(self._asr_languages) == 1 else None

    def _among(self, job: Job) -> tuple[str, ...]:
        """The languages from which the recogniser chooses: those of the session, else all that this node translates."""
        named = tuple(filter(None, (*(job.assign.auto_langs or ()), job.assign.lang_a, job.assign.lang_b)))
        return named or tuple(sorted(self._asr_languages))

    def _target(self, job: Job, source: str) -> str:
        """Between two people who take turns, the language of the other one."""
        a, b = job.assign.lang_a, job.assign.lang_b
        if job.src_lang == AUTO and a and b:
            return a if source == b else b
        return job.tgt_lang

    # ------------------------------------------------------------ calls

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        given = await self._in_thread(copy_context().run, function, *args)
        return await given if inspect.isawaitable(given) else given

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._threads.run(function, *args)


def _ignored(text: str) -> None: ...


class StepTimer:
    """The current step of a job, and how long earlier steps took."""

    def __init__(self) -> None:
        self.current = "job"
        self.took_ms: dict[str, float] = {}
        self._began = 0.0

    def step(self, name: str) -> "StepTimer":
        self.current, self._began = name, time.monotonic()
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *raised: object) -> None:
        self.took_ms[TIMING_NAMES.get(self.current, f"{self.current}_ms")] = round(
            (time.monotonic() - self._began) * 1000, 1
        )
