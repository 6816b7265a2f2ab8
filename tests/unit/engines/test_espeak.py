import pytest

from dragoman.engines import EngineFailed, Missing
from dragoman.engines.espeak import Espeak, languages_of
from support.engines import needs_espeak, needs_wheels

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


async def test_where_it_is_not_installed_it_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Missing, match="espeak-ng is not installed: apt-get install espeak-ng"):
        await Espeak().open()
