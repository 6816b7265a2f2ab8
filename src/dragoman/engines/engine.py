"""The interfaces of the three kinds of engine, their errors, and the deadline of a job.

A pipeline needs only three functions. The engines that come with Dragoman are objects around such a function: they know
their languages, `open` finds what they need or raises Missing, `close` ends what they started. An engine that cannot do
a job now raises ModelNotAvailable, and the job goes to another node; one that fails on this job raises EngineFailed.
"""

import importlib.util
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from dragoman.engines.sound import Sound
from dragoman.node import JobFailed

APT = "apt-get install "
NO_JOB_S = 30.0


class Missing(Exception):
    """Something is not installed or not configured: `what`, and as `remedy` the command or setting that helps."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what = what
        self.remedy = remedy

    @classmethod
    def several(cls, missing: "Sequence[Missing]") -> "Missing":
        """All of them in one."""
        whats = list(dict.fromkeys(one.what for one in missing))
        whats[1:] = [f"{what[0].lower()}{what[1:]}" for what in whats[1:]]
        packages = dict.fromkeys(one.remedy.removeprefix(APT) for one in missing if one.remedy.startswith(APT))
        others = dict.fromkeys(one.remedy for one in missing if not one.remedy.startswith(APT))
        lines = [APT + " ".join(packages)] if packages else []
        return cls("; ".join(whats), " && ".join([*lines, *others]))


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def need_module(name: str, extra: str = "local") -> None:
    """Raises Missing."""
    if not has_module(name):
        raise Missing(f"The Python package {name} is not installed", f"pip install 'dragoman[{extra}]'")


class EngineFailed(JobFailed):
    """This job failed, and would fail on another node as well: the server does not try it again.

    The message becomes the error of the job, so it must not hold a credential.
    """


class EngineTimeout(EngineFailed):
    """The job's time on this node is over. The server tries the job on another node, which may be faster."""

    final = False


@dataclass(frozen=True, slots=True)
class Recognised:
    """What was recognised; and the language, if the engine had to detect it."""

    text: str
    language: str | None = None
    probability: float | None = None  # of the language, 0 to 1


@dataclass(frozen=True, slots=True)
class Translated:
    """A translation; and the language of the text, if the engine had to detect it."""

    text: str
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """What helps to recognise speech, or to translate a text."""

    context_text: str = ""  # what was said before
    vocabulary: tuple[str, ...] = ()  # names and terms that it may contain
    languages: tuple[str, ...] = ()  # one of which is spoken, if the engine must detect which


Partial = Callable[[str], None]
# Plain functions (run in a thread) or async ones. If the language is None, the engine detects it. `partial` shows the
# speaker what has been recognised so far.
Recognise = Callable[[Sound, str | None, Partial], str | Recognised | Awaitable[str | Recognised]]
Translate = Callable[[str, str, str], str | Translated | Awaitable[str | Translated]]
Synthesise = Callable[[str, str], Sound | Awaitable[Sound]]
Preview = Callable[["PreviewAudio"], Awaitable[None]]


# ---------------------------------------------------------------- the deadline and the hints of a job
#
# In context variables, so that an engine knows them without every function passing them on.

_deadline: ContextVar[float | None] = ContextVar("dragoman_engines_deadline", default=None)
_hints: ContextVar[Hints] = ContextVar("dragoman_engines_hints", default=Hints())  # noqa: B039  # it is immutable


@contextmanager
def deadline_in(seconds: float) -> Iterator[None]:
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def give_hints(given: Hints) -> None:
    """For the rest of the job."""
    _hints.set(given)


def hints() -> Hints:
    """The hints of the job that calls."""
    return _hints.get()


def left_s() -> float:
    """Seconds that the job has left; 30 outside of a job. An engine that would wait longer fails at once instead."""
    deadline = _deadline.get()
    return NO_JOB_S if deadline is None else max(0.0, deadline - time.monotonic())


# ---------------------------------------------------------------- interfaces


class Engine(Protocol):
    @property
    def name(self) -> str:
        """One word, such as espeak."""

    @property
    def remark(self) -> str:
        """What its user should know: where audio or text is sent, how good the engine is."""

    async def open(self) -> None:
        """Find what the engine needs, and its languages. Raises Missing."""

    async def close(self) -> None: ...


class PreviewAudio(Protocol):
    """An utterance while it is spoken, as `dragoman.node` gives it: iterate over its audio, show words of it."""

    @property
    def src_lang(self) -> str: ...
    @property
    def lang_a(self) -> str | None: ...
    @property
    def lang_b(self) -> str | None: ...
    @property
    def auto_langs(self) -> list[str]: ...
    @property
    def audio_format(self) -> str: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def vocabulary(self) -> list[str]: ...
    def partial(self, text: str) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Recogniser(Engine, Protocol):
    """It may also have `preview`, an async function of a PreviewAudio, which returns when the utterance ends."""

    @property
    def languages(self) -> frozenset[str]: ...

    async def recognise(self, sound: Sound, language: str | None, partial: Partial) -> str | Recognised: ...


class Translator(Engine, Protocol):
    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """All (source, target) that it translates."""

    @property
    def detects(self) -> bool:
        """Whether the source may be `auto`, and any language."""

    async def translate(self, text: str, source: str, target: str) -> str | Translated: ...


class Synthesiser(Engine, Protocol):
    @property
    def languages(self) -> frozenset[str]: ...

    async def synthesise(self, text: str, language: str) -> Sound: ...
