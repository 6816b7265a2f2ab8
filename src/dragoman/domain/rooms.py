"""Rooms: several people, several languages, one log.

Everything that is shown to a member is an entry of the room's log. An entry has the next number of the room, `seq`,
from 1 and without gaps. A member that has received the log up to a number has received everything up to it that
concerns it; joining late, resuming and changing the language are all "read the log from here".

`RoomDelivery` decides, for the members on one instance, which entries may be delivered now: only number + 1. Whatever
arrives too early waits until the log was read. It also finds out that Redis has lost entries (a crash, or a failover to
a replica that lagged): their numbers are missing, or were used again at another time.

Recognition is expensive and translation of a text is not. So an utterance is recognised once, and each language that
others hear gets a text job. Only if no node serves a language by text, one job does everything into that language.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

AUTO = "auto"
MAX_EARLY = 1024  # entries of one room that wait for an earlier one
RECENT = 1000  # delivered entries of one room that are remembered


class Role(StrEnum):
    HOST = "host"
    SPEAKER = "speaker"
    LISTENER = "listener"


class EntryKind(StrEnum):
    ORIGINAL = "original"
    TRANSLATION = "translation"
    UNTRANSLATED = "untranslated"  # the end of a planned language without a text; `text` is the reason
    LOST = "lost"  # an utterance that failed; `text` is the reason


@dataclass(frozen=True, slots=True)
class RoomClaim:
    """What a token for one room allows: to join this room, with this role at most."""

    room: str
    role: Role


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session in a room, as the room's hash `members` has it."""

    session: str
    instance: str
    epoch: int  # of the session's last resume; 0 if it cannot resume
    name: str
    speaks: str
    hears: str
    principal: str
    role: Role = Role.SPEAKER
    joined_ms: int = 0
    voice: bool = False
    originals: bool = True
    muted: bool = False
    existing: bool = False  # a client that knows only translation_result
    raw_voice: dict[str, bool] = {}  # of which members it wants the raw voice; clients exchange that by themselves
    claimed: bool = False  # its token grants this role and no other: it does not become host by seniority

    @property
    def may_speak(self) -> bool:
        return self.role is not Role.LISTENER and not self.muted


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. `about` is JSON: who said an original, and when. `at_ms`: when it was appended, by the time
    of Redis. Number and time together are unique, also if Redis loses entries and uses their numbers again."""

    seq: int
    kind: EntryKind
    caption: str
    lang: str
    text: str
    about: bytes = b""
    at_ms: int = 0

    @property
    def is_original(self) -> bool:
        return self.kind is EntryKind.ORIGINAL or self.kind is EntryKind.LOST

    def concerns(self, member: Member) -> bool:
        """A member without originals still gets those in its own language."""
        return self.lang == member.hears or (self.is_original and member.originals)


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who said an original, and how: `about` of its entry."""

    session: str
    name: str
    source: str
    started_ms: int
    index: int | None = None
    duration_ms: int | None = None
    backfilled: bool | None = None


_decode_about = msgspec.json.Decoder(About).decode
_UNKNOWN = About("", "", "text", 0)


def about_of(entry: Entry) -> About:
    try:
        return _decode_about(entry.about)
    except msgspec.DecodeError:
        return _UNKNOWN


