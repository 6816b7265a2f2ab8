"""Marks for tests that need engines of the system, which not every machine has; and a voice for those that do."""

import asyncio
import importlib.util
import shutil

import pytest

from dragoman.engines import Sound
from dragoman.engines.espeak import Espeak
from dragoman.gateway.sample import SENTENCES, WORDS_A_MINUTE

SENTENCE = "We need a doctor."


def _needs(what: str, there: bool, remedy: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there, reason=f"needs {what}: {remedy}")


needs_espeak = _needs("espeak-ng", shutil.which("espeak-ng") is not None, "apt-get install espeak-ng")
needs_apertium = _needs("Apertium", shutil.which("apertium") is not None, "apt-get install apertium-eng-spa")
needs_wheels = _needs(
    "PyAV and PocketSphinx",
    all(importlib.util.find_spec(name) for name in ("av", "pocketsphinx")),
    "pip install 'dragoman[local]'",
)


def needs_local(test: object) -> object:
    return needs_espeak(needs_apertium(needs_wheels(test)))


def words(text: str) -> list[str]:
    """Without punctuation and capitals, which a recogniser does not give."""
    return "".join(letter for letter in text.lower() if letter.isalpha() or letter == " ").split()


async def english(sentence: str = SENTENCE) -> Sound:
    """Spoken by a machine, in a way that a recogniser made for people understands."""
    voice = Espeak(SENTENCES["en"][0], WORDS_A_MINUTE)
    await voice.open()
    async with asyncio.timeout(30):
        return await voice.synthesise(sentence, "en")
