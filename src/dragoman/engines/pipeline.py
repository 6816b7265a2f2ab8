"""A node's handler made of any three engines: audio in, what was heard, what it means, how it sounds.

A job has the time that its server gives the attempt, less what the answer needs to arrive: the reason for a failure
then reaches the server before its own time-out. Recognition and translation make the result; a voice that fails, or
does not know the language, costs only the sound. A pipeline may have no voice at all.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

from dragoman.engines.engine import EngineFailed, EngineTimeout, Heard, Recognise, Synthesise, Translate
from dragoman.engines.patience import within
from dragoman.engines.sound import Sound
from dragoman.node import Job, Result
from dragoman.node.threads import Threads
from dragoman.protocol.codes import EmptyReason

log = logging.getLogger("dragoman.engines")

JOB_S = 11.0  # for servers that set no deadline
ANSWER_S = 1.0  # of the server's time, for the answer to arrive; of a short time a tenth
# As the server reads them, for `service_timings` of the result.
NAMES_OF_TIMES = {"recognition": "asr_ms", "translation": "nmt_ms", "synthesis": "tts_ms"}
GRACE_S = 0.25  # an engine that watches the time can say more about what took so long than we can
THREADS = 8
AUTO = "auto"
NO_SOUND = "TTS_FAILED"


class Pipeline:
    """`hears` and `speaks`: the languages of recogniser and voice, where it matters; empty stands for any.

    Without `synthesise` it gives text only. `job_s` limits a job further than the server's deadline does.
    """

    def __init__(
        self,
        recognise: Recognise,
        translate: Translate,
        synthesise: Synthesise | None = None,
        *,
        hears: frozenset[str] = frozenset(),
        speaks: frozenset[str] = frozenset(),
        job_s: float | None = None,
        threads: int = THREADS,
    ) -> None:
        self._recognise, self._translate, self._synthesise = recognise, translate, synthesise
        self._hears, self._speaks = hears, speaks
        self._job_s = job_s
        self._threads = Threads(threads, "dragoman-engine")

    @property
    def has_voice(self) -> bool:
        return self._synthesise is not None

    async def __call__(self, job: Job) -> Result | None:
        course, has_s = Course(), self._has_s(job)
        if has_s <= 0:
            raise EngineTimeout("The job waited in the queue of the node until its time was over.")
        with within(has_s):
            try:
                async with asyncio.timeout(has_s + GRACE_S):
                    return await self._interpret(job, course)
            except TimeoutError:
                raise EngineTimeout(f"The {course.step} was not done within {has_s:.3g} s.") from None

    def _has_s(self, job: Job) -> float:
        if job.left_s is None:
            return self._job_s or JOB_S
        has_s = job.left_s - min(ANSWER_S, job.left_s / 10)
        return min(has_s, self._job_s or has_s)

    async def _interpret(self, job: Job, course: "Course") -> Result | None:
        with course.at("decoding"):
            sound = await self._in_thread(Sound.of_wire, job.audio, job.audio_format, job.sample_rate)
        with course.at("recognition"):
            heard = await self._hear(sound, self._source(job), job)
        text = heard.text.strip()
        if not text:
            return Result(extra={"reason": EmptyReason.ASR_EMPTY})
        job.partial(text, True)
        source = heard.language or self._source(job) or job.assign.lang_a or job.src_lang
        target = self._target(job, source)
        said = text
        if job.pipeline.use_nmt and source != target:
            with course.at("translation"):
                said = (await self._call(self._translate, text, source, target)).strip()
        result = Result(text, said if job.pipeline.use_nmt else "", extra=course.took, language=heard.language)
        if job.pipeline.use_tts and said and self._synthesise is not None:
            language = target if job.pipeline.use_nmt else source
            await self._speak(self._synthesise, said, language, result, course)
        return result

    async def _hear(self, sound: Sound, language: str | None, job: Job) -> Heard:
        heard = await self._call(self._recognise, sound, language, job.partial)
        return heard if isinstance(heard, Heard) else Heard(heard)

    async def _speak(self, synthesise: Synthesise, text: str, language: str, result: Result, course: "Course") -> None:
        if self._speaks and language not in self._speaks:
            result.reason_codes = [NO_SOUND]
            return
        try:
            with course.at("synthesis"):
                sound = await self._call(synthesise, text, language)
                result.tts_audio = await self._in_thread(sound.opus)
        except EngineFailed as error:
            log.warning("a result goes without its sound: %s", error)
            result.reason_codes = [NO_SOUND]

    # ------------------------------------------------------------ which way

    def _source(self, job: Job) -> str | None:
        """None: to be found out."""
        if job.src_lang != AUTO:
            return job.src_lang
        return next(iter(self._hears)) if len(self._hears) == 1 else None

    def _target(self, job: Job, source: str) -> str:
        """Between two who take turns, the other's language."""
        a, b = job.assign.lang_a, job.assign.lang_b
        if job.src_lang == AUTO and a and b:
            return a if source == b else b
        return job.tgt_lang

    # ------------------------------------------------------------ where it runs

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        given = await self._in_thread(function, *args)
        return await given if inspect.isawaitable(given) else given

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._threads.run(function, *args)


class Course:
    """Which step a job is at, and how long those before it took."""

    def __init__(self) -> None:
        self.step = "job"
        self.took: dict[str, float] = {}
        self._began = 0.0

    def at(self, step: str) -> "Course":
        self.step, self._began = step, time.monotonic()
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *raised: object) -> None:
        self.took[NAMES_OF_TIMES.get(self.step, f"{self.step}_ms")] = round((time.monotonic() - self._began) * 1000, 1)
