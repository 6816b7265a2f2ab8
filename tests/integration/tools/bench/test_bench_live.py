"""`dragoman bench live`, in short runs."""

import json
from pathlib import Path

import pytest

from dragoman.cli.main import run
from dragoman.tools.bench.live_load import CHUNK_BYTES, CHUNK_S, speech, utterances
from support.engines import needs_espeak

SILENCE_MS = 500


@needs_espeak
def test_live_bench_writes_the_promised_figures_on_one_instance_and_across_two(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run(["bench", "live", "--quick", "--speakers", "2", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert list(found) == ["commit", "machine", "settings", "figures", "ratios"]
    figures = found["figures"]
    for where in ("same_2", "across_2"):
        assert figures[f"{where}_utterances"] >= 2
        assert 0 < figures[f"{where}_added_p50_ms"] <= figures[f"{where}_added_p99_ms"]
        assert figures[f"{where}_first_partial_p50_ms"] > figures[f"{where}_first_partial_added_p50_ms"] > 0
        assert figures[f"{where}_node_p50_ms"] > 148  # subtracted, and stated; a timer may be a millisecond early
        assert found["ratios"][f"{where}_added_vs_ping"] > 0
    assert figures["same_2_node_cpu_ms_per_audio_second"] == 0  # one instance has the sessions and the nodes
    assert figures["across_2_node_cpu_ms_per_audio_second"] > 0
    for headline in ("added_p50_ms", "first_partial_p50_ms", "cpu_ms_per_audio_second"):
        assert figures[headline] > 0


@needs_espeak
def test_detector_finds_each_sentence_within_its_own_frames_and_the_next_chunk() -> None:
    audio, sentences = speech()
    assert len(audio) % CHUNK_BYTES == 0
    found = utterances(audio, sentences, 3, SILENCE_MS)
    assert len(found) == 3 * len(sentences) - 1  # no silence ends the last
    for one in found:
        assert one.began_at < one.found_at < one.ended_at < one.cut_at
        assert one.cut_at - one.ended_at - SILENCE_MS / 1000 < 0.1 + CHUNK_S


@pytest.mark.parametrize("speakers", ["0", "a", "1,5000"])
def test_live_bench_refuses_numbers_of_speakers_out_of_range(speakers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "live", "--speakers", speakers]) == 2
    assert "--speakers takes numbers from 1 to 1000" in capsys.readouterr().err
