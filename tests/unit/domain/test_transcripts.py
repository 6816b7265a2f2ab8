"""Transcripts: what the log of a room becomes, and what no text in it can do to a file."""

import json
import re
from collections.abc import Sequence

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.domain.rooms import About, Entry, EntryKind
from dragoman.domain.transcripts import JOINER, NOT_REQUESTED, Format, plain, transcript, written
from support.tables import for_each

TIMES = re.compile(r"(\d{2,}):(\d\d):(\d\d)[.,](\d{3}) --> (\d{2,}):(\d\d):(\d\d)[.,](\d{3})")
NASTY = st.text(st.sampled_from(list("ab1 <>&{}\\-:,.\n\r\t\x00\x0b\x1b\u2028\u202eé中")), max_size=30)


def said(
    seq: int, caption: str, text: str, *, lang: str = "en", name: str = "Ann", at: int = 0, lasts: int = 0
) -> Entry:
    about = About(f"s-{name}", name, "speech", 1_000_000 + at, duration_ms=lasts or None)
    return Entry(seq, EntryKind.ORIGINAL, caption, lang, text, msgspec.json.encode(about))


def lost(seq: int, caption: str, why: str, *, at: int = 0) -> Entry:
    about = msgspec.json.encode(About("s-Ann", "Ann", "speech", 1_000_000 + at))
    return Entry(seq, EntryKind.LOST, caption, "en", why, about)


def translated(seq: int, caption: str, text: str, lang: str = "es") -> Entry:
    return Entry(seq, EntryKind.TRANSLATION, caption, lang, text)


def untranslated(seq: int, caption: str, why: str, lang: str = "es") -> Entry:
    return Entry(seq, EntryKind.UNTRANSLATED, caption, lang, why)


def text(entries: Sequence[Entry], format: Format, lang: str = "") -> str:
    return written(transcript(entries, lang), format).decode()


TWO = [
    said(1, "c1", "good morning", lasts=1500),
    translated(2, "c1", "buenos días"),
    said(3, "c2", "bonjour", lang="fr", name="Chloé", at=61_250),
    untranslated(4, "c2", "timeout"),
]


# ---------------------------------------------------------------- which lines


def test_a_transcript_as_said_has_every_original() -> None:
    lines = transcript(TWO)
    assert [(line.text, line.lang, line.untranslated) for line in lines] == [
        ("good morning", "en", ""),
        ("bonjour", "fr", ""),
    ]


def test_a_transcript_in_a_language_has_translations_and_marks_what_has_none() -> None:
    lines = transcript([*TWO, said(5, "c3", "hola", lang="es", at=70_000)], "es")
    assert [(line.text, line.lang, line.untranslated) for line in lines] == [
        ("buenos días", "es", ""),
        ("bonjour", "fr", "timeout"),
        ("hola", "es", ""),
    ]
    assert [line.original for line in lines] == ["good morning", "bonjour", "hola"]


def test_a_caption_that_nobody_wanted_in_a_language_is_marked() -> None:
    (line,) = transcript([said(1, "c1", "good morning"), translated(2, "c1", "guten Morgen", "de")], "es")
    assert (line.text, line.untranslated) == ("good morning", NOT_REQUESTED)


def test_a_later_entry_of_a_language_replaces_an_earlier_one() -> None:
    entries = [said(1, "c1", "yes"), untranslated(2, "c1", "timeout"), translated(3, "c1", "sí")]
    assert [line.text for line in transcript(entries, "es")] == ["sí"]
    again = [*entries, translated(4, "c1", "claro")]
    assert [line.text for line in transcript(again, "es")] == ["claro"]


def test_a_translation_without_its_original_is_left_out() -> None:
    assert transcript([translated(7, "gone", "sí")], "es") == []


def test_a_lost_caption_is_a_line_without_text() -> None:
    (line,) = transcript([lost(1, "c1", "JOB_TIMEOUT")], "es")
    assert (line.text, line.lost, line.untranslated) == ("", "JOB_TIMEOUT", "")


def test_a_lost_caption_that_was_recognised_after_all_has_its_text() -> None:
    assert transcript([lost(1, "c1", "failed"), said(2, "c1", "hello")]) == transcript([said(2, "c1", "hello")])


# ---------------------------------------------------------------- times


def test_times_begin_with_the_first_line_and_use_the_duration_of_the_speech() -> None:
    first, second = transcript(TWO)
    assert (first.start_ms, first.end_ms) == (0, 1500)
    assert second.start_ms == 61_250
    assert second.end_ms - second.start_ms == 1000  # a short text without a duration


def test_a_backfilled_caption_is_where_it_was_said() -> None:
    entries = [said(1, "c2", "second", at=5000), said(2, "c1", "first", at=1000)]
    assert [(line.text, line.start_ms) for line in transcript(entries)] == [("first", 0), ("second", 4000)]


