"""The catalogue of engines, sound, and PocketSphinx: all need the wheels of the extra `local`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cli.node import DEFAULT_URL, Runner
from dragoman.cli.output import Failure
from dragoman.engines import EngineFailed, Missing, Sound
from dragoman.engines.catalog import (
    PRESETS,
    RECOGNISERS,
    SYNTHESISERS,
    TRANSLATORS,
    Setup,
    Step,
    local_lacks,
    open_engines,
)
from dragoman.engines.pocketsphinx import PROFANITY, PocketSphinx, _without_profanity
from dragoman.protocol.audio import SILENCE_PACKET, duration_ms, opus_run
from dragoman.protocol.codes import BadAudio
from support.engines import (
    KEY,
    SpokenStream,
    beep,
    english,
    model_server,
    needs_apertium,
    needs_espeak,
    needs_wheels,
    words,
)
from support.tables import for_each
from support.waiting import wait_until

pytestmark = needs_wheels


def asking(url: str) -> Setup:
    step = Step("openai", f"{url}/v1", key=KEY)
    return Setup(step, step, step, languages=frozenset(("en", "es", "fr")))


def test_the_presets_are_engines_that_there_are() -> None:
    for names in PRESETS.values():
        for name, known in zip(names, (RECOGNISERS, TRANSLATORS, SYNTHESISERS), strict=True):
            assert name in known


async def test_three_that_know_many_languages_promise_those_asked_for() -> None:
    async with model_server() as server, open_engines(asking(server.url)) as engines:
        assert [sorted(languages) for languages in engines.served] == [["en", "es", "fr"]] * 3
        assert [service.service_id for service in engines.services] == [
            *("openai-asr", "openai-nmt", "openai-semantic", "openai-tts")
        ]
        assert engines.remarks == (f"speech is sent to {server.v1}",)


async def test_a_pipeline_without_a_synthesiser_promises_no_voice() -> None:
    async with model_server() as server:
        setup = replace(asking(server.url), synthesise=Step("none"))
        async with open_engines(setup) as engines:
            assert [sorted(languages) for languages in engines.served] == [["en", "es", "fr"], ["en", "es", "fr"], []]
            assert [service.type for service in engines.services] == ["asr", "nmt", "semantic"]
            assert not engines.pipeline.has_voice


async def test_a_mixture_promises_what_all_of_it_can() -> None:
    async with model_server() as server:
        setup = replace(asking(server.url), translate=Step("libretranslate", server.url))
        async with open_engines(setup) as engines:
            assert [sorted(languages) for languages in engines.served[:2]] == [["en", "es"], ["en", "es"]]


async def test_node_previews_as_many_utterances_as_it_is_told_if_its_recogniser_shows_words() -> None:
    async with model_server() as server, open_engines(asking(server.url)) as engines:
        Runner([DEFAULT_URL], None, None, True, 0)._node(asking(server.url), engines)
        with pytest.raises(Failure, match="--previews: openai shows no words while one speaks"):
            Runner([DEFAULT_URL], None, None, True, 3)._node(asking(server.url), engines)
        engines.pipeline.preview = PocketSphinx().preview
        node = Runner([DEFAULT_URL], None, None, True, 3)._node(asking(server.url), engines)
        assert node._capabilities.previews == 3


@needs_apertium
@needs_espeak
async def test_the_local_ones_are_there_and_lack_nothing() -> None:
    assert await local_lacks() is None
    steps = [Step(name) for name in PRESETS["local"]]
    async with open_engines(Setup(steps[0], steps[1], steps[2])) as engines:
        assert "en" in engines.served.asr
        assert "es" in engines.served.semantic & engines.served.tts


async def test_all_missing_parts_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    lacks = await local_lacks()
    assert lacks is not None
    assert lacks.remedy == "apt-get install espeak-ng apertium-eng-spa"


async def test_broken_program_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("espeak-ng", "apertium"):
        (tmp_path / name).write_text("#!/bin/sh\necho no such library >&2; exit 127\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    lacks = await local_lacks()
    assert lacks is not None
    broken = "espeak is installed but does not work. espeak-ng failed: no such library; apertium is"
    assert lacks.what.startswith(broken)


async def test_engines_without_a_common_language_cannot_be_combined() -> None:
    async with model_server() as server:
        with pytest.raises(Missing, match="openai translates no language that openai recognises"):
            async with open_engines(replace(asking(server.url), languages=frozenset(("tlh",)))):
                pass


def test_a_key_is_not_shown_by_its_step() -> None:
    assert KEY not in repr(Step("openai", key=KEY))


def nobody(text: str) -> None: ...


@asynccontextmanager
async def opened(engine: PocketSphinx) -> AsyncIterator[PocketSphinx]:
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@needs_espeak
async def test_recognition_reports_partials_without_blocking_the_loop() -> None:
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


@needs_espeak
async def test_words_are_shown_while_they_are_spoken_and_the_next_utterance_begins_anew() -> None:
    async with opened(PocketSphinx()) as engine:
        sound = await english("The train leaves tomorrow morning at seven.")
        pcm = sound.pcm + bytes(sound.rate)
        streams = [SpokenStream([pcm[at : at + 8000] for at in range(0, len(pcm), 8000)], "en", sound.rate)] * 2
        for stream in streams:
            stream.shown.clear()
            await engine.preview(stream)
            assert len(stream.shown) >= 3
            assert {"leaves", "tomorrow", "morning"}.issubset(words(stream.shown[-1]))
        assert len(engine._idle) == len(engine._idle_previewers) == 1
        await engine.preview(SpokenStream([pcm[:4000]], "en", sound.rate))
        assert {"tomorrow", "morning"}.issubset(words(await engine.recognise(sound, "en", nobody)))


@needs_espeak
async def test_cancelled_preview_ends_its_process_and_no_job() -> None:
    async with opened(PocketSphinx()) as engine:
        sound = await english()
        stream = SpokenStream([sound.pcm] * 20, "en", sound.rate)
        task = asyncio.create_task(engine.preview(stream))
        await wait_until(lambda: stream.shown, 60)
        task.cancel()
        await asyncio.wait({task})
        assert (engine._idle_previewers, [child.returncode for child in engine._idle]) == ([], [None])


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


def test_rude_words_are_not_recognised(tmp_path: object) -> None:
    from pathlib import Path

    words = Path(str(tmp_path)) / "words"
    words.write_text("\n".join(["doctor D AA K T ER", *(f"{word} X" for word in PROFANITY), "garden G AA"]))
    assert [line.split()[0] for line in _without_profanity(words)] == ["doctor", "garden"]


def test_opus_and_back_is_as_long_and_as_loud() -> None:
    run = beep(600).opus()
    assert 600 <= duration_ms("opus", run, 16_000) <= 660
    heard = Sound.of_wire(run, "opus", 16_000)
    assert heard.rate == 16_000
    assert heard.loudness == pytest.approx(beep().loudness, rel=0.2)


def test_silence_decodes_to_silence() -> None:
    quiet = Sound.of_wire(opus_run([SILENCE_PACKET] * 10), "opus", 16_000)
    assert quiet.duration_ms == pytest.approx(200, abs=10)
    assert quiet.loudness < 1


def test_runs_that_were_joined_decode_as_one() -> None:
    run = beep(200).opus()
    both = Sound.of_wire(run + run, "opus", 16_000)
    assert both.duration_ms == pytest.approx(2 * Sound.of_wire(run, "opus", 16_000).duration_ms, abs=10)


@for_each([8_000, 16_000, 44_100, 48_000])
def test_pcm16_is_taken_at_any_rate_and_resampled(rate: int) -> None:
    sound = Sound.of_wire(beep(500, rate).pcm, "pcm16", rate)
    assert sound.rate == rate
    assert sound.at(16_000).duration_ms == pytest.approx(500, abs=5)
    assert sound.at(16_000).loudness == pytest.approx(sound.loudness, rel=0.1)


@for_each([(b"\x05\x00abc", "opus"), (b"\x08\x00\x01garbage", "opus"), (b"abc", "pcm16"), (b"ab", "mp3")])
def test_bytes_that_are_not_audio_are_refused(data: bytes, format: str) -> None:
    with pytest.raises(BadAudio):
        Sound.of_wire(data, format, 16_000)


def test_a_file_is_decoded_whatever_its_kind_and_what_is_none_refused() -> None:
    assert Sound.of_file(beep(300).wav()) == beep(300)
    with pytest.raises(BadAudio, match="cannot be decoded"):
        Sound.of_file(b"this is not a sound")


def test_nothing_is_no_packets() -> None:
    assert Sound(b"", 16_000).opus() == b""
    assert Sound(b"", 16_000).loudness == 0
    assert Sound(b"", 22_050).at(16_000) == Sound(b"", 16_000)