class RoomDelivery:
    """The entries that the members on one instance have received: all up to `delivered`.

    `is_forked`: the log has another entry under a number that was delivered. Nothing is delivered until `restart`.
    """

    def __init__(self, delivered: int, before: Iterable[Entry] = ()) -> None:
        """`before`: what the log has up to `delivered`, as far as it is known."""
        self.delivered = delivered
        self.is_forked = False
        self.recent: deque[Entry] = deque(before, maxlen=RECENT)  # without gaps, up to the last that was delivered
        self._early: dict[int, Entry] = {}

    @property
    def has_hole(self) -> bool:
        """Whether an entry waits for one that was not pushed: the log must be read."""
        return bool(self._early)

    def receive(self, entries: Iterable[Entry]) -> list[Entry]:
        """The entries that may be delivered now, in order. Known ones are dropped; early ones wait."""
        ready = self._take_early()
        for entry in entries:
            if entry.seq <= self.delivered:
                self.is_forked = self.is_forked or self._differs(entry)
            elif entry.seq == self.delivered + 1 and not self.is_forked:
                self._keep(entry)
                ready += [entry, *self._take_early()]
            elif len(self._early) < MAX_EARLY:
                self._early[entry.seq] = entry
        return ready

    def _take_early(self) -> list[Entry]:
        taken: list[Entry] = []
        while not self.is_forked and (following := self._early.pop(self.delivered + 1, None)) is not None:
            taken.append(following)
            self._keep(following)
        return taken

    def _keep(self, entry: Entry) -> None:
        if self.recent and self.recent[-1].seq + 1 != entry.seq:
            self.recent.clear()
        self.recent.append(entry)
        self.delivered = entry.seq

    def _differs(self, entry: Entry) -> bool:
        at = entry.seq - self.recent[0].seq if self.recent else -1
        return 0 <= at < len(self.recent) and self.recent[at].at_ms != entry.at_ms

    def compare(self, seq: int, at_ms: int, delivered_before: int) -> None:
        """The last entry of the log; `delivered_before`: what was delivered before this was asked."""
        last = self.recent[-1] if self.recent else None
        if seq < delivered_before or (last is not None and last.seq == seq and last.at_ms != at_ms):
            self.is_forked = True

    def restart(self, log: Iterable[Entry]) -> int:
        """Continue with this log, read from the first remembered entry on. Returns how many delivered entries it does
        not have; what it has instead of them can be delivered now."""
        times = {entry.seq: entry.at_ms for entry in log}
        before = self.delivered
        while self.recent and times.get(self.recent[-1].seq) != self.recent[-1].at_ms:
            self.delivered = self.recent.pop().seq - 1
        if not self.recent:
            self.delivered = min(self.delivered, min(times, default=1) - 1)
        self.is_forked, self._early = False, {}
        return before - self.delivered

    def skip_to(self, seq: int) -> None:
        """The log does not reach back to what is missing: continue behind it."""
        if seq > self.delivered:
            self.delivered = seq
            self._early = {early: entry for early, entry in self._early.items() if early > seq}


def languages_to_translate(heard: Mapping[str, int], spoken: str) -> list[str]:
    """The languages that a caption is translated into: those that members hear, but not the spoken one."""
    return sorted(lang for lang, members in heard.items() if members > 0 and lang != spoken)


PARTIALS_PER_S = 3

Pair = tuple[str, str]  # source and target


# -- speech ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """For the utterances of one turn. Without a `target` their jobs only recognise."""

    target: str = ""
    by_text: tuple[str, ...] = ()  # languages that text jobs translate into
    unserved: tuple[str, ...] = ()  # languages that end as untranslated: no_node


def plan_speech(
    spoken: str, heard: Mapping[str, int], text_pairs: Container[Pair], speech_pairs: Container[Pair]
) -> SpeechPlan:
    """`heard`: how many members hear each language. If the spoken language is not known before it is recognised, the
    job only recognises: what it finds decides what is translated."""
    others = languages_to_translate(heard, spoken)
    by_text = tuple(lang for lang in others if (spoken, lang) in text_pairs)
    rest = [lang for lang in others if lang not in by_text]
    whole = [lang for lang in rest if (spoken, lang) in speech_pairs] if spoken != AUTO else []
    target = min(whole, key=lambda lang: (-heard[lang], lang), default="")
    return SpeechPlan(target, by_text, tuple(lang for lang in rest if lang != target))


@dataclass(slots=True)
class SpeakerPace:
    """The partial texts of one speaker: at most three a second. What comes sooner waits, and the latest replaces it."""

    sent_at: float = float("-inf")
    waiting: tuple[int, str] | None = None  # index and text

    def offer(self, index: int, text: str, now: float) -> bool:
        """Whether to send it now; if not, it is due at `due_at`, unless a later one replaces it."""
        self.waiting = (index, text)
        return now >= self.due_at

    def take(self, now: float) -> tuple[int, str] | None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            self.sent_at = now
        return waiting

    def forget(self, index: int) -> None:
        """The utterance has its caption: nothing is shown before it any more."""
        if self.waiting is not None and self.waiting[0] <= index:
            self.waiting = None

    @property
    def due_at(self) -> float:
        return self.sent_at + 1 / PARTIALS_PER_S
