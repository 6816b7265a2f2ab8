"""The detector makes frames of whatever arrives. How well it hears is tested with speech, among the engines."""

from random import Random

from dragoman.services.speech.session_input import VoiceDetector
from support.tables import for_each
from support.voice import silent, vowel


@for_each([8000, 8001, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 96_000, 192_000])
def test_frames_are_about_32_ms_of_the_audio_at_every_sample_rate(rate: int) -> None:
    frames = VoiceDetector(rate).hear(bytes(2 * rate))
    sizes = {frame.size for frame in frames}
    assert len(sizes) == 1
    size = sizes.pop()
    assert size % 2 == 0
    assert 28 < size / 2 / rate * 1000 < 36
    assert len(frames) == 2 * rate // size


@for_each([16_000, 22_050, 48_000])
def test_frames_do_not_depend_on_the_length_of_the_chunks(rate: int) -> None:
    random, pieces = Random(1), []
    audio = random.randbytes(3 * rate)
    whole = VoiceDetector(rate).hear(audio)
    detector, at = VoiceDetector(rate), 0
    while at < len(audio):
        size = 2 * random.choice([0, 1, 7, 160, 5000])
        pieces += detector.hear(audio[at : at + size])
        at += size
    assert pieces == whole


def test_silence_is_no_speech() -> None:
    assert not any(frame.speech for frame in VoiceDetector(16_000).hear(bytes(64_000)))


def test_speech_is_heard_when_it_begins_with_the_stream() -> None:
    frames = VoiceDetector(16_000).hear(vowel(800) + silent(800))
    assert [frame.speech for frame in frames[:20]].count(True) >= 18
    assert not any(frame.speech for frame in frames[30:])
