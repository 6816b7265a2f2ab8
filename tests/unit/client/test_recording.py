"""Recordings sent at the pace of speech, and the transcript of the results."""

import io
import struct
import wave
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.client import Ended, Failed, Partial, Result, Throttled, Transcript
from dragoman.client.pacing import RateLimit, Throttle
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
from support.tables import for_each
from unit.client.fake_server import result, run_of


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
def test_unsupported_recording_is_refused_with_a_conversion_command(data: bytes, why: str, tmp_path: Path) -> None:
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


@for_each([8000, 16000, 44100, 192_000])
def test_mono_of_16_bits_is_taken_at_any_rate(rate: int) -> None:
    assert head_of(wav(rate)) == (rate, 44, 100)


def test_other_chunks_are_passed_over_whatever_their_length() -> None:
    data = wav()
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    assert head_of(data[:36] + odd + data[36:]) == (16000, 44 + len(odd), 100)


@for_each([0, 0xFFFFFFFF, 5000])
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


@for_each(
    [
        (wav(channels=2), "2 channels"),
        (wav(width=1), "8 bits"),
        (wav(rate=4000), "4000 Hz"),
        (b"RIFF\0\0\0\0AVI ", "not a WAV"),
        (wav()[:30], "cut short"),
        (wav()[:36], "ends before"),
        (b"RIFF\0\0\0\0WAVEdata\x04\0\0\0abcd", "before its format"),
    ]
)
def test_invalid_recording_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(BadWav, match=why):
        head_of(data)


def test_tone_sentences_are_short_and_audible() -> None:
    spoken = tone_sentences()
    assert len(spoken) == 3
    for one in spoken:
        assert 500 <= one.duration_ms <= 3000
        loudest = max(map(abs, array("h", b"".join(one.chunks()))))
        assert 1000 < loudest < 32767


def test_only_the_rate_delays_audio() -> None:
    throttle = Throttle(per_s=100)
    assert throttle.wait_s(5.0) == 0
    throttle.sent(5.0)
    assert throttle.wait_s(5.0) == pytest.approx(0.01)
    assert throttle.wait_s(5.01) == pytest.approx(0)


def test_pause_stops_audio_for_its_time() -> None:
    throttle = Throttle()
    throttle.press("PAUSE", 1500, 10.0)
    assert throttle.wait_s(10.0) == pytest.approx(1.5)
    assert throttle.wait_s(11.5) == 0


def test_a_pause_without_a_time_lasts_two_seconds() -> None:
    throttle = Throttle()
    throttle.press("PAUSE", None, 10.0)
    assert throttle.wait_s(10.0) == pytest.approx(2.0)


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    throttle = Throttle()
    throttle.press("PAUSE", 2000, 10.0)
    throttle.press("PAUSE", 100, 10.1)
    assert throttle.wait_s(10.5) == pytest.approx(1.5)


@pytest.mark.parametrize("action", ["BUSY", "SLOW_DOWN"])
def test_one_piece_goes_every_half_second_while_the_server_is_busy(action: str) -> None:
    throttle = Throttle()
    throttle.press(action, None, 10.0)
    assert throttle.wait_s(10.0) == 0
    throttle.sent(10.0)
    assert throttle.wait_s(10.1) == pytest.approx(0.4)
    throttle.sent(10.5)
    throttle.press(action, None, 11.0)
    assert throttle.wait_s(11.0) == 0
    throttle.sent(12.9)
    assert throttle.wait_s(12.9) == pytest.approx(0.1)  # it is over at 13
    assert throttle.wait_s(13.0) == 0


def test_unknown_action_changes_nothing() -> None:
    throttle = Throttle()
    throttle.press("DANCE", 5000, 10.0)
    assert throttle.wait_s(10.0) == 0


def test_the_chunk_after_an_empty_final_waits_so_that_it_is_not_taken_for_a_part_of_it() -> None:
    throttle = Throttle(after_final_s=0.1)
    throttle.sent(10.0, empty_final=True)
    assert throttle.wait_s(10.0) == pytest.approx(0.1)
    assert throttle.wait_s(10.1) == 0


def test_rate_limit_allows_a_burst_and_then_the_rate() -> None:
    limit = RateLimit(per_s=10, burst=3)
    for _ in range(3):
        assert limit.wait_s(0.0) == 0
        limit.sent(0.0)
    assert limit.wait_s(0.0) == pytest.approx(0.1)
    assert limit.wait_s(0.11) == 0


