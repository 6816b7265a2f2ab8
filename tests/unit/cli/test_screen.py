import json

import pytest
from rich.console import Console

from dragoman.cli.screen import JsonLines, Screen, Show
from dragoman.client import Detected, Ended, Failed, Partial, Rejected, Renewed, Result, Resumed, Throttled
from dragoman.protocol.audio import encode_base64
from unit.client.fake_server import result

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
