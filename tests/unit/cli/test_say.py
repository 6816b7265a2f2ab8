"""Commands that use a server: `say` and `status`."""

import io
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dragoman.cli import output
from dragoman.cli.main import run
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.say import Speech, _speech_of_stdin, _stdin_pieces, open_speech, spoken_sample
from dragoman.cli.say_output import JsonOutput, LineOutput, ScreenOutput
from dragoman.cli.status import tables
from dragoman.client import Detected, Ended, Failed, Partial, Rejected, Renewed, Result, Resumed, Throttled
from dragoman.client.recording import Recording
from dragoman.protocol.audio import encode_base64
from support.engines import needs_espeak
from support.tables import for_each
from unit.client.fake_server import result


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nowhere.wav"], "There is no file nowhere.wav."),
        (["."], ". cannot be read: Is a directory."),
        (["song.mp3"], "song.mp3 is an MP3 file. Convert it first: ffmpeg"),
        (["words.txt"], "words.txt is neither a WAV file nor a run of Opus packets."),
        (["words.txt", "--sample"], "Give either a file or --sample."),
        (["--url", "ftp://x"], "--url 'ftp://x' is not an address"),
    ],
)
def test_wrong_input_is_reported_in_one_sentence(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("song.mp3").write_bytes(b"ID3 la la la")
    Path("words.txt").write_bytes(b"hello, this is a text")
    assert run(["say", *args]) == USAGE
    assert capsys.readouterr().err.startswith(f"dragoman: {sentence}")


def test_say_refuses_to_read_audio_from_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())
    assert run(["say", "-"]) == USAGE
    assert "Standard input is a terminal" in capsys.readouterr().err


