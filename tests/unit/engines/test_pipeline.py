import asyncio
import threading
from typing import Any

import pytest

from dragoman.engines import EngineFailed, Hints, Pipeline, Recognised, Sound, Translated, hints
from dragoman.engines.engine import left_s
from dragoman.node import Job, ModelNotAvailable, Result
from dragoman.protocol.audio import encode_base64
from dragoman.protocol.codes import BadAudio
from dragoman.protocol.session import Pipeline as Steps
from support.engines import beep, needs_wheels
from unit.node.fake_scheduler import assignment, job

pytestmark = needs_wheels

SPOKEN = {"audio": encode_base64(beep(400, 16_000).pcm), "audio_format": "pcm16", "sample_rate": 16_000}


class Engines:
    """Three in one: they say what they were asked."""

    def __init__(self, heard: str | Recognised = "hello") -> None:
        self.heard = heard
        self.languages: list[Any] = []
        self.sounds: list[Sound] = []

    async def recognise(self, sound: Sound, language: str | None, partial: Any) -> str | Recognised:
        self.sounds.append(sound)
        self.languages.append(language)
        partial("hel")
        return self.heard

    async def translate(self, text: str, source: str, target: str) -> str:
        self.languages.append((source, target))
        return f"{text} in {target}"

    async def synthesise(self, text: str, language: str) -> Sound:
        self.languages.append(language)
        return beep()

    def pipeline(self, **options: Any) -> Pipeline:
        return Pipeline(self.recognise, self.translate, self.synthesise, **options)


async def result_of(through: Pipeline, **fields: Any) -> Result:
    result = await through(job(1, **SPOKEN | fields))
    assert result is not None
    return result


async def test_pipeline_recognises_translates_and_synthesises() -> None:
    engines = Engines()
    result = await result_of(engines.pipeline())
    assert (result.text_asr, result.text_translated, result.tts_format) == ("hello", "hello in es", "opus")
    assert Sound.of_wire(result.tts_audio, "opus", 16_000).loudness > 1000
    assert engines.languages == ["en", ("en", "es"), "es"]
    assert engines.sounds[0] == beep(400, 16_000)
    assert set(result.extra or ()) == {"decoding_ms", "asr_ms", "nmt_ms", "tts_ms"}


async def test_opus_comes_decoded_to_the_recogniser() -> None:
    engines = Engines()
    await result_of(engines.pipeline(), audio=encode_base64(beep(400).opus()), audio_format="opus")
    assert engines.sounds[0].rate == 16_000
    assert engines.sounds[0].loudness > 1000


async def test_plain_functions_run_in_threads() -> None:
    threads = set()

    def recognise(sound: Sound, language: str | None, partial: Any) -> str:
        threads.add(threading.current_thread())
        return "hello"

    def translate(text: str, source: str, target: str) -> str:
        threads.add(threading.current_thread())
        return "hola"

    def synthesise(text: str, language: str) -> Sound:
        threads.add(threading.current_thread())
        return beep()

    assert (await result_of(Pipeline(recognise, translate, synthesise))).text_translated == "hola"
    assert threading.current_thread() not in threads


async def test_recognition_without_text_is_an_empty_result() -> None:
    result = await result_of(Engines("  ").pipeline())
    assert result.is_empty
    assert result.extra == {"reason": "ASR_EMPTY"}


@pytest.mark.parametrize(
    ("preview_id", "shown"), [(None, [("hel", False), ("hello", True)]), ("preview-1", [("hello", True)])]
)
async def test_words_of_a_job_do_not_replace_those_that_its_preview_has_shown(
    preview_id: str | None, shown: list[tuple[str, bool]]
) -> None:
    async def preview(stream: object) -> None: ...

    seen = list[tuple[str, bool]]()
    assigned = assignment(1, preview_id=preview_id, **SPOKEN)
    await Engines().pipeline(preview=preview)(Job(assigned, lambda job, text, is_final: seen.append((text, is_final))))
    assert seen == shown


