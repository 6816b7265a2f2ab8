from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.engines import Missing
from dragoman.engines.catalog import PRESETS, RECOGNISERS, SYNTHESISERS, TRANSLATORS, Setup, Step, local_lacks, opened
from support.engines import KEY, model_server, needs_apertium, needs_espeak, needs_wheels

pytestmark = needs_wheels


def asking(url: str) -> Setup:
    step = Step("openai", f"{url}/v1", key=KEY)
    return Setup(step, step, step, languages=frozenset(("en", "es", "fr")))


def test_the_presets_are_engines_that_there_are() -> None:
    for names in PRESETS.values():
        for name, known in zip(names, (RECOGNISERS, TRANSLATORS, SYNTHESISERS), strict=True):
            assert name in known


async def test_three_that_know_many_languages_promise_those_asked_for() -> None:
    async with model_server() as server, opened(asking(server.url)) as engines:
        assert [sorted(languages) for languages in engines.served] == [["en", "es", "fr"]] * 3
        assert [service.service_id for service in engines.services] == [
            *("openai-asr", "openai-nmt", "openai-semantic", "openai-tts")
        ]
        assert engines.remarks == (f"speech is sent to {server.v1}",)


async def test_a_pipeline_without_a_synthesiser_promises_no_voice() -> None:
    async with model_server() as server:
        setup = replace(asking(server.url), synthesise=Step("none"))
        async with opened(setup) as engines:
            assert [sorted(languages) for languages in engines.served] == [["en", "es", "fr"], ["en", "es", "fr"], []]
            assert [service.type for service in engines.services] == ["asr", "nmt", "semantic"]
            assert not engines.pipeline.has_voice


async def test_a_mixture_promises_what_all_of_it_can() -> None:
    async with model_server() as server:
        setup = replace(asking(server.url), translate=Step("libretranslate", server.url))
        async with opened(setup) as engines:
            assert [sorted(languages) for languages in engines.served[:2]] == [["en", "es"], ["en", "es"]]


@needs_apertium
@needs_espeak
async def test_the_local_ones_are_there_and_lack_nothing() -> None:
    assert await local_lacks() is None
    steps = [Step(name) for name in PRESETS["local"]]
    async with opened(Setup(steps[0], steps[1], steps[2])) as engines:
        assert "en" in engines.served.asr
        assert "es" in engines.served.semantic & engines.served.tts


async def test_everything_that_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    lacks = await local_lacks()
    assert lacks is not None
    assert lacks.remedy == "apt-get install espeak-ng apertium-eng-spa"


async def test_a_program_that_is_there_but_broken_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("espeak-ng", "apertium"):
        (tmp_path / name).write_text("#!/bin/sh\necho no such library >&2; exit 127\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    lacks = await local_lacks()
    assert lacks is not None
    broken = "espeak is installed, but does not work. espeak-ng failed: no such library; apertium is"
    assert lacks.what.startswith(broken)


async def test_who_has_no_language_in_common_cannot_work_together() -> None:
    async with model_server() as server:
        with pytest.raises(Missing, match="openai translates no language that openai recognises"):
            async with opened(replace(asking(server.url), languages=frozenset(("tlh",)))):
                pass


def test_a_key_is_not_shown_by_its_step() -> None:
    assert KEY not in repr(Step("openai", key=KEY))
