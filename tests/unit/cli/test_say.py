"""Commands that use a server: `say`, `sample`, `status`."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dragoman.cli import output, sample
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.main import run
from dragoman.cli.say import Speech, _standard_input, endpoint
from dragoman.cli.screen import JsonLines, Screen, Show
from dragoman.cli.status import picture
from dragoman.client import Detected, Ended, Failed, Partial, Rejected, Renewed, Result, Resumed, Throttled
from dragoman.client.recording import Recording
from dragoman.protocol.audio import encode_base64
from support.engines import needs_espeak
from unit.client.fake_server import result


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ("ws://host:5010/ws/session", "ws://host:5010/ws/session"),
        ("ws://host:5010", "ws://host:5010/ws/session"),
        ("ws://host:5010/", "ws://host:5010/ws/session"),
        ("http://host:5010", "ws://host:5010/ws/session"),
        ("https://host", "wss://host/ws/session"),
        ("host:5010", "ws://host:5010/ws/session"),
        ("[::1]:5010", "ws://[::1]:5010/ws/session"),
        ("wss://host/behind/a/proxy?token=x", "wss://host/behind/a/proxy?token=x"),
    ],
)
def test_an_address_may_be_given_in_many_ways(given: str, served: str) -> None:
    assert endpoint(given) == served


@pytest.mark.parametrize("given", ["", "ftp://host", "ws://", "ws://host:port", "a b", "ws://host:0", "host\n:1"])
def test_what_is_no_address_is_told(given: str) -> None:
    with pytest.raises(Failure, match="is not an address like ws://") as failure:
        endpoint(given)
    assert failure.value.exit_code == USAGE


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nowhere.wav"], "There is no file nowhere.wav."),
        (["."], ". cannot be read: Is a directory."),
        (["song.mp3"], "song.mp3 is an MP3 file. Convert it first: ffmpeg"),
        (["words.txt"], "words.txt is neither a WAV file nor a run of Opus packets."),
        (["words.txt", "--sample"], "Give a file or --sample, not both."),
        (["--url", "ftp://x"], "--url 'ftp://x' is not an address"),
    ],
)
def test_what_cannot_be_said_is_one_sentence(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("song.mp3").write_bytes(b"ID3 la la la")
    Path("words.txt").write_bytes(b"hello, this is a text")
    assert run(["say", *args]) == USAGE
    assert capsys.readouterr().err.startswith(f"dragoman: {sentence}")


def test_a_terminal_is_not_taken_for_a_microphone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())
    assert run(["say", "-"]) == USAGE
    assert "Standard input is a terminal" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["say", "--url", "127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("dragoman: Not connected to ws://127.0.0.1:1/ws/session: connection refused.")
    assert told.count("\n") == 1


async def test_standard_input_is_read_in_whole_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = os.pipe()
    monkeypatch.setattr("dragoman.cli.say.STDIN_FD", there)
    os.write(here, bytes(range(25)))
    os.close(here)
    pieces = [piece async for piece in _standard_input(10)]
    os.close(there)
    assert pieces == [bytes(range(10)), bytes(range(10, 20)), bytes(range(20, 24))]  # half a sample is left out


async def test_every_part_of_a_speech_has_its_own_pieces() -> None:
    parts = [Recording("pcm16", 16000, bytes(320)), Recording("pcm16", 16000, bytes(640))]
    speech = Speech("pcm16", 16000, parts)
    assert speech.duration_ms == 30
    assert [[len(piece) async for piece in part] for part in speech.pieces(10, 1000)] == [[320], [320, 320]]
    assert Speech("pcm16", 16000).duration_ms is None


@needs_espeak
@pytest.mark.parametrize("language", ["en", "es", "zh"])
def test_sentences_are_spoken_where_somebody_can(language: str) -> None:
    spoken = sample.spoken(language)
    assert len(spoken) == 3
    for sentence in spoken:
        assert sentence.format == "pcm16"
        assert 500 < sentence.duration_ms < 10_000
        assert any(b"".join(sentence.chunks()))


def test_elsewhere_there_are_tones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sample.spoken("tlh") == ()
    monkeypatch.setenv("PATH", "/nowhere")
    assert sample.spoken("en") == ()
    assert [tone.sample_rate for tone in sample.sentences("en")] == [16_000] * 3


SKIPPED = Ended("s-1", 3, "skipped", "job-3")
FAILED = Failed("s-1", 1, "JOB_TIMEOUT", "the job took too long", "job-1")


def said(index: int, text: str = "hello", *, late: bool = False) -> Result:
    return Result(result("s-1", index, text, backfilled=late, tts_audio=encode_base64(b"sound")))


def partial(index: int, text: str) -> Partial:
    return Partial("s-1", index, text, False, f"job-{index}")


# ---------------------------------------------------------------- lines


def test_each_line_is_printed_when_it_is_settled(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show()
    for event in (partial(0, "hel"), said(0), said(2), FAILED, said(1, "late", late=True), SKIPPED):
        show.event(event)
    assert capsys.readouterr().out.splitlines() == [
        "   0  hello  →  [es] hello  [job-0]",
        "   2  hello  →  [es] hello  [job-2]",
        "   1  failed: the job took too long (JOB_TIMEOUT)  [job-1]",
        "   1  late  →  [es] late  (back-filled)  [job-1]",
        "   3  skipped: its result did not come in time after a later one  [job-3]",
    ]
    assert (show.translated, show.failed) == (3, 1)


def test_what_comes_from_afar_does_not_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    Show().event(said(0, "a\x1b[2Jb\nc\u202e"))
    assert capsys.readouterr().out == "   0  a\\u001b[2Jb c\\u202e  →  [es] a\\u001b[2Jb c\\u202e  [job-0]\n"


@pytest.mark.parametrize(
    ("event", "note"),
    [
        (Throttled("BUSY", None, "all nodes are busy"), "the server asks us to wait: all nodes are busy"),
        (Throttled("PAUSE", 5, ""), "the server asks us to wait: PAUSE"),
        (Resumed("s-1", 3, 0), "the connection was lost and is back; 3 chunks were sent again"),
        (Resumed("s-1", 3, 2), "the connection was lost and is back; 3 chunks were sent again; 2 chunks are lost"),
        (Renewed("s-2", "s-1"), "the session was lost; a new one goes on, and what was not answered is gone"),
        (Rejected("INVALID_MESSAGE", "what?"), "the server says: what? (INVALID_MESSAGE)"),
        (Detected("en", 0.9), "the language is en"),
    ],
)
def test_what_happens_beside_is_noted(event: Throttled, note: str, capsys: pytest.CaptureFixture[str]) -> None:
    Show().event(event)
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
def test_it_is_summed_up(events: list[Result], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    show = Show()
    for event in events:
        show.event(event)
    capsys.readouterr()
    show.sum_up()
    assert capsys.readouterr().err == f"{sentence}\n"


# ---------------------------------------------------------------- JSON


def test_every_event_is_one_line_of_json_without_sound(capsys: pytest.CaptureFixture[str]) -> None:
    show = JsonLines()
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


def screen(height: int, total_ms: int | None = 4000) -> tuple[Screen, Console]:
    """One that can be looked at; its own console writes to standard output."""
    shown = Screen(total_ms)
    shown._console.size = (80, height)
    return shown, Console(width=80, height=height)


def looks(shown: Screen, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(shown._picture())
    return [line.rstrip() for line in captured.get().splitlines()]


def test_partials_grow_in_place_and_late_results_are_put_where_they_belong() -> None:
    shown, console = screen(height=20)
    shown.spoke(1500)
    for event in (said(0), said(2), partial(3, "so f"), said(1, "late", late=True)):
        shown.event(event)
    lines = looks(shown, console)
    assert lines[:4] == [
        "   0  hello  →  [es] hello  [job-0]",
        "   1  late  →  [es] late  (back-filled)  [job-1]",
        "   2  hello  →  [es] hello  [job-2]",
        "   3  so f …  [job-3]",
    ]
    assert lines[4].endswith("1.5 of 4.0 s speaking")
    shown.said_all()
    assert looks(shown, console)[4].endswith("waiting for the last answers")


def test_how_long_standard_input_will_be_nobody_knows() -> None:
    shown, console = screen(height=20, total_ms=None)
    shown.spoke(1500)
    assert looks(shown, console)[0].endswith(" 1.5 s speaking")


def test_what_does_not_fit_is_printed_for_good_and_what_belongs_there_is_printed_late(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown, console = screen(height=7)
    for index in (0, 2, 3, 4, 5, 6):
        shown.event(said(index))
    assert [line[:4] for line in looks(shown, console)[:3]] == ["   4", "   5", "   6"]
    assert [line[:4] for line in capsys.readouterr().out.splitlines()] == ["   0", "   2", "   3"]
    shown.event(said(1, "late", late=True))
    assert capsys.readouterr().out == "   1  late  →  [es] late  (back-filled)  [job-1]\n"
    assert len(looks(shown, console)) == 4


def test_at_the_end_everything_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
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
        console.print(picture(told))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_what_is_the_same_everywhere_is_said_once_above() -> None:
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


@pytest.mark.parametrize(
    ("tts", "ready", "shown"),
    [
        (["en", "es"], ["asr", "nmt", "tts"], "en → es fr (spoken: es)"),
        (["es", "fr"], ["asr", "nmt", "tts"], "en → es fr asr"),
        (["es", "fr"], None, "en → es fr not told"),
        ([], ["asr", "nmt", "tts"], "en → es fr (text only)"),
        (["es", "fr"], ["asr", "nmt"], "en → es fr (text only)"),
    ],
)
def test_what_a_node_cannot_speak_is_told_with_its_languages(
    tts: list[str], ready: list[str] | None, shown: str
) -> None:
    languages = {"asr": ["en"], "semantic": ["es", "fr"], "tts": tts}
    shown_lines = lines(cluster(instance("a"), nodes=[node("n", "a", languages=languages, ready=ready)]), width=120)
    assert shown in " ".join(" ".join(shown_lines).split())


@pytest.mark.parametrize(
    ("facts", "word"),
    [({"ready": None}, "not told"), ({"ready": []}, "nothing"), ({"draining": True}, "n (draining)")],
)
def test_the_state_of_a_node_is_told(facts: dict[str, Any], word: str) -> None:
    assert any(word in line for line in lines(cluster(instance("a"), nodes=[node("n", "a", **facts)])))


def test_the_state_of_an_instance_is_told() -> None:
    shown = lines(cluster(instance("a"), instance("b", draining=True), instance("c", alive=False)))
    states = {line.split()[1]: line.split()[2] for line in shown if line[:1].isdigit()}
    assert states == {"a": "alive", "b": "draining", "c": "dead"}


def test_dead_letters_are_told_also_of_instances_that_are_gone() -> None:
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


@pytest.mark.parametrize("told", [{}, {"instances": []}, cluster({"instance": "a"}), cluster(nodes=[{}])])
def test_what_is_not_a_cluster_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(Failure, match="not Dragoman"):
        picture(told)


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