def test_rate_limit_allows_no_more_than_a_burst_after_silence() -> None:
    limit = RateLimit(per_s=10, burst=2)
    now, sent = 1000.0, 0
    while limit.wait_s(now) == 0:
        limit.sent(now)
        sent += 1
    assert sent == 2


def said(index: int, text: str = "text_asr", session: str = "s-1", backfilled: bool = False) -> Result:
    return Result(result(session, index, text, backfilled=backfilled))


def partial(index: int, text: str) -> Partial:
    return Partial("s-1", index, text, False, f"job-{index}")


@given(st.permutations(range(12)))
def test_lines_are_in_the_order_of_speech_whatever_order_they_came_in(order: list[int]) -> None:
    transcript = Transcript()
    for index in order:
        transcript.add(said(index))
    assert [line.index for line in transcript.lines] == sorted(order)


def test_a_late_result_is_put_in_its_place_and_marked() -> None:
    transcript = Transcript()
    transcript.add(said(0))
    transcript.add(said(2))
    line = transcript.add(said(1, "late", backfilled=True))
    assert line is transcript.lines[1]
    assert [(line.index, line.backfilled) for line in transcript.lines] == [(0, False), (1, True), (2, False)]


def test_partials_grow_in_place_until_the_result() -> None:
    transcript = Transcript()
    transcript.add(partial(0, "so"))
    transcript.add(partial(0, "so far"))
    assert [(line.text_asr, line.text_translated, line.done) for line in transcript.lines] == [("so far", "", False)]
    transcript.add(said(0, "so far so good"))
    assert transcript.add(partial(0, "too late")) is None
    assert [(line.text_asr, line.text_translated) for line in transcript.lines] == [
        ("so far so good", "[es] so far so good")
    ]
    assert transcript.lines[0].done


def test_words_of_a_preview_disappear_if_nothing_was_said() -> None:
    transcript = Transcript()
    transcript.add(said(0))
    transcript.add(Partial("s-1", 1, "um", False, "", "preview-1"))
    assert [line.text_asr for line in transcript.lines] == ["text_asr", "um"]
    transcript.add(Partial("s-1", 1, "", False, "", "preview-1"))
    transcript.add(Partial("s-1", 0, "", False, "", "preview-0"))
    assert [line.text_asr for line in transcript.lines] == ["text_asr"]
    transcript.add(said(1, "so"))
    assert [line.text_asr for line in transcript.lines] == ["text_asr", "so"]


def test_the_first_result_of_an_index_stands() -> None:
    transcript = Transcript()
    transcript.add(said(0, "first"))
    assert transcript.add(said(0, "second")) is None
    assert [line.text_asr for line in transcript.lines] == ["first"]


def test_a_failure_is_shown_in_its_place_until_a_result_comes_after_all() -> None:
    transcript = Transcript()
    failed = Failed("s-1", 0, "NO_AVAILABLE_NODE", "no node", "job-0")
    assert transcript.add(failed) is transcript.lines[0]
    assert transcript.add(failed) is None
    assert [line.failure for line in transcript.lines] == [failed]
    transcript.add(said(0))
    assert [(line.failure, line.text_translated) for line in transcript.lines] == [(None, "[es] text_asr")]


def test_a_session_in_the_place_of_a_lost_one_goes_on_below_it() -> None:
    transcript = Transcript()
    for event in (
        said(0, "a"),
        said(1, "b"),
        said(0, "c", session="s-2"),
        said(2, "late", backfilled=True),
    ):
        transcript.add(event)
    assert [line.text_asr for line in transcript.lines] == ["a", "b", "late", "c"]


def test_a_skipped_utterance_has_a_line_and_an_empty_one_only_if_something_was_shown_of_it() -> None:
    transcript = Transcript()
    transcript.add(partial(1, "um"))
    for index, state in enumerate(("skipped", "empty", "empty")):
        transcript.add(Ended("s-1", index, state, f"job-{index}"))
    assert [(line.index, line.ended, line.done) for line in transcript.lines] == [
        (0, "skipped", True),
        (1, "empty", True),
    ]
    assert [line.job_id for line in transcript.lines] == ["job-0", "job-1"]


def test_the_end_of_a_line_that_is_settled_changes_nothing() -> None:
    transcript = Transcript()
    transcript.add(said(0))
    assert transcript.add(Ended("s-1", 0, "sent", "job-0")) is None


def test_other_events_change_no_line() -> None:
    assert Transcript().add(Throttled("BUSY", None, "")) is None