async def test_unrequested_steps_are_skipped() -> None:
    engines = Engines()
    result = await result_of(engines.pipeline(), pipeline=Steps(True, False, False))
    assert (result.text_asr, result.text_translated, result.tts_audio) == ("hello", "", b"")
    assert engines.languages == ["en"]


async def test_a_sentence_in_the_language_asked_for_stays_as_it_is() -> None:
    engines = Engines()
    result = await result_of(engines.pipeline(), src_lang="es")
    assert result.text_translated == "hello"
    assert engines.languages == ["es", "es"]


@pytest.mark.parametrize(("spoken", "target"), [("en", "es"), ("es", "en")])
async def test_two_way_translation_uses_the_language_of_the_other_side(spoken: str, target: str) -> None:
    engines = Engines(Recognised("hello", spoken))
    both = {"src_lang": "auto", "tgt_lang": "es", "lang_a": "en", "lang_b": "es"}
    result = await result_of(engines.pipeline(), **both)
    assert (result.text_translated, result.language) == (f"hello in {target}", spoken)
    assert engines.languages[0] is None


async def test_recogniser_of_one_language_uses_it_for_auto() -> None:
    engines = Engines()
    await result_of(engines.pipeline(asr_languages=frozenset(("en",))), src_lang="auto")
    assert engines.languages[:2] == ["en", ("en", "es")]


async def test_a_voice_that_fails_or_is_not_there_costs_only_the_sound() -> None:
    async def hoarse(text: str, language: str) -> Sound:
        raise EngineFailed("no voice today")

    engines = Engines()
    for pipeline in (
        Pipeline(engines.recognise, engines.translate, hoarse),
        engines.pipeline(tts_languages=frozenset(("en",))),
    ):
        result = await result_of(pipeline)
        assert (result.text_translated, result.tts_audio, result.reason_codes) == ("hello in es", b"", ["TTS_FAILED"])


async def test_a_model_that_is_not_there_sends_the_job_elsewhere() -> None:
    async def gone(text: str, source: str, target: str) -> str:
        raise ModelNotAvailable("openai-nmt", reason="HTTP 429")

    engines = Engines()
    with pytest.raises(ModelNotAvailable):
        await result_of(Pipeline(engines.recognise, gone, engines.synthesise))


async def test_a_job_that_takes_too_long_says_what_took_so_long() -> None:
    left: list[float] = []

    async def slow(text: str, source: str, target: str) -> str:
        left.append(left_s())
        await asyncio.Event().wait()
        return ""

    engines = Engines()
    with pytest.raises(EngineFailed, match=r"The translation was not done within 0\.2 s"):
        await result_of(Pipeline(engines.recognise, slow, engines.synthesise, job_s=0.2))
    assert 0 < left[0] <= 0.2


@pytest.mark.parametrize(
    ("deadline_ms", "job_s", "has_s"),
    [
        (12_000, None, 11.0),  # the rest is for the answer to arrive
        (60_000, None, 59.0),
        (2_000, None, 1.8),
        (60_000, 20.0, 20.0),
        (12_000, 20.0, 11.0),
        (None, None, 11.0),
        (None, 20.0, 20.0),
    ],
)
async def test_a_job_has_the_time_its_server_gives_it_and_no_more_than_the_node_allows(
    deadline_ms: int | None, job_s: float | None, has_s: float
) -> None:
    left: list[float] = []

    async def translate(text: str, source: str, target: str) -> str:
        left.append(left_s())
        return "hola"

    pipeline = Pipeline(Engines().recognise, translate, job_s=job_s)
    asked = Job(assignment(1, **SPOKEN, deadline_ms=deadline_ms), lambda *_: None, clock=lambda: 0.0)
    assert await pipeline(asked) is not None
    assert max(0.0, has_s - 5) < left[0] <= has_s


