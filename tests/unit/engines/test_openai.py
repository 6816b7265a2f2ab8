import pytest

from dragoman.engines import EngineFailed, Missing, Recognised
from dragoman.engines.openai import OpenAIRecogniser, OpenAISynthesiser, OpenAITranslator
from dragoman.node import ModelNotAvailable
from support.engines import KEY, Fault, beep, model_server, needs_wheels

pytestmark = needs_wheels


def nobody(text: str) -> None: ...


async def test_speech_is_sent_as_wav_and_comes_back_as_text() -> None:
    async with model_server() as server:
        engine = OpenAIRecogniser(server.v1, "whisper-large", KEY)
        await engine.open()
        assert await engine.recognise(beep(300), "en", nobody) == Recognised("we need a doctor", "en")
        asked = server.last("/v1/audio/transcriptions")
        assert asked["sound"] == beep(300)
        assert (asked["model"], asked["language"], asked["response_format"]) == ("whisper-large", "en", "json")
        assert server.authorizations == [f"Bearer {KEY}"]
        await engine.close()


async def test_a_server_other_than_openais_own_needs_no_key() -> None:
    async with model_server() as server:
        engine = OpenAIRecogniser(server.v1)
        await engine.open()
        await engine.close()
    with pytest.raises(Missing, match="needs a key"):
        await OpenAIRecogniser().open()


async def test_a_language_to_be_found_out_is_found_out() -> None:
    async with model_server(detected="spanish") as server:
        engine = OpenAIRecogniser(server.v1)
        assert (await engine.recognise(beep(), None, nobody)) == Recognised("we need a doctor", "es")
        assert "language" not in server.last("/v1/audio/transcriptions")
        await engine.close()


async def test_a_streamed_transcription_is_shown_as_it_grows() -> None:
    async with model_server(streams=True) as server:
        engine, shown = OpenAIRecogniser(server.v1, stream=True), list[str]()
        assert (await engine.recognise(beep(), "en", shown.append)) == Recognised("we need a doctor", "en")
        assert [text.strip() for text in shown] == ["we", "we need", "we need a", "we need a doctor"]
        await engine.close()


async def test_the_file_is_sent_whole_when_it_is_asked_again() -> None:
    async with model_server(faults=[Fault(429, {"Retry-After": "0"})]) as server:
        engine = OpenAIRecogniser(server.v1)
        await engine.recognise(beep(300), "en", nobody)
        assert server.last("/v1/audio/transcriptions")["sound"] == beep(300)
        await engine.close()


async def test_a_translation_is_asked_for_by_the_names_of_the_languages() -> None:
    async with model_server() as server:
        engine = OpenAITranslator(server.v1, "some-model", KEY)
        assert await engine.translate("we need a doctor", "en", "es") == "Necesitamos un médico."
        asked = server.last("/v1/chat/completions")
        system, user = asked["messages"]
        assert "from English into Spanish" in system["content"]
        assert user == {"role": "user", "content": "we need a doctor"}
        assert asked["model"] == "some-model"
        await engine.close()


async def test_a_voice_is_asked_for_and_decoded() -> None:
    async with model_server() as server:
        engine = OpenAISynthesiser(server.v1, "some-voice", "nova", KEY)
        assert await engine.synthesise("hola", "es") == beep()
        asked = {"model": "some-voice", "voice": "nova", "input": "hola", "response_format": "wav"}
        assert server.last("/v1/audio/speech") == asked
        await engine.close()


async def test_answers_that_hold_nothing_fail_the_job() -> None:
    async with model_server(speech=b"no sound", faults=[Fault(200, body="{}")] * 2) as server:
        translator, recogniser = OpenAITranslator(server.v1), OpenAIRecogniser(server.v1)
        with pytest.raises(EngineFailed, match="no translation"):
            await translator.translate("hello", "en", "es")
        with pytest.raises(EngineFailed, match="no text"):
            await recogniser.recognise(beep(), "en", nobody)
        voice = OpenAISynthesiser(server.v1)
        with pytest.raises(EngineFailed, match="cannot be decoded"):
            await voice.synthesise("hola", "es")
        for engine in (translator, recogniser, voice):
            await engine.close()


async def test_a_model_that_is_not_there_is_named_by_its_service() -> None:
    async with model_server(faults=[Fault(404)]) as server:
        engine = OpenAISynthesiser(server.v1)
        with pytest.raises(ModelNotAvailable) as raised:
            await engine.synthesise("hola", "es")
        assert raised.value.service_id == "openai-tts"
        await engine.close()


def test_they_say_where_speech_goes() -> None:
    assert OpenAIRecogniser("http://gpu:8000/v1").remark == "speech is sent to http://gpu:8000/v1"