def test_say_without_a_server_fails_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["say", "--url", "127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("dragoman: Not connected to ws://127.0.0.1:1/ws/session: connection refused.")
    assert err.count("\n") == 1


@contextmanager
def stdin_of(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    reader, writer = os.pipe()
    monkeypatch.setattr("dragoman.cli.terminal_io.STDIN_FD", reader)
    os.write(writer, data)
    os.close(writer)
    yield
    os.close(reader)


def wav_of(samples: bytes, rate: int, channels: int = 1) -> bytes:
    head = b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<IHHIIHH", 16, 1, channels, rate, 2 * rate, 2, 16)
    return head + b"data\xff\xff\xff\xff" + samples


async def test_standard_input_is_split_into_pieces_of_whole_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr("dragoman.cli.terminal_io.STDIN_FD", reader)
    os.write(writer, bytes(range(25)))
    os.close(writer)
    pieces = [piece async for piece in _stdin_pieces(b"", 10)]
    os.close(reader)
    assert pieces == [
        bytes(range(10)),
        bytes(range(10, 20)),
        bytes(range(20, 24)),
    ]  # without the half sample at the end


@pytest.mark.parametrize(
    ("given", "rate", "begun"),
    [
        (b"\x01\x02\x03\x04\x05\x06", 16_000, b"\x01\x02\x03\x04"),
        (wav_of(b"\x07\x08", 8000), 8000, b""),
        (b"\x01", 16_000, b"\x01"),
        (b"", 16_000, b""),
    ],
)
def test_standard_input_may_be_a_wav_whose_head_says_the_rate(
    given: bytes, rate: int, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stdin_of(given, monkeypatch):
        speech = _speech_of_stdin()
        assert (speech.format, speech.sample_rate, speech.begun) == ("pcm16", rate, begun or speech.begun)


def test_wav_that_cannot_be_sent_is_refused_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with stdin_of(wav_of(b"", 16_000, channels=2), monkeypatch), pytest.raises(Failure, match="2 channels"):
        _speech_of_stdin()


async def test_speech_yields_the_pieces_of_each_part() -> None:
    parts = [Recording("pcm16", 16000, bytes(320)), Recording("pcm16", 16000, bytes(640))]
    speech = Speech("pcm16", 16000, parts)
    assert speech.duration_ms == 30
    assert [[len(piece) async for piece in part] for part in speech.pieces(10, 1000)] == [[320], [320, 320]]
    assert Speech("pcm16", 16000).duration_ms is None


@needs_espeak
@pytest.mark.parametrize("language", ["en", "es", "zh"])
def test_sample_is_spoken_when_espeak_is_installed(language: str) -> None:
    spoken = spoken_sample(language)
    assert len(spoken) == 3
    for sentence in spoken:
        assert sentence.format == "pcm16"
        assert 500 < sentence.duration_ms < 10_000
        assert any(b"".join(sentence.chunks()))


def test_sample_is_tones_when_it_cannot_be_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spoken_sample("tlh") == ()
    monkeypatch.setenv("PATH", "/nowhere")
    assert spoken_sample("en") == ()
    speech = open_speech(None, "en")
    assert ([tone.sample_rate for tone in speech.parts], speech.tones) == ([16_000] * 3, True)


SKIPPED = Ended("s-1", 3, "skipped", "job-3")
FAILED = Failed("s-1", 1, "JOB_TIMEOUT", "the job took too long", "job-1")


def said(index: int, text: str = "hello", *, late: bool = False) -> Result:
    return Result(result("s-1", index, text, backfilled=late, tts_audio=encode_base64(b"sound")))


def partial(index: int, text: str) -> Partial:
    return Partial("s-1", index, text, False, f"job-{index}")


# ---------------------------------------------------------------- lines


def test_line_is_printed_when_it_is_final(capsys: pytest.CaptureFixture[str]) -> None:
    show = LineOutput()
    for event in (partial(0, "hel"), said(0), said(2), FAILED, said(1, "late", late=True), SKIPPED):
        show.event(event)
    assert capsys.readouterr().out.splitlines() == [
        "   0  hello  →  [es] hello  [job-0]",
        "   2  hello  →  [es] hello  [job-2]",
        "   1  failed: the job took too long (JOB_TIMEOUT)  [job-1]",
        "   1  late  →  [es] late  (backfilled)  [job-1]",
        "   3  skipped: no result in time after a later utterance  [job-3]",
    ]
    assert (show.translated, show.failed) == (3, 1)


def test_control_characters_of_a_result_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    LineOutput().event(said(0, "a\x1b[2Jb\nc\u202e"))
    assert capsys.readouterr().out == "   0  a\\u001b[2Jb c\\u202e  →  [es] a\\u001b[2Jb c\\u202e  [job-0]\n"


@pytest.mark.parametrize(
    ("event", "note"),
    [
        (Throttled("BUSY", None, "all nodes are busy"), "paused by the server: all nodes are busy"),
        (Throttled("PAUSE", 5, ""), "paused by the server: PAUSE"),
        (Resumed("s-1", 3, 0), "reconnected; 3 chunks were sent again"),
        (Resumed("s-1", 3, 2), "reconnected; 3 chunks were sent again; 2 chunks were lost"),
        (
            Renewed("s-2", "s-1"),
            "the session was lost and a new one was opened; results that were outstanding are lost",
        ),
        (Rejected("INVALID_MESSAGE", "what?"), "the server answers: what? (INVALID_MESSAGE)"),
        (Detected("en", 0.9), "detected language: en"),
    ],
)
def test_other_events_are_printed_as_notes(event: Throttled, note: str, capsys: pytest.CaptureFixture[str]) -> None:
    LineOutput().event(event)
    assert capsys.readouterr() == ("", f"dragoman: {note}\n")


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([], "Nothing was recognised."),
        ([said(0)], "1 utterance translated."),
        ([said(0), said(1)], "2 utterances translated."),
        ([said(0), FAILED], "1 utterance translated, 1 failed."),
        ([said(0), SKIPPED], "1 utterance translated, 1 failed."),
        ([FAILED], "0 utterances translated, 1 failed."),
        ([said(0), Rejected("X", "no")], "1 utterance translated, 1 failed."),
        ([said(0), Renewed("s-2", "s-1")], "1 utterance translated, 1 failed."),
    ],
)
def test_summary_counts_translated_and_failed_utterances(
    events: list[Result], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show = LineOutput()
    for event in events:
        show.event(event)
    capsys.readouterr()
    show.sum_up()
    assert capsys.readouterr().err == f"{sentence}\n"


# ---------------------------------------------------------------- JSON


def test_event_is_one_line_of_json_without_audio(capsys: pytest.CaptureFixture[str]) -> None:
    show = JsonOutput()
    for event in (partial(0, "hé"), said(0), FAILED, Throttled("BUSY", None, "")):
        show.event(event)
    show.sum_up()
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["event"] for line in lines] == ["partial", "result", "failed", "throttled", "end"]
    assert (lines[0]["text"], lines[1]["text_translated"], lines[1]["tts_bytes"]) == ("hé", "[es] hello", 5)
    assert lines[-1] == {"event": "end", "translated": 1, "failed": 1}
    assert err == ""


# ---------------------------------------------------------------- a terminal


def screen(height: int, total_ms: int | None = 4000) -> tuple[ScreenOutput, Console]:
    """A screen and a console to render it; its own console writes to standard output."""
    shown = ScreenOutput(total_ms)
    shown._console.size = (80, height)
    return shown, Console(width=80, height=height)


def rendered(shown: ScreenOutput, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(shown._live_part())
    return [line.rstrip() for line in captured.get().splitlines()]


def test_partial_grows_in_place_and_late_result_is_inserted() -> None:
    shown, console = screen(height=20)
    shown.sent(1500)
    for event in (said(0), said(2), partial(3, "so f"), said(1, "late", late=True)):
        shown.event(event)
    lines = rendered(shown, console)
    assert lines[:4] == [
        "   0  hello  →  [es] hello  [job-0]",
        "   1  late  →  [es] late  (backfilled)  [job-1]",
        "   2  hello  →  [es] hello  [job-2]",
        "   3  so f …  [job-3]",
    ]
    assert lines[4].endswith("1.5 of 4.0 s sending")
    shown.sent_all()
    assert rendered(shown, console)[4].endswith("waiting for the last results")


def test_progress_of_standard_input_shows_no_total() -> None:
    shown, console = screen(height=20, total_ms=None)
    shown.sent(1500)
    assert rendered(shown, console)[0].endswith(" 1.5 s sending")


def test_lines_that_do_not_fit_are_printed_for_good(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown, console = screen(height=7)
    for index in (0, 2, 3, 4, 5, 6):
        shown.event(said(index))
    assert [line[:4] for line in rendered(shown, console)[:3]] == ["   4", "   5", "   6"]
    assert [line[:4] for line in capsys.readouterr().out.splitlines()] == ["   0", "   2", "   3"]
    shown.event(said(1, "late", late=True))
    assert capsys.readouterr().out == "   1  late  →  [es] late  (backfilled)  [job-1]\n"
    assert len(rendered(shown, console)) == 4


def test_all_lines_are_printed_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    shown, _ = screen(height=7)
    with shown:
        for index in range(5):
            shown.event(said(index))
        shown.event(Resumed("s-1", 0, 0))
    printed = [line for line in capsys.readouterr().out.splitlines() if "→" in line]
    assert [line.strip()[0] for line in printed[-5:]] == ["0", "1", "2", "3", "4"]


def instance(name: str, alive: bool = True, **facts: Any) -> dict[str, Any]:
    told = {"instance": name, "alive": alive, "durability": "process", "version": "0.1.0", "inbox": {"waiting": 0}}
    return told | facts


def node(name: str, at: str, **facts: Any) -> dict[str, Any]:
    told = {"node_id": name, "instance": at, "slots": 4, "reserved": 1, "draining": False, "ready": ["asr", "tts"]}
    return told | {"languages": {"asr": ["en", "es"], "semantic": ["en", "es"], "tts": ["en", "es"]}} | facts


def cluster(*instances: dict[str, Any], nodes: list[dict[str, Any]] | None = None, **facts: Any) -> dict[str, Any]:
    shown = nodes or []
    told = {
        "reported_by": "a",
        "instances": list(instances),
        "nodes": shown,
        "node_count": len(shown),
        "dead_letters": {},
    }
    return told | facts


def lines(told: dict[str, Any], width: int = 80) -> list[str]:
    console = output.console(pipe_width=width)
    with console.capture() as captured:
        console.print(tables(told))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_status_prints_common_values_once() -> None:
    told = cluster(instance("a"), instance("b"), instance("c", alive=False), nodes=[node("n", "b")])
    assert lines(told)[0] == "Dragoman 0.1.0: 2 instances, 1 node, durability process"


def test_differences_between_instances_are_named() -> None:
    told = cluster(instance("a"), instance("b", durability="fsync", version="0.2.0"))
    assert lines(told)[0] == "Dragoman 0.1.0, 0.2.0: 2 instances, 0 nodes, durability fsync, process"


def test_a_usual_name_fits_80_columns_and_a_longer_one_goes_on_in_the_next_line() -> None:
    usual, longer = "dragoman-7f9c8d6b5-x2x9k-1-a1b2c3", "dragoman-production-eu-central-1b-7f9c8d6b5-x2x9k-1-a1b2c3"
    shown = lines(cluster(instance(usual, sessions=12345, jobs=1234), instance(longer)))
    assert any(f" {usual} " in line for line in shown)
    assert max(map(len, shown)) <= 80
    assert longer in "".join(line.split("alive")[0].strip().removeprefix("2").strip() for line in shown[-5:])


def test_nodes_point_to_the_number_of_their_instance() -> None:
    shown = lines(cluster(instance("a"), instance("b"), nodes=[node("n1", "b"), node("n2", "gone")]))
    rows = {line.split()[0]: line.split() for line in shown if line.startswith("n")}
    assert rows["n1"] == ["n1", "#2", "1/4", "en", "es", "asr,", "tts"]
    assert rows["n2"][1] == "gone"


def test_many_languages_are_counted() -> None:
    codes = [f"l{number}" for number in range(100)]
    shown = lines(
        cluster(instance("a"), nodes=[node("n", "a", languages={"asr": codes, "semantic": ["en"], "tts": ["en"]})])
    )
    assert "l0 l1 l2 l3 l4 l5 l6 l7 +92 → en" in " ".join(" ".join(shown).split())


@for_each(
    [
        (["en", "es"], ["asr", "nmt", "tts"], "en → es fr (spoken: es)"),
        (["es", "fr"], ["asr", "nmt", "tts"], "en → es fr asr"),
        (["es", "fr"], None, "en → es fr unknown"),
        ([], ["asr", "nmt", "tts"], "en → es fr (text only)"),
        (["es", "fr"], ["asr", "nmt"], "en → es fr (text only)"),
    ]
)
def test_status_shows_languages_a_node_cannot_synthesise(tts: list[str], ready: list[str] | None, shown: str) -> None:
    languages = {"asr": ["en"], "semantic": ["es", "fr"], "tts": tts}
    shown_lines = lines(cluster(instance("a"), nodes=[node("n", "a", languages=languages, ready=ready)]), width=120)
    assert shown in " ".join(" ".join(shown_lines).split())


@for_each(
    [
        (["en"], [["en", "es"], ["auto", "es"]], "en → es, text asr"),
        (["en"], [["es", "en"]], "en → es; text es→en asr"),
        ([], [["en", "es"], ["es", "en"]], "0/4 text en→es es→en asr"),
    ]
)
def test_status_shows_the_text_pairs_of_a_node(asr: list[str], pairs: list[list[str]], shown: str) -> None:
    languages = {"asr": asr, "semantic": ["es"] if asr else [], "tts": ["es"], "text": pairs}
    nodes = [node("n", "a", languages=languages, ready=["asr", "nmt", "tts"], reserved=0)]
    assert shown in " ".join(" ".join(lines(cluster(instance("a"), nodes=nodes), width=120)).split())


@for_each([({"ready": None}, "unknown"), ({"ready": []}, "nothing"), ({"draining": True}, "n (draining)")])
def test_status_shows_the_state_of_a_node(facts: dict[str, Any], word: str) -> None:
    assert any(word in line for line in lines(cluster(instance("a"), nodes=[node("n", "a", **facts)])))


def test_status_shows_the_state_of_an_instance() -> None:
    shown = lines(cluster(instance("a"), instance("b", draining=True), instance("c", alive=False)))
    states = {line.split()[1]: line.split()[2] for line in shown if line[:1].isdigit()}
    assert states == {"a": "alive", "b": "draining", "c": "dead"}


def test_status_shows_dead_letters_of_gone_instances() -> None:
    shown = lines(cluster(instance("a"), dead_letters={"a": 1, "gone": 2}))
    assert shown[-1] == "3 dead letters: see dragoman dlq list"
    assert [line.split()[-1] for line in shown if line.startswith("1 ")] == ["1"]


def test_a_large_fleet_is_cut_and_counted() -> None:
    nodes = [node(f"n{number:03}", "a") for number in range(60)]
    shown = lines(cluster(instance("a"), nodes=nodes, node_count=1000))
    assert "… and 960 more nodes; see --json" in shown
    assert sum(line.startswith("n0") for line in shown) == 40


def test_names_are_not_markup() -> None:
    shown = "\n".join(lines(cluster(instance("[red]a[/red]"), nodes=[node("[/]n", "[red]a[/red]")])))
    assert "[red]a[/red]" in shown
    assert "[/]n" in shown


@for_each([{}, {"instances": []}, cluster({"instance": "a"}), cluster(nodes=[{}])])
def test_status_refuses_an_answer_that_is_no_cluster(told: dict[str, Any]) -> None:
    with pytest.raises(Failure, match="not Dragoman"):
        tables(told)


def test_a_node_that_cools_down_or_fails_is_shown_with_the_time_it_is_out() -> None:
    nodes = [
        node("cool", "a", cooling_until_ms={"nmt@1": 41_500, "tts@1": 900}),
        node("paused", "a", failing={"paused_until_ms": 5_000, "pauses": 1}),
        node("probed", "a", failing={"paused_until_ms": 900, "pauses": 1}),
    ]
    shown = " ".join(" ".join(lines(cluster(instance("a"), nodes=nodes, now_ms=1_000), width=160)).split())
    assert "cool (nmt@1 cooling down, 41 s)" in shown
    assert "tts@1" not in shown
    assert "paused (failing, paused 4 s)" in shown
    assert "probed (failing, one job at a time)" in shown
