"""Engines behind an HTTP service."""

import asyncio
import logging
import time

import pytest

from dragoman.engines import EngineFailed, Hints, Missing, Recognised, Translated
from dragoman.engines.engine import deadline_in, give_hints
from dragoman.engines.http_service import TRIES, HttpService, retry_after_s
from dragoman.engines.libretranslate import LibreTranslate
from dragoman.engines.openai import OpenAIRecogniser, OpenAISynthesiser, OpenAITranslator
from dragoman.node import ModelNotAvailable
from support.engines import KEY, Fault, ModelServer, beep, model_server, needs_wheels
from support.waiting import wait_until

pytestmark = needs_wheels

BUSY = Fault(429, {"Retry-After": "0"})


async def ask(server: ModelServer, job_s: float = 10.0, key: str = KEY) -> object:
    service = HttpService(server.url, "libretranslate-nmt", key, "The model server")
    await service.open()
    try:
        with deadline_in(job_s):
            return await service.json("POST", "/translate", lambda: {"json": {"q": "hello"}})
    finally:
        await service.close()


async def test_the_credential_goes_into_a_header() -> None:
    async with model_server() as server:
        await ask(server)
        assert server.authorizations == [f"Bearer {KEY}"]
        await ask(server, key="")
        assert server.authorizations[-1] is None


@pytest.mark.parametrize("fault", [BUSY, Fault(500), Fault(503, {"Retry-After": "0"})])
async def test_a_server_that_is_busy_or_stumbles_is_asked_again(fault: Fault) -> None:
    async with model_server(faults=[fault, fault]) as server:
        assert await ask(server) == {"translatedText": server.translation}
        assert len(server.asked) == 3


async def test_the_time_a_server_asks_for_is_given() -> None:
    async with model_server(faults=[Fault(429, {"Retry-After": "0.3"})]) as server:
        began = time.monotonic()
        await ask(server)
        assert time.monotonic() - began >= 0.3


async def test_when_that_time_is_longer_than_the_job_has_another_node_gets_it_at_once() -> None:
    async with model_server(faults=[Fault(429, {"Retry-After": "60"})]) as server:
        began = time.monotonic()
        with pytest.raises(ModelNotAvailable, match="HTTP 429, asks to wait 60 s, after 1 tries") as raised:
            await ask(server)
        assert raised.value.service_id == "libretranslate-nmt"
        assert time.monotonic() - began < 5


async def test_one_that_stays_busy_is_given_up() -> None:
    async with model_server(faults=[BUSY] * 10) as server:
        with pytest.raises(ModelNotAvailable, match=f"after {TRIES} tries"):
            await ask(server)
        assert len(server.asked) == TRIES


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_permanent_error_is_not_retried(status: int, caplog: pytest.LogCaptureFixture) -> None:
    told = f'{{"error": {{"message": "Incorrect API key provided: {KEY}"}}}}'
    async with model_server(faults=[Fault(status, body=told)]) as server:
        with caplog.at_level(logging.DEBUG), pytest.raises(ModelNotAvailable, match=f"HTTP {status}") as raised:
            await ask(server)
    assert f"HTTP {status}" in caplog.text
    assert KEY not in caplog.text + str(raised.value)


async def test_a_job_the_server_refuses_fails_with_its_reason_and_without_the_key() -> None:
    async with model_server(faults=[Fault(400, body=f"too long, says {KEY}")]) as server:
        with pytest.raises(EngineFailed, match="refused the request with HTTP 400: too long, says …"):
            await ask(server)


async def test_redirects_are_not_followed() -> None:
    async with model_server(faults=[Fault(307, {"Location": "http://127.0.0.1:1/"})]) as server:
        with pytest.raises(EngineFailed, match="HTTP 307"):
            await ask(server)


async def test_a_slow_server_costs_no_more_than_the_job_has() -> None:
    async with model_server(faults=[Fault(pause_s=30)]) as server:
        with pytest.raises(EngineFailed, match="The model server did not answer in time"):
            await ask(server, job_s=0.2)


async def test_no_server_at_all_is_no_model() -> None:
    async with model_server() as server:
        pass
    with pytest.raises(ModelNotAvailable, match="no connection"):
        await ask(server)


async def test_an_answer_that_is_no_json_fails_the_job() -> None:
    async with model_server(faults=[Fault(200, body="<html>")]) as server:
        with pytest.raises(EngineFailed, match="not with JSON"):
            await ask(server)


async def test_cancelled_it_asks_no_more() -> None:
    async with model_server(faults=[Fault(429, {"Retry-After": "5"})]) as server:
        task = asyncio.create_task(ask(server))
        await wait_until(lambda: server.asked)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(server.asked) == 1


@pytest.mark.parametrize("url", ["", "ftp://host", "host:80", "http://user:word@host/"])
async def test_an_address_that_is_none_or_holds_a_credential_is_refused(url: str) -> None:
    with pytest.raises(Missing):
        await HttpService(url, "x").open()


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_s("1.5", 0) == 1.5
    assert retry_after_s("-3", 0) == 0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 20) == 40
    assert retry_after_s("soon", 0) is None
    assert retry_after_s(None, 0) is None


async def test_its_pairs_are_those_it_lists_and_it_translates() -> None:
    async with model_server() as server:
        engine = LibreTranslate(server.url, KEY)
        await engine.open()
        assert {("en", "es"), ("es", "en"), ("de", "en")} <= engine.pairs
        assert ("de", "es") not in engine.pairs
        assert await engine.translate("we need a doctor", "en", "es") == Translated(server.translation)
        asked = {"q": "we need a doctor", "source": "en", "target": "es", "format": "text", "api_key": KEY}
        assert server.last("/translate") == asked
        assert server.authorizations == [None, None]
        await engine.close()


@pytest.mark.parametrize("source", ["auto", "xx"])
async def test_libretranslate_detects_a_source_that_it_does_not_list(source: str) -> None:
    async with model_server(detected="de") as server:
        engine = LibreTranslate(server.url)
        await engine.open()
        assert (await engine.translate("wir brauchen einen Arzt", source, "en")).language == "de"
        assert server.last("/translate")["source"] == "auto"
        await engine.close()


async def test_unreachable_service_is_reported_with_a_remedy() -> None:
    async with model_server() as server:
        pass
    with pytest.raises(Missing, match=r"No LibreTranslate answers at .* --translate-url"):
        await LibreTranslate(server.url).open()


async def test_unreadable_answers_are_reported() -> None:
    async with model_server(faults=[Fault(200, body='{"languages": 3}'), Fault(200, body="[]")]) as server:
        engine = LibreTranslate(server.url)
        with pytest.raises(Missing, match="its list of languages cannot be read"):
            await engine.open()
        with pytest.raises(EngineFailed, match="without a translation"):
            await engine.translate("hello", "en", "es")
        await engine.close()


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


async def test_openai_translator_gets_the_hints_of_the_job_as_data() -> None:
    async with model_server() as server:
        engine = OpenAITranslator(server.v1, "some-model", KEY)
        await engine.open()
        give_hints(Hints('He said "stop".', ("dragoman", "Kraków")))
        await engine.translate("we need a doctor", "auto", "es")
        system, user = server.last("/v1/chat/completions")["messages"]
        assert "says into Spanish" in system["content"]
        assert '["dragoman", "Kraków"]' in system["content"]
        assert r'"He said \"stop\"."' in system["content"]
        assert user["content"] == "we need a doctor"
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