async def test_a_job_whose_time_ran_out_in_the_queue_is_not_begun() -> None:
    now = [0.0]
    late = Job(assignment(1, **SPOKEN, deadline_ms=1000), lambda *_: None, clock=lambda: now[0])
    now[0] = 2.0
    engines = Engines()
    with pytest.raises(EngineFailed, match="waited in the queue"):
        await engines.pipeline()(late)
    assert not engines.sounds


async def test_a_pipeline_without_a_voice_gives_text() -> None:
    engines = Engines()
    pipeline = Pipeline(engines.recognise, engines.translate)
    result = await result_of(pipeline)
    assert (result.text_translated, result.tts_audio, result.reason_codes) == ("hello in es", b"", None)
    assert not pipeline.has_voice
    assert engines.pipeline().has_voice


async def test_audio_that_is_none_fails_the_job() -> None:
    with pytest.raises(BadAudio):
        await result_of(Engines().pipeline(), audio=encode_base64(b"abc"))


# -- text jobs -------------------------------------------------------------------------------------

TEXT = {"text": " Good morning. ", "audio": encode_base64(b""), "pipeline": Steps(False, True, False)}


async def test_text_job_is_translated_without_a_recogniser() -> None:
    engines = Engines()
    pipeline = Pipeline(translate=engines.translate)
    result = await result_of(pipeline, **TEXT)
    assert (result.text_asr, result.text_translated, result.tts_audio) == ("", "Good morning. in es", b"")
    assert engines.languages == [("en", "es")]
    assert set(result.extra or ()) == {"nmt_ms"}
    assert (pipeline.recognises, pipeline.translates_text, pipeline.has_voice) == (False, True, False)


async def test_text_job_that_asks_for_audio_is_spoken() -> None:
    engines = Engines()
    result = await result_of(engines.pipeline(), **TEXT | {"pipeline": Steps(False, True, True)})
    assert Sound.of_wire(result.tts_audio, "opus", 16_000).loudness > 1000
    assert engines.languages == [("en", "es"), "es"]


async def test_text_in_the_language_asked_for_stays_as_it_is() -> None:
    engines = Engines()
    assert (await result_of(engines.pipeline(), **TEXT, src_lang="es")).text_translated == "Good morning."
    assert engines.languages == []


async def test_language_that_the_translator_detected_is_in_the_result() -> None:
    async def translate(text: str, source: str, target: str) -> Translated:
        return Translated(f"{text} from {source}", "en")

    result = await result_of(Pipeline(translate=translate), **TEXT, src_lang="auto")
    assert (result.text_translated, result.language) == ("Good morning. from auto", "en")


async def test_function_in_a_thread_knows_the_hints_and_the_time_of_its_job() -> None:
    known: list[object] = []

    def translate(text: str, source: str, target: str) -> str:
        known.extend((hints(), left_s() <= 2))
        return "hola"

    asked = TEXT | {"context_text": "Hello.", "vocabulary": ["dragoman"], "deadline_ms": 2000}
    await result_of(Pipeline(translate=translate), **asked)
    assert known == [Hints("Hello.", ("dragoman",)), True]
    await result_of(Pipeline(translate=translate), **TEXT)
    assert known[2] == Hints()


async def test_pipeline_without_translation_recognises() -> None:
    pipeline = Pipeline(Engines().recognise)
    result = await result_of(pipeline, pipeline=Steps(True, False, False))
    assert (result.text_asr, result.text_translated) == ("hello", "")
    assert not pipeline.translates_text


@pytest.mark.parametrize(
    ("pipeline", "fields"),
    [
        (Pipeline(translate=Engines().translate), {}),
        (Pipeline(Engines().recognise), {}),
        (Pipeline(Engines().recognise), TEXT),
    ],
)
async def test_job_that_needs_a_missing_part_goes_to_another_node(pipeline: Pipeline, fields: dict[str, Any]) -> None:
    with pytest.raises(ModelNotAvailable):
        await result_of(pipeline, **fields)


def test_pipeline_needs_a_recogniser_or_a_translator() -> None:
    with pytest.raises(ValueError, match="recognises or one that translates"):
        Pipeline(synthesise=Engines().synthesise)
