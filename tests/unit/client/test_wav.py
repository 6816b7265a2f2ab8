import io
import struct
import wave

import pytest

from dragoman.client.wav import BadWav, WavHead, read_head


def wav(rate: int = 16000, channels: int = 1, width: int = 2, samples: bytes = bytes(100)) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(samples)
    return file.getvalue()


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
