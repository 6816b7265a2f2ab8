"""The sentences that stand in for a recording: the bundled recogniser gets every word of them."""

import asyncio

import pytest

from dragoman.cli.say import spoken_sample
from dragoman.domain.sample_sentences import SENTENCES
from dragoman.engines import Sound
from dragoman.engines.pocketsphinx import PocketSphinx
from support.engines import needs_espeak, needs_wheels, words

pytestmark = [needs_espeak, needs_wheels]


@pytest.mark.parametrize("format", ["pcm16", "opus"])
async def test_sentences_of_dragoman_say_are_recognised_as_they_were_spoken(format: str) -> None:
    recogniser, texts = PocketSphinx(), list[str]()
    await recogniser.open()
    try:
        for recording in spoken_sample("en"):
            sound = Sound(b"".join(recording.chunks()), recording.sample_rate)
            if format == "opus":
                sound = Sound.of_wire(sound.opus(), "opus", 16_000)
            async with asyncio.timeout(60):
                texts.append(await recogniser.recognise(sound, "en", lambda text: None))
    finally:
        await recogniser.close()
    _, *sentences = SENTENCES["en"]
    assert list(map(words, texts)) == list(map(words, sentences))