def test_a_caption_of_unknown_time_follows_the_one_before_it() -> None:
    unknown = Entry(2, EntryKind.ORIGINAL, "c2", "en", "when?", b"not JSON")
    entries = [said(1, "c1", "one", at=2000), unknown, said(3, "c3", "three", at=9000)]
    assert [(line.text, line.start_ms) for line in transcript(entries)] == [("one", 0), ("when?", 0), ("three", 7000)]


@for_each([("", 1000), ("x" * 50, 3000), ("x" * 1000, 7000)])
def test_a_text_without_a_duration_is_shown_by_its_length(words: str, ms: int) -> None:
    (line,) = transcript([said(1, "c1", words)])
    assert line.end_ms == ms


# ---------------------------------------------------------------- files


def test_webvtt_names_the_speaker_and_marks_the_language_of_originals() -> None:
    assert text(TWO, Format.VTT, "es") == (
        "WEBVTT\n\n"
        "1\n00:00:00.000 --> 00:00:01.500\n<v Ann>buenos días\n\n"
        "2\n00:01:01.250 --> 00:01:02.250\n<v Chloé>[fr] bonjour\n"
    )


def test_subrip_has_a_comma_before_the_milliseconds() -> None:
    assert text(TWO, Format.SRT) == (
        "1\n00:00:00,000 --> 00:00:01,500\nAnn: good morning\n\n2\n00:01:01,250 --> 00:01:02,250\nChloé: bonjour\n"
    )


def test_plain_text_is_one_line_per_caption() -> None:
    assert text([*TWO, lost(5, "c3", "timeout", at=3_600_000)], Format.TXT, "es") == (
        "[00:00:00] Ann: buenos días\n[00:01:01] Chloé: [fr] bonjour\n[01:00:00] Ann: [lost: timeout]\n"
    )


def test_json_has_every_field() -> None:
    first, second = json.loads(text(TWO, Format.JSON, "es"))
    assert first["text"] == "buenos días"
    assert first["original"] == "good morning"
    assert first["started_at_ms"] == 1_000_000
    assert (second["untranslated"], second["spoken"]) == ("timeout", "fr")


def test_a_room_in_which_nothing_was_said_is_an_empty_file() -> None:
    assert [text([], format) for format in Format] == ["WEBVTT\n", "", "", "[]"]


@example([("--", "")])
@given(st.lists(st.tuples(NASTY, NASTY), min_size=1, max_size=6))
def test_no_text_can_end_a_cue_of_webvtt_or_write_a_tag(spoken: list[tuple[str, str]]) -> None:
    entries = [said(at, f"c{at}", words, name=name, at=at) for at, (name, words) in enumerate(spoken, 1)]
    header, *cues = re.split(r"\n\n(?=\d+\n\d\d:)", text(entries, Format.VTT).rstrip("\n"))
    assert header == "WEBVTT"
    assert len(cues) == len(spoken)
    for cue, (name, words) in zip(cues, spoken, strict=True):
        _, times, payload = [*cue.split("\n", 2), ""][:3]
        assert TIMES.fullmatch(times)
        assert "\n" not in payload
        assert "-->" not in payload
        assert payload.count("<") == payload.count(">") == bool(plain(name))  # the tag of the speaker
        shown = re.sub(r"^<v [^>]*>", "", payload)
        assert shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == plain(words).rstrip("\n")


@given(st.lists(st.tuples(NASTY, NASTY), min_size=1, max_size=6))
def test_no_text_can_end_a_cue_of_subrip_or_write_a_tag(spoken: list[tuple[str, str]]) -> None:
    entries = [said(at, f"c{at}", words, name=name, at=at) for at, (name, words) in enumerate(spoken, 1)]
    file = text(entries, Format.SRT)
    assert file.count("-->") == len(spoken) == len(TIMES.findall(file))
    assert not re.search(rf"[<{{](?!{JOINER})", file)
    assert len(file.split("\n")) == 4 * len(spoken)  # number, times, text, empty


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**7)), max_size=8))
def test_lines_are_in_order_and_none_ends_before_it_begins(times: list[tuple[int, int]]) -> None:
    entries = [said(at, f"c{at}", "x", at=began, lasts=lasts) for at, (began, lasts) in enumerate(times, 1)]
    lines = transcript(entries)
    assert len(lines) == len(times)
    assert [line.start_ms for line in lines] == sorted(line.start_ms for line in lines)
    assert all(0 <= line.start_ms < line.end_ms for line in lines)
    assert not lines or lines[0].start_ms == 0


@given(st.text(max_size=60))
def test_plain_text_is_one_line_without_control_characters(words: str) -> None:
    assert plain(words).splitlines() in ([], [plain(words)])
    assert "\x1b" not in plain(words)
