"""The three interfaces, and how an engine says that it cannot.

A pipeline needs no more than three functions. What comes with Dragoman is an object around such a function that also
knows which languages it has, and has a life: `open` looks for what it needs and raises Missing, `close` ends what it
started. An engine that cannot do a job now, but another node might, raises ModelNotAvailable; one that fails on this
very job raises EngineFailed with a sentence.
"""

import importlib.util
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.engines.sound import Sound
from dragoman.node import JobFailed

APT = "apt-get install "


class Missing(Exception):
    """Something is not installed or not set. One sentence, and the one line that helps."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what = what
        self.remedy = remedy

    @classmethod
    def several(cls, missing: "Sequence[Missing]") -> "Missing":
        """One sentence and one line for all of them."""
        whats = list(dict.fromkeys(one.what for one in missing))
        whats[1:] = [f"{what[0].lower()}{what[1:]}" for what in whats[1:]]
        packages = dict.fromkeys(one.remedy.removeprefix(APT) for one in missing if one.remedy.startswith(APT))
        others = dict.fromkeys(one.remedy for one in missing if not one.remedy.startswith(APT))
        lines = [APT + " ".join(packages)] if packages else []
        return cls("; ".join(whats), " && ".join([*lines, *others]))


def need_module(name: str) -> None:
    """Raises Missing."""
    if importlib.util.find_spec(name) is None:
        raise Missing(f"The Python package {name} is not installed", "pip install 'dragoman[local]'")


class EngineFailed(JobFailed):
    """This job failed, and would fail on another node as well: it is not tried again.

    A sentence for readers of the job's error; never a credential.
    """


class EngineTimeout(EngineFailed):
    """The job's time on this node is over. Another node may be faster, so the job is tried there."""

    final = False


@dataclass(frozen=True, slots=True)
class Heard:
    """What was said; and in which language, by an engine that was asked to find out."""

    text: str
    language: str | None = None


Partial = Callable[[str], None]
# Each plain (runs in a thread) or async. A language of None is to be found out; `partial` shows what is heard so far.
Recognise = Callable[[Sound, str | None, Partial], str | Heard | Awaitable[str | Heard]]
Translate = Callable[[str, str, str], str | Awaitable[str]]
Synthesise = Callable[[str, str], Sound | Awaitable[Sound]]


class Engine(Protocol):
    @property
    def name(self) -> str:
        """One word, e.g. espeak."""

    @property
    def remark(self) -> str:
        """What somebody should know who relies on it: where audio or text go, how good it is."""

    async def open(self) -> None:
        """Find what is needed and learn the languages. Raises Missing."""

    async def close(self) -> None: ...


class Recogniser(Engine, Protocol):
    @property
    def languages(self) -> frozenset[str]: ...

    async def recognise(self, sound: Sound, language: str | None, partial: Partial) -> str | Heard: ...


class Translator(Engine, Protocol):
    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """(source, target), as many as there are."""

    async def translate(self, text: str, source: str, target: str) -> str: ...


class Synthesiser(Engine, Protocol):
    @property
    def languages(self) -> frozenset[str]: ...

    async def synthesise(self, text: str, language: str) -> Sound: ...
