import pytest

from dragoman.cli import sample
from support.engines import needs_espeak


@needs_espeak
@pytest.mark.parametrize("language", ["en", "es", "zh"])
def test_sentences_are_spoken_where_somebody_can(language: str) -> None:
    spoken = sample.spoken(language)
    assert len(spoken) == 3
    for sentence in spoken:
        assert sentence.format == "pcm16"
        assert 500 < sentence.duration_ms < 10_000
        assert any(b"".join(sentence.chunks()))


def test_elsewhere_there_are_tones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sample.spoken("tlh") == ()
    monkeypatch.setenv("PATH", "/nowhere")
    assert sample.spoken("en") == ()
    assert [tone.sample_rate for tone in sample.sentences("en")] == [16_000] * 3
