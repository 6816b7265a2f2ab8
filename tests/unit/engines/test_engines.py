"""Engines in general, their languages and their processes, and espeak-ng."""

import asyncio

import pytest

from dragoman.engines import EngineFailed, Missing
from dragoman.engines.engine import NO_JOB_S, deadline_in, left_s, need_module
from dragoman.engines.espeak import Espeak, languages_of
from dragoman.engines.languages import MULTILINGUAL, NAMES, SHORT, code_of, served
from dragoman.engines.processes import found, output
from support.engines import needs_espeak, needs_wheels
from support.tables import for_each
from support.waiting import wait_until


def test_all_that_is_missing_is_one_sentence_and_one_line() -> None:
    missing = [
        Missing("The program espeak-ng is not installed", "apt-get install espeak-ng"),
        Missing("The program apertium is not installed", "apt-get install apertium-eng-spa"),
        Missing("The Python package av is not installed", "pip install 'dragoman[local]'"),
        Missing("The Python package pocketsphinx is not installed", "pip install 'dragoman[local]'"),
    ]
    told = Missing.several(missing)
    assert told.remedy == "apt-get install espeak-ng apertium-eng-spa && pip install 'dragoman[local]'"
    assert told.what.startswith("The program espeak-ng is not installed; the program apertium is not installed; the ")


def test_a_module_that_is_not_there_is_named_with_what_installs_it() -> None:
    need_module("json")
    with pytest.raises(Missing, match=r"nowhere_at_all is not installed: pip install 'dragoman\[local\]'"):
        need_module("nowhere_at_all")


def test_a_job_knows_how_long_it_has_and_others_have_half_a_minute() -> None:
    assert left_s() == NO_JOB_S
    with deadline_in(5):
        assert 4 < left_s() <= 5
        with deadline_in(-1):
            assert left_s() == 0
        assert left_s() > 4
    assert left_s() == NO_JOB_S


def sorted_languages(*args: object) -> tuple[list[str], list[str], list[str]]:
    hears, writes, speaks = served(*args)  # type: ignore[arg-type]
    return sorted(hears), sorted(writes), sorted(speaks)


def test_one_recognised_language_serves_one_direction() -> None:
    assert sorted_languages({"en"}, {("en", "es"), ("es", "en")}, {"en", "es", "fr"}) == (["en"], ["es"], ["es"])


def test_two_recognised_languages_serve_both_directions() -> None:
    assert sorted_languages({"en", "es"}, {("en", "es"), ("es", "en")}, {"es"}) == (["en", "es"], ["en", "es"], ["es"])


def test_every_declared_pair_can_be_translated() -> None:
    pairs = {("en", "es"), ("en", "fr"), ("en", "de"), ("es", "fr"), ("de", "it")}
    hears, writes, _ = served({"en", "es", "de"}, pairs, ())
    assert all(source == target or (source, target) in pairs for source in hears for target in writes)
    assert (sorted(hears), sorted(writes)) == (["en"], ["de", "es", "fr"])


def test_requested_languages_narrow_the_pairs() -> None:
    pairs = {("en", "es"), ("en", "fr"), ("de", "es")}
    assert sorted_languages({"en", "de"}, pairs, {"fr"}, frozenset(("en", "fr"))) == (["en"], ["fr"], ["fr"])


def test_nothing_is_declared_without_a_common_language() -> None:
    assert sorted_languages({"en"}, {("fr", "de")}, {"de"}) == ([], [], [])


@for_each(
    [("Spanish", "es"), ("spa", "es"), ("es", "es"), ("es-MX", "es"), ("eng_US", "en"), ("klingon", None), ("", None)]
)
def test_language_has_many_names(told: str, code: str | None) -> None:
    assert code_of(told) == code


def test_the_table_names_each_language_once() -> None:
    assert len(NAMES) == len(SHORT) > 60
    assert NAMES["nb"] == "Norwegian Bokmål"
    assert {"en", "es", "zh"} <= MULTILINGUAL <= set(NAMES)


VOICES = """Pty Language       Age/Gender VoiceName          File                 Other Languages
 5  cmn             --/M      Chinese_(Mandarin) sit/cmn              (zh-cmn 5)(zh 5)
 5  en-us           --/M      English_(America)  gmw/en-US            (en 3)
 7  es-mx           --/M      mexican-mbrola-1   mb/mb-mx1            (es 8)
"""


def test_its_languages_are_those_of_voices_that_need_no_more_files() -> None:
    assert languages_of(VOICES) == {"cmn", "zh", "en"}


@needs_espeak
@needs_wheels
@pytest.mark.parametrize(("text", "language"), [("Un médico.", "es"), ("--version -x", "en"), ("你好", "zh")])
async def test_it_speaks_what_it_is_given(text: str, language: str) -> None:
    engine = Espeak()
    await engine.open()
    assert language in engine.languages
    sound = await engine.synthesise(text, language)
    assert sound.duration_ms > 200
    assert sound.loudness > 500


@needs_espeak
@needs_wheels
async def test_a_language_without_a_voice_fails() -> None:
    engine = Espeak()
    await engine.open()
    with pytest.raises(EngineFailed):
        await engine.synthesise("hello", "xx-nobody")


async def test_missing_espeak_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Missing, match="espeak-ng is not installed: apt-get install espeak-ng"):
        await Espeak().open()


async def test_a_program_answers_what_it_is_given() -> None:
    assert await output("cat", given=b"hello") == b"hello"


async def test_one_that_fails_is_quoted() -> None:
    with pytest.raises(EngineFailed, match="sh failed: no such luck"):
        await output("sh", "-c", "echo no such luck >&2; exit 3")
    with pytest.raises(EngineFailed, match="sh failed: exit 4"):
        await output("sh", "-c", "exit 4")


async def test_cancelled_it_ends_with_all_it_started(tmp_path: object) -> None:
    mark = f"{tmp_path}/pid"
    task = asyncio.create_task(output("sh", "-c", f"sleep 100 & echo $! > {mark}; wait"))

    def pid() -> int:
        try:
            with open(mark, encoding="ascii") as file:
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0

    await wait_until(lambda: pid() > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: not _runs(pid()))


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_is_not_there_is_named_with_what_installs_it() -> None:
    with pytest.raises(Missing, match="nothing-like-it is not installed: apt-get install something"):
        found("nothing-like-it", "something")
