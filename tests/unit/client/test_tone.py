from array import array

from dragoman.client.tone import sentences


def test_there_are_a_few_short_sentences_that_can_be_heard() -> None:
    spoken = sentences()
    assert len(spoken) == 3
    for one in spoken:
        assert 500 <= one.duration_ms <= 3000
        loudest = max(map(abs, array("h", b"".join(one.chunks()))))
        assert 1000 < loudest < 32767
