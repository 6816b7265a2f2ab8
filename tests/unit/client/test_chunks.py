import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.client.chunks import CHUNK_MS, MAX_CHUNK_BYTES, pcm_bytes, split
from dragoman.protocol.audio import opus_packets, opus_run


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
