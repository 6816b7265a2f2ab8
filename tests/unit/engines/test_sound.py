import pytest

from dragoman.engines import Sound
from dragoman.protocol.audio import SILENCE_PACKET, duration_ms, opus_run
from dragoman.protocol.errors import BadAudio
from support.engines import beep, needs_wheels

pytestmark = needs_wheels


def test_opus_and_back_is_as_long_and_as_loud() -> None:
    run = beep(600).opus()
    assert 600 <= duration_ms("opus", run, 16_000) <= 660
    heard = Sound.of_wire(run, "opus", 16_000)
    assert heard.rate == 16_000
    assert heard.loudness == pytest.approx(beep().loudness, rel=0.2)


def test_silence_decodes_to_silence() -> None:
    quiet = Sound.of_wire(opus_run([SILENCE_PACKET] * 10), "opus", 16_000)
    assert quiet.duration_ms == pytest.approx(200, abs=10)
    assert quiet.loudness < 1


def test_runs_that_were_joined_decode_as_one() -> None:
    run = beep(200).opus()
    both = Sound.of_wire(run + run, "opus", 16_000)
    assert both.duration_ms == pytest.approx(2 * Sound.of_wire(run, "opus", 16_000).duration_ms, abs=10)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
def test_pcm16_is_taken_at_any_rate_and_resampled(rate: int) -> None:
    sound = Sound.of_wire(beep(500, rate).pcm, "pcm16", rate)
    assert sound.rate == rate
    assert sound.at(16_000).duration_ms == pytest.approx(500, abs=5)
    assert sound.at(16_000).loudness == pytest.approx(sound.loudness, rel=0.1)


@pytest.mark.parametrize(
    ("data", "format"),
    [(b"\x05\x00abc", "opus"), (b"\x08\x00\x01garbage", "opus"), (b"abc", "pcm16"), (b"ab", "mp3")],
)
def test_what_is_no_audio_is_refused(data: bytes, format: str) -> None:
    with pytest.raises(BadAudio):
        Sound.of_wire(data, format, 16_000)


def test_a_file_is_decoded_whatever_its_kind_and_what_is_none_refused() -> None:
    assert Sound.of_file(beep(300).wav()) == beep(300)
    with pytest.raises(BadAudio, match="cannot be decoded"):
        Sound.of_file(b"this is not a sound")


def test_nothing_is_no_packets() -> None:
    assert Sound(b"", 16_000).opus() == b""
    assert Sound(b"", 16_000).loudness == 0
    assert Sound(b"", 22_050).at(16_000) == Sound(b"", 16_000)
