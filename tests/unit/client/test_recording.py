from pathlib import Path

import pytest

from dragoman.client.recording import Recording, UnsupportedAudio
from dragoman.protocol.audio import duration_ms
from unit.client.fake_server import run_of
from unit.client.test_wav import wav


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_wav_is_sent_with_its_own_rate(tmp_path: Path) -> None:
    samples = bytes(range(256)) * 40
    recording = Recording.open(written(tmp_path, "speech.wav", wav(8000, samples=samples)))
    assert (recording.format, recording.sample_rate, recording.duration_ms) == ("pcm16", 8000, 640)
    chunks = list(recording.chunks())
    assert b"".join(chunks) == samples
    assert [duration_ms("pcm16", chunk, 8000) for chunk in chunks] == [256, 256, 128]


@pytest.mark.parametrize("name", ["speech.opus-packets", "speech.bin", "speech"])
def test_a_run_of_opus_packets_is_known_by_what_it_holds(name: str, tmp_path: Path) -> None:
    recording = Recording.open(written(tmp_path, name, run_of(30)))
    assert (recording.format, recording.duration_ms) == ("opus", 600)
    assert [duration_ms("opus", chunk, 16000) for chunk in recording.chunks()] == [260, 260, 80]


def test_raw_samples_are_known_by_their_name(tmp_path: Path) -> None:
    recording = Recording.open(written(tmp_path, "speech.pcm", bytes(3201)))
    assert (recording.format, recording.sample_rate, recording.duration_ms) == ("pcm16", 16000, 100)
    assert b"".join(recording.chunks()) == bytes(3200)


def test_a_recording_can_be_sent_more_than_once(tmp_path: Path) -> None:
    recording = Recording.open(written(tmp_path, "speech.wav", wav()))
    assert list(recording.chunks()) == list(recording.chunks())


def test_pieces_can_be_as_long_as_an_utterance(tmp_path: Path) -> None:
    recording = Recording("pcm16", 16000, bytes(16000 * 2 * 12))
    assert [len(piece) // 32 for piece in recording.chunks(5000, 700_000)] == [5000, 5000, 2000]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"OggS and so on", "an Ogg file"),
        (b"ID3 and so on", "an MP3 file"),
        (b"fLaC and so on", "a FLAC file"),
        (b"hello there, this is a text", "neither a WAV file nor a run of Opus packets"),
        (wav(channels=2), "it has 2 channels"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_told_how_to_convert(data: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedAudio, match=why) as refusal:
        Recording.open(written(tmp_path, "speech", data))
    assert not data or "ffmpeg" in str(refusal.value)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Recording.open(tmp_path / "nowhere.wav")
