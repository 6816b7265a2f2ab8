"""The engines with models, on the real libraries and on models of some kilobytes that the test makes."""

import asyncio
import time
from pathlib import Path

import pytest

from dragoman.engines import EngineTimeout, Missing, Sound
from dragoman.engines.catalog import Setup, Step, open_engines
from dragoman.engines.ctranslate import CTranslate, language_tokens
from dragoman.engines.engine import Hints, deadline_in, give_hints
from dragoman.engines.kokoro import Kokoro
from dragoman.engines.piper import Piper
from dragoman.engines.whisper import Agreed, Whisper, words_of
from support.engines import SpokenStream, beep, needs_real_engines
from support.tables import for_each
from support.tiny_models import tiny_piper, tiny_translator, tiny_whisper

pytestmark = needs_real_engines


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_whisper(folder / "whisper-tiny")
    tiny_translator(folder / "nllb-tiny", ("eng_Latn", "spa_Latn", "zho_Hant", "zho_Hans", "tlh_Latn"))
    tiny_translator(folder / "opus-mt-en-es")
    tiny_piper(folder / "piper-en_US-tiny", "en_US-tiny", "en-us")
    tiny_piper(folder / "piper-es_ES-tiny", "es_ES-tiny", "es")
    return folder


def whisper(models: Path) -> Whisper:
    return Whisper("tiny", models, preview_ms=200, skip_silence=False)


async def test_whisper_recognises_in_threads_while_the_loop_goes_on(models: Path) -> None:
    engine, shown = whisper(models), list[str]()
    await engine.open()
    longest, last = 0.0, time.monotonic()

    async def beat() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    beating = asyncio.create_task(beat())
    both = await asyncio.gather(*(engine.recognise(beep(2000), "en", shown.append) for _ in range(2)))
    beating.cancel()
    assert both[0] == both[1]
    assert both[0].language is None
    assert both[0].text == (shown[-1] if shown else "")
    assert longest < 1.0  # generous: the machine may be busy
    await engine.close()


async def test_whisper_detects_one_of_the_languages_of_the_session(models: Path) -> None:
    engine = whisper(models)
    await engine.open()
    assert {"en", "es", "zh"} <= engine.languages
    give_hints(Hints(vocabulary=("Ghent",), languages=("es", "zh")))
    recognised = await engine.recognise(beep(), None, lambda text: None)
    assert recognised.language in ("es", "zh")
    assert recognised.probability is not None
    assert 0 < recognised.probability < 1
    give_hints(Hints())
    await engine.close()


async def test_whisper_gives_up_a_job_whose_time_is_over_and_silence_has_no_text(models: Path) -> None:
    engine = whisper(models)
    await engine.open()
    with deadline_in(0.0), pytest.raises(EngineTimeout):
        await engine.recognise(beep(), "en", lambda text: None)
    assert (await engine.recognise(Sound(b"", 16_000), None, lambda text: None)).text == ""
    await engine.close()


async def test_preview_shows_words_that_it_only_adds_to(models: Path) -> None:
    engine, pcm = whisper(models), beep(1500).pcm
    await engine.open()
    stream = SpokenStream([pcm[at : at + 4800] for at in range(0, len(pcm), 4800)])
    await engine.preview(stream)
    assert all(later.startswith(earlier) for earlier, later in zip(stream.shown, stream.shown[1:], strict=False))
    await engine.close()


@for_each(
    [
        ([["we", "need"]], []),
        ([["we", "knead"], ["we", "need"], ["we", "need", "a"]], ["we", "we need"]),
        ([["We,"], ["we", "need"], ["We", "need", "a"]], ["we", "we need"]),
        ([["we"], ["we"], ["three"], ["three"], ["we", "are"], ["we", "are"]], ["we", "we are"]),
        ([[], ["we"], [], ["we"]], []),
    ]
)
def test_words_are_shown_when_two_decodings_agree_and_never_change(
    decodings: list[list[str]], shown: list[str]
) -> None:
    agreed, seen = Agreed(), list[str]()
    for words in decodings:
        if agreed.add([f" {word}" for word in words]):
            seen.append(agreed.text)
    assert seen == shown


def test_text_without_spaces_is_taken_letter_by_letter() -> None:
    assert words_of(" we need") == [" we", " need"]
    assert words_of("我们需要") == ["我", "们", "需", "要"]


async def test_translators_have_the_languages_that_their_files_name(models: Path) -> None:
    nllb, opus = CTranslate("nllb", "", models), CTranslate("opus-mt", "en-es", models)
    for engine in (nllb, opus):
        await engine.open()
        assert await engine.translate("We need a doctor. The children are playing.", "en", "es")
    languages = ("en", "es", "zh")
    assert nllb.pairs == {(one, other) for one in languages for other in languages if one != other}
    assert opus.pairs == {("en", "es")}
    for engine in (nllb, opus):
        await engine.close()


def test_language_of_nllb_is_its_common_script_and_a_variety_its_language() -> None:
    assert language_tokens(["▁we", "zho_Hant", "zho_Hans", "arb_Arab", "__de__", "eng_Latn"]) == {
        "zh": "zho_Hans",
        "ar": "arb_Arab",
        "de": "__de__",
        "en": "eng_Latn",
    }


async def test_piper_speaks_with_the_voice_of_the_language(models: Path) -> None:
    engine = Piper("", models)
    await engine.open()
    assert engine.languages == {"en", "es"}
    sound = await engine.synthesise("We need a doctor.", "es")
    assert sound.rate == 16_000
    assert sound.duration_ms > 100
    assert sound.loudness > 500
    await engine.close()


async def test_a_node_of_models_serves_what_all_of_them_know(models: Path) -> None:
    steps = Step("whisper", model="tiny"), Step("nllb", model="tiny"), Step("piper")
    async with open_engines(Setup(*steps, models=models)) as engines:
        assert sorted(engines.served.asr) == ["en", "es", "zh"]
        assert sorted(engines.served.semantic) == ["en", "es", "zh"]
        assert sorted(engines.served.tts) == ["en", "es"]
        assert engines.pipeline.preview is not None
        assert len(engines.remarks) == 3


@pytest.mark.parametrize(
    ("step", "remedy"),
    [
        (Whisper("", Path("/nowhere")), "dragoman models get whisper:base"),
        (CTranslate("nllb", "600m", Path("/nowhere")), "dragoman models get nllb:600m"),
        (CTranslate("nllb", "", Path("/nowhere")), "dragoman models get nllb:600m"),
        (CTranslate("opus-mt", "en-es", Path("/nowhere")), "put model.bin into /nowhere/opus-mt-en-es"),
        (Piper("", Path("/nowhere")), "dragoman models get piper:en_US-joe-medium"),
        (Kokoro("", "", Path("/nowhere")), "dragoman models get kokoro:int8"),
    ],
    ids=["whisper", "nllb", "any nllb", "opus-mt", "piper", "kokoro"],
)
async def test_engine_without_its_model_says_how_to_get_it(
    step: Whisper | CTranslate | Piper | Kokoro, remedy: str
) -> None:
    with pytest.raises(Missing) as missing:
        await step.open()
    assert missing.value.remedy == remedy


async def test_engine_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.engines.engine.has_module", lambda name: False)
    with pytest.raises(Missing, match=r"pip install 'dragoman\[whisper\]'"):
        await Whisper("", Path("/nowhere")).open()
