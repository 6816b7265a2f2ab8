"""The transcript of a room, made from the entries of its log: as lines, and as a file in one of four formats.

A transcript is in one language, or as it was said. A caption that has no translation into that language is shown as it
was said, marked with its language. If a language of a caption has several entries, the last one counts. Lines are in
the order in which the speaking began; time 0 is the beginning of the first one.
"""

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from dragoman.domain.rooms import Entry, EntryKind, about_of

NOT_REQUESTED = "not_requested"  # nobody in the room heard that language
MIN_MS, MAX_MS, MS_PER_CHARACTER = 1000, 7000, 60  # how long a line is shown whose duration is not known
JOINER = "\u2060"  # invisible; SubRip has no escapes, and what is not adjacent has no meaning in it


class Format(StrEnum):
    VTT = "vtt"
    SRT = "srt"
    TXT = "txt"
    JSON = "json"


CONTENT_TYPES = {
    Format.VTT: "text/vtt",
    Format.SRT: "application/x-subrip",
    Format.TXT: "text/plain",
    Format.JSON: "application/json",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One caption. `lang` is the language of `text`, `spoken` the one that was spoken.

    `untranslated`: why `text` is not in the language of the transcript. `lost`: why there is no text.
    """

    caption_id: str
    speaker: str
    start_ms: int
    end_ms: int
    lang: str
    text: str
    spoken: str
    original: str
    started_at_ms: int
    source: str
    untranslated: str = ""
    lost: str = ""


def transcript(entries: Iterable[Entry], lang: str = "") -> list[Line]:
    """The lines in one language; with `lang` empty, as they were said. Translations whose original the log no longer
    has are left out."""
    said: dict[str, Entry] = {}
    translations: dict[str, Entry] = {}
    for entry in entries:
        if entry.is_original:
            if entry.caption not in said or said[entry.caption].kind is EntryKind.LOST:  # it was recognised after all
                said[entry.caption] = entry
        elif entry.lang == lang:
            translations[entry.caption] = entry
    return _timed([_line(entry, translations.get(caption), lang) for caption, entry in said.items()])


def _line(said: Entry, translation: Entry | None, lang: str) -> Line:
    about, lost = about_of(said), said.kind is EntryKind.LOST
    text, spoken = ("", "") if lost else (said.text, said.lang)
    line = Line(
        said.caption, about.name, 0, about.duration_ms or 0, spoken, text, spoken, text, about.started_ms, about.source
    )
    if lost:
        return replace(line, lost=said.text or "failed")
    if not lang or lang == spoken:
        return line
    if translation is not None and translation.kind is EntryKind.TRANSLATION:
        return replace(line, lang=lang, text=translation.text)
    return replace(line, untranslated=translation.text if translation is not None else NOT_REQUESTED)


def _timed(lines: list[Line]) -> list[Line]:
    """With times from the first line on. A line whose time is not known has that of the line before it."""
    known = [line.started_at_ms for line in lines if line.started_at_ms > 0]
    first = last = min(known, default=0)
    found: list[Line] = []
    for line in lines:
        last = line.started_at_ms if line.started_at_ms > 0 else last
        start, length_ms = last - first, line.end_ms or _duration_ms(line.text)
        found.append(replace(line, start_ms=start, end_ms=start + length_ms))
    return sorted(found, key=lambda line: line.start_ms)


def _duration_ms(text: str) -> int:
    return max(MIN_MS, min(MAX_MS, MS_PER_CHARACTER * len(text)))


# ---------------------------------------------------------------- files


def written(lines: list[Line], format: Format) -> bytes:
    """A file with these lines."""
    if format is Format.JSON:
        return msgspec.json.encode(lines)
    return _WRITERS[format](lines).encode("utf-8", "replace")


def _vtt(lines: list[Line]) -> str:
    cues = (
        f"{number}\n{_clock(line.start_ms, '.')} --> {_clock(line.end_ms, '.')}\n"
        f"{_vtt_voice(plain(line.speaker))}{_vtt_escaped(_shown(line))}\n"
        for number, line in enumerate(lines, 1)
    )
    return "\n".join(["WEBVTT\n", *cues])


def _vtt_voice(name: str) -> str:
    """Players ignore the space at the end of the name. Without it the name `--` would close the tag with an arrow."""
    return f"<v {_vtt_escaped(name)}{' ' if name.endswith('-') else ''}>" if name else ""


def _vtt_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _srt(lines: list[Line]) -> str:
    cues = (
        f"{number}\n{_clock(line.start_ms, ',')} --> {_clock(line.end_ms, ',')}\n{_srt_escaped(_said_by(line))}\n"
        for number, line in enumerate(lines, 1)
    )
    return "\n".join(cues)


def _srt_escaped(text: str) -> str:
    """Players read <…> and {…} as formatting, and an arrow as the line of times."""
    for mark in "<", "{":
        text = text.replace(mark, mark + JOINER)
    return text.replace("-->", f"--{JOINER}>")


def _txt(lines: list[Line]) -> str:
    return "".join(f"[{_clock(line.start_ms, '.')[:-4]}] {_said_by(line)}\n" for line in lines)


_WRITERS: dict[Format, Callable[[list[Line]], str]] = {Format.VTT: _vtt, Format.SRT: _srt, Format.TXT: _txt}


def _said_by(line: Line) -> str:
    name = plain(line.speaker)
    return f"{name}: {_shown(line)}" if name else _shown(line)


def _shown(line: Line) -> str:
    if line.lost:
        return f"[lost: {plain(line.lost)}]"
    text = plain(line.text)
    return f"[{plain(line.spoken)}] {text}" if line.untranslated else text


def _clock(ms: int, point: str) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


def plain(text: str) -> str:
    """As one line without control characters: a line break would end a cue."""
    return "".join(char for char in " ".join(text.split()) if unicodedata.category(char) not in ("Cc", "Cs"))
