import asyncio
import time

import pytest

from dragoman.engines import EngineFailed, Sound
from dragoman.engines.pocketsphinx import PROFANITY, PocketSphinx, _without_profanity
from support.engines import english, needs_espeak, needs_wheels
from support.waiting import wait_until

pytestmark = needs_wheels


def nobody(text: str) -> None: ...


@needs_espeak
async def test_what_is_said_is_heard_bit_by_bit_and_the_loop_is_not_held_up() -> None:
    engine, shown = PocketSphinx(), list[str]()
    await engine.open()
    sound = await english("We need a doctor. The children are playing in the garden.")
    longest, last = 0.0, time.monotonic()

    async def beat() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    beating = asyncio.create_task(beat())
    text = await engine.recognise(sound, "en", shown.append)
    beating.cancel()
    assert len(text.split()) >= 3
    assert len(shown) >= 2
    assert longest < 1.0  # generous: the machine may be busy; a decoder in this process would take longer
    await engine.close()


async def test_silence_is_nothing_and_nothing_is_nothing() -> None:
    engine = PocketSphinx()
    await engine.open()
    for pcm in (bytes(16_000), b""):
        assert isinstance(await engine.recognise(Sound(pcm, 8_000), "en", nobody), str)
    await engine.close()


@needs_espeak
async def test_a_cancelled_job_ends_its_process_and_the_next_gets_another() -> None:
    engine = PocketSphinx()
    await engine.open()
    sound, shown = await english("We need a doctor. " * 5), list[str]()
    (first,) = engine._idle
    task = asyncio.create_task(engine.recognise(sound, "en", shown.append))
    await wait_until(lambda: shown, 60)
    task.cancel()
    await asyncio.wait({task})
    assert first.returncode is not None
    assert await engine.recognise(await english(), "en", nobody)
    await engine.close()


async def test_one_whose_process_died_fails_that_job_only() -> None:
    engine = PocketSphinx()
    await engine.open()
    (child,) = engine._idle
    child.kill()
    await child.wait()
    with pytest.raises(EngineFailed, match="ended during the recognition"):
        await engine.recognise(Sound(bytes(32_000), 16_000), "en", nobody)
    assert isinstance(await engine.recognise(Sound(bytes(32_000), 16_000), "en", nobody), str)
    await engine.close()


def test_nobody_is_quoted_with_rude_words(tmp_path: object) -> None:
    from pathlib import Path

    words = Path(str(tmp_path)) / "words"
    words.write_text("\n".join(["doctor D AA K T ER", *(f"{word} X" for word in PROFANITY), "garden G AA"]))
    assert [line.split()[0] for line in _without_profanity(words)] == ["doctor", "garden"]
