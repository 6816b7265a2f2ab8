import asyncio
import os
from pathlib import Path

import pytest

from dragoman.engines import EngineFailed, Missing
from dragoman.engines.apertium import Apertium
from support.engines import needs_apertium

pytestmark = needs_apertium


@pytest.mark.parametrize(
    ("said", "translated"),
    [
        ("we need a doctor", "Necesitamos un doctor"),
        ("i saw the man", "Vio el hombre"),  # the last words are not held back
        ("a/b [x] ^y$ <z> @ \\ {q}", "[x] ^y$ <z> @ \\ {q}"),
        ("two\nlines\0and a nul", "dos líneas"),
        ("", ""),
    ],
)
async def test_apertium_processes_are_reused(said: str, translated: str) -> None:
    engine = Apertium()
    await engine.open()
    assert ("en", "es") in engine.pairs
    assert translated.lower() in (await engine.translate(said, "en", "es")).lower()
    (row,) = engine._chains.values()
    before = row._child
    assert before is not None
    await engine.translate("thank you", "en", "es")
    assert row._child is before
    await engine.close()
    assert before.returncode is not None


async def test_every_installed_direction_is_a_pair() -> None:
    engine = Apertium()
    await engine.open()
    assert {("en", "es"), ("es", "en")} <= engine.pairs
    assert "doctor" in await engine.translate("Necesitamos un doctor", "es", "en")
    await engine.close()


async def test_modes_of_any_code_are_pairs_and_variants_only_if_there_is_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = "eng-spa spa-eng_US spa-eng es-ast eng-cat_valencia eng-cat@other xxx-eng eng-spa-tagger"
    command = tmp_path / "apertium"
    command.write_text(f"#!/bin/sh\necho {listed}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    engine = Apertium()
    await engine.open()
    assert engine._modes == {
        ("en", "es"): "eng-spa",
        ("es", "en"): "spa-eng",
        ("es", "ast"): "es-ast",
        ("en", "ca"): "eng-cat@other",
    }


async def test_sentences_said_at_once_do_not_get_each_others_translation() -> None:
    engine = Apertium()
    await engine.open()
    numbers = ["one", "two", "three", "four", "five"]
    told = await asyncio.gather(*(engine.translate(f"{number} houses", "en", "es") for number in numbers))
    assert [text.split()[0].lower() for text in told] == ["uno", "dos", "tres", "cuatro", "cinco"]
    await engine.close()


async def test_programs_that_died_or_cannot_be_kept_are_started_for_the_sentence(tmp_path: Path) -> None:
    engine, forgetful = Apertium(), Apertium(tmp_path)
    for each in (engine, forgetful):
        await each.open()
    await engine.translate("hello", "en", "es")
    (row,) = engine._chains.values()
    assert row._child is not None
    os.killpg(row._child.pid, 9)
    await row._child.wait()
    for each in (engine, forgetful):
        assert await each.translate("we need a doctor", "en", "es") == "Necesitamos un doctor"
        await each.close()


async def test_after_a_cancelled_sentence_the_next_gets_its_own_answer() -> None:
    engine = Apertium()
    await engine.open()
    await engine.translate("hello", "en", "es")
    task = asyncio.create_task(engine.translate("a house " * 500, "en", "es"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert await engine.translate("we need a doctor", "en", "es") == "Necesitamos un doctor"
    await engine.close()


async def test_a_pair_it_does_not_have_fails_the_job() -> None:
    engine = Apertium()
    await engine.open()
    with pytest.raises(EngineFailed, match="no translation from en into zh"):
        await engine.translate("hello", "en", "zh")


async def test_where_it_is_not_installed_it_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Missing, match="apertium is not installed: apt-get install apertium-eng-spa"):
        await Apertium().open()
