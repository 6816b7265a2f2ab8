import io
import struct
import wave
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.client.recording import (
    CHUNK_MS,
    MAX_CHUNK_BYTES,
    BadWav,
    Recording,
    UnsupportedAudio,
    WavHead,
    pcm_bytes,
    read_head,
    split,
    tone_sentences,
)
from dragoman.protocol.audio import duration_ms, opus_packets, opus_run
from unit.client.fake_server import run_of


def wav(rate: int = 16000, channels: int = 1, width: int = 2, samples: bytes = bytes(100)) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(samples)
    return file.getvalue()


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


@given(st.binary(max_size=5000), st.integers(8000, 48_000), st.integers(1, 300))
def test_pcm_is_split_into_whole_samples_and_nothing_is_lost(data: bytes, rate: int, piece_ms: int) -> None:
    data = data[: len(data) & ~1]
    pieces = list(split("pcm16", data, rate, piece_ms))
    assert b"".join(pieces) == data
    assert all(len(piece) % 2 == 0 for piece in pieces)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=60), st.integers(2, 1000), st.integers(1, 400))
def test_a_run_is_split_between_packets_and_nothing_is_lost(
    packets: list[bytes], max_bytes: int, piece_ms: int
) -> None:
    run = opus_run(packets)
    pieces = list(split("opus", run, 16000, piece_ms, max_bytes))
    assert b"".join(pieces) == run
    for piece in pieces:
        assert opus_packets(piece) <= max(1, round(piece_ms / 20))
        assert len(piece) <= max_bytes or opus_packets(piece) == 1


def test_a_chunk_is_256_ms_long() -> None:
    assert pcm_bytes(16000, CHUNK_MS) == 8192
    run = opus_run([b"abc"] * 26)
    assert [opus_packets(piece) for piece in split("opus", run, 16000, CHUNK_MS)] == [13, 13]


@pytest.mark.parametrize("format", ["pcm16", "opus"])
def test_no_chunk_makes_a_message_of_more_than_64_kb(format: str) -> None:
    audio = bytes(200_000) if format == "pcm16" else opus_run([bytes(100)] * 2000)
    sizes = [len(piece) for piece in split(format, audio, 16000)]
    assert sum(sizes) == len(audio)
    assert max(sizes) <= MAX_CHUNK_BYTES
    assert MAX_CHUNK_BYTES * 4 / 3 <= 64_000


def test_nothing_has_no_pieces() -> None:
    assert list(split("opus", b"", 16000)) == []
    assert list(split("pcm16", b"", 16000)) == []


def head_of(data: bytes) -> WavHead:
    return read_head(io.BytesIO(data), len(data))


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 192_000])
def test_mono_of_16_bits_is_taken_at_any_rate(rate: int) -> None:
    assert head_of(wav(rate)) == (rate, 44, 100)


def test_other_chunks_are_passed_over_whatever_their_length() -> None:
    data = wav()
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    assert head_of(data[:36] + odd + data[36:]) == (16000, 44 + len(odd), 100)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 5000])
def test_a_size_that_was_not_known_is_the_rest_of_the_file(size: int) -> None:
    data = bytearray(wav())
    data[40:44] = struct.pack("<I", size)
    assert head_of(bytes(data)).data_bytes == 100


def test_half_a_sample_at_the_end_is_left_out() -> None:
    data = bytearray(wav() + b"\0")
    data[40:44] = struct.pack("<I", 101)
    assert head_of(bytes(data)).data_bytes == 100


def extensible(subformat: int) -> bytes:
    format = struct.pack("<HHIIHH", 0xFFFE, 1, 48000, 96000, 2, 16) + struct.pack("<HHIH", 22, 16, 4, subformat)
    format += b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    body = b"WAVEfmt " + struct.pack("<I", len(format)) + format + b"data" + struct.pack("<I", 4) + bytes(4)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_the_long_form_of_the_format_is_understood() -> None:
    assert head_of(extensible(1)).sample_rate == 48000
    with pytest.raises(BadWav, match="not 16-bit"):
        head_of(extensible(3))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (wav(channels=2), "2 channels"),
        (wav(width=1), "8 bits"),
        (wav(rate=4000), "4000 Hz"),
        (b"RIFF\0\0\0\0AVI ", "not a WAV"),
        (wav()[:30], "cut short"),
        (wav()[:36], "ends before"),
        (b"RIFF\0\0\0\0WAVEdata\x04\0\0\0abcd", "before its format"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(BadWav, match=why):
        head_of(data)


def test_tone_sentences_are_short_and_audible() -> None:
    spoken = tone_sentences()
    assert len(spoken) == 3
    for one in spoken:
        assert 500 <= one.duration_ms <= 3000
        loudest = max(map(abs, array("h", b"".join(one.chunks()))))
        assert 1000 < loudest < 32767
