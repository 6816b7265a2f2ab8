from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dragoman.protocol import audio
from dragoman.protocol.audio import AudioFrame, FrameKind
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.errors import BadAudio, ProtocolError
from dragoman.protocol.fields import ABSENT

packets = st.lists(st.binary(min_size=1, max_size=300), max_size=20)


@settings(deadline=None)
@given(packets)
def test_a_run_has_as_many_packets_as_were_put_in(some: list[bytes]) -> None:
    assert audio.opus_packets(audio.opus_run(some)) == len(some)


@settings(deadline=None)
@given(packets, packets)
def test_runs_joined_are_a_longer_run(some: list[bytes], more: list[bytes]) -> None:
    joined = audio.opus_run(some) + audio.opus_run(more)
    assert audio.duration_ms("opus", joined, 16000) == 20 * (len(some) + len(more))


@settings(deadline=None)
@given(packets.filter(bool), st.integers(1, 300))
def test_a_run_cut_within_a_packet_is_refused(some: list[bytes], cut: int) -> None:
    run = audio.opus_run(some)
    with pytest.raises(BadAudio):
        audio.opus_packets(run[: -min(cut, len(some[-1]) + 1)])


@pytest.mark.parametrize("run", [b"\x00", b"\x00\x00", b"\x01\x00", b"\x01\x00\xf8\x00\x00", bytes(640)])
def test_a_packet_of_no_bytes_is_no_packet(run: bytes) -> None:
    with pytest.raises(BadAudio):
        audio.opus_packets(run)


def test_silence_counts_by_packets_not_by_bytes() -> None:
    assert audio.duration_ms("opus", audio.opus_run([audio.SILENCE_PACKET] * 50), 16000) == 1000


def test_pcm_counts_by_samples_and_rate() -> None:
    assert audio.duration_ms("pcm16", bytes(8192), 16000) == 256
    assert audio.duration_ms("pcm16", bytes(96000), 48000) == 1000
    assert audio.duration_ms("pcm16", b"", 16000) == 0


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(BadAudio):
        audio.duration_ms("pcm16", b"\x00", 16000)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(BadAudio, match="mp3"):
        audio.duration_ms("mp3", b"", 16000)


def test_bad_audio_is_an_invalid_message() -> None:
    with pytest.raises(ProtocolError) as refused:
        audio.opus_packets(b"\x01")
    assert refused.value.code is ErrorCode.INVALID_MESSAGE


@settings(deadline=None)
@given(st.binary(max_size=500))
def test_base64_goes_there_and_back(data: bytes) -> None:
    assert audio.decode_base64(audio.encode_base64(data)) == data


def test_no_payload_is_no_audio() -> None:
    assert audio.decode_base64(ABSENT) == b""
    assert audio.decode_base64(audio.NO_AUDIO) == b""


def test_base64_that_was_escaped_by_its_writer_is_read() -> None:
    assert audio.decode_base64(Raw(b'"\\/\\/8\\u003d"')) == b"\xff\xff"


@pytest.mark.parametrize("text", [b'"A"', b'"AA=A"', b'"AAA A"', b'"AA__"', b'"\\n"', '"é"'.encode()])
def test_broken_base64_is_refused(text: bytes) -> None:
    with pytest.raises(BadAudio):
        audio.decode_base64(Raw(text))


u32 = st.integers(0, 2**32 - 1)
session_ids = st.text(max_size=60).filter(lambda text: len(text.encode()) < 256)


@settings(deadline=None)
@given(session_ids, u32, u32, st.booleans(), st.binary(max_size=100))
def test_a_chunk_frame_goes_there_and_back(session: str, seq: int, ts: int, final: bool, data: bytes) -> None:
    frame = AudioFrame(FrameKind.CHUNK, session, seq, ts, final, data)
    assert audio.parse_frame(audio.build_frame(frame)) == frame


@settings(deadline=None)
@given(session_ids, u32, u32)
def test_a_final_frame_goes_there_and_back(session: str, seq: int, ts: int) -> None:
    frame = AudioFrame(FrameKind.FINAL, session, seq, ts, True, b"")
    assert audio.parse_frame(audio.build_frame(frame)) == frame


@settings(deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"\x01" + rest))
def test_any_frame_is_read_or_refused(data: bytes) -> None:
    with suppress(BadAudio):
        audio.parse_frame(data)


@pytest.mark.parametrize("now_ms", [1794767637640, 2**40, 2**40 - 1, 2**40 + 5])
@pytest.mark.parametrize("age_ms", [-2000, 0, 1, 30_000, 2**30])
def test_the_low_half_of_a_time_is_enough_to_know_it(now_ms: int, age_ms: int) -> None:
    then = now_ms - age_ms
    assert audio.full_timestamp(then % 2**32, now_ms) == then


@pytest.mark.parametrize("most", [audio.MAX_CHUNK_PACKETS, audio.MAX_PACKETS])
def test_a_message_with_more_packets_than_the_bound_is_refused_without_counting_them_all(most: int) -> None:
    tiny = b"\x01\x00\xff"
    assert audio.opus_packets(tiny * most, most) == most
    broken_behind_the_bound = tiny * (most + 1) + b"\xff"
    with pytest.raises(BadAudio, match=f"more than {most} Opus packets"):
        audio.opus_packets(broken_behind_the_bound, most)
