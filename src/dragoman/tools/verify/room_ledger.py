"""The ledger of a room: what its members wrote and received, recorded by them, compared with the log in Redis. Pure.

    ledger = RoomLedger()                          # one phase, one room
    member = ledger.member("reader 1")             # records: joined, received, switched, left
    ledger.check(fact)                             # at rest: every broken promise

A member reads the log from a cursor. `Joined` sets the cursor, `Received` moves it to the next entry that concerns the
member, `Switched` changes which entries concern it. The promises, one function each: the log has no gaps; a confirmed
sentence is one original, and so is an utterance that was recognised, by one job; a skipped one is noted as lost; each
planned language of a caption ends once, and each language that somebody heard all the time is planned; every member
received exactly the entries that concern it, once and in order; no member outlives its session.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.domain.rooms import Entry, EntryKind

CAPTIONED = frozenset({"sent", "backfilled"})  # how an utterance ends that is a caption


class PlannedFact(NamedTuple):
    """A language of a caption, as Redis has it: how often it was planned, and the number of its last end."""

    times: int
    seq: int


@dataclass(frozen=True, slots=True)
class RoomFact:
    """A room as Redis has it."""

    log: Sequence[Entry] = ()
    seq: int = 0
    planned: Mapping[tuple[str, str], PlannedFact] = field(default_factory=dict)  # by caption and language
    pending: Collection[tuple[str, str]] = ()
    members: Collection[str] = ()  # sessions
    recognised: Mapping[tuple[str, int], Sequence[int]] = field(default_factory=dict)  # attempts of each job


class Joined(NamedTuple):
    """The member reads the log from this cursor on, in this language."""

    session: str
    hears: str
    cursor: int
    complete: bool = True


class Switched(NamedTuple):
    hears: str


class Received(NamedTuple):
    """An entry as the member got it. `text` is the reason if there is no translation."""

    seq: int
    caption: str
    lang: str
    text: str


class RoomFinding(NamedTuple):
    kind: str
    sentence: str
    caption: str = ""


@dataclass(slots=True)
class Written:
    """A sentence that a member wrote. Its text is unique."""

    text: str
    lang: str
    sent_at: float
    confirmed_at: float | None = None


@dataclass(slots=True)
class MemberLedger:
    name: str
    events: list[Joined | Switched | Received] = field(default_factory=list)
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)  # captions and languages, asked for again
    heard: list[tuple[float, str]] = field(default_factory=list)  # since when which language; '' = not in the room
    session: str = ""  # the present one
    is_over: bool = False  # it has left, or is leaving: nothing more is expected
    has_left: bool = False  # the server has confirmed that
    ended: str = ""  # why the room ended for it, against its will
    cuts: int = 0  # utterances that it has said aloud
    lost_with_session: int = 0  # of them, those whose end it cannot know: their session was lost
    said: dict[tuple[str, int], str] = field(
        default_factory=dict
    )  # by session and index: how each ended, as it was told

    def hears_throughout(self, began: float, ended: float) -> str:
        """The language that it heard all that time; '' if there was none."""
        before = [lang for at, lang in self.heard if at <= began]
        changed = any(began < at <= ended for at, _ in self.heard)
        return before[-1] if before and not changed else ""


class RoomLedger:
    def __init__(self) -> None:
        self.room = ""
        self.members: list[MemberLedger] = []
        self.written: dict[str, Written] = {}
        self.refused: list[str] = []  # answers that no fault explains
        self.postponed = 0  # requests that were refused because Redis could not be reached

    def member(self, name: str) -> MemberLedger:
        self.members.append(MemberLedger(name))
        return self.members[-1]

    @property
    def promised(self) -> int:
        return sum(one.confirmed_at is not None for one in self.written.values()) + len(self._captioned)

    @property
    def sessions(self) -> set[str]:
        """Of members that have said something aloud."""
        return {session for member in self.members for session, _ in member.said}

    @property
    def _captioned(self) -> list[str]:
        """The utterances whose speaker was told that they are captions."""
        ends = ((key, how) for member in self.members for key, how in member.said.items())
        return [caption_id(*key) for key, how in ends if how in CAPTIONED]

    def kept(self, fact: RoomFact, found: Collection[RoomFinding]) -> int:
        """Confirmed sentences that are an original, and whose caption has no finding."""
        broken = {one.caption for one in found}
        whole = [entry for entry in fact.log if entry.is_original and entry.caption not in broken]
        texts, captions = Counter(entry.text for entry in whole), {entry.caption for entry in whole}
        written = sum(one.confirmed_at is not None and texts[one.text] == 1 for one in self.written.values())
        return written + sum(caption in captions for caption in self._captioned)

    def notes(self, fact: RoomFact) -> Iterator[str]:
        if fact.recognised:
            jobs = [attempts for each in fact.recognised.values() for attempts in each]
            retries = sum(jobs) - len(jobs)
            yield f"{len(fact.recognised)} utterances in rooms were recognised by {len(jobs)} jobs, {retries} retries"
        if self.postponed:
            yield f"{self.postponed} requests of room members were refused because Redis could not be reached"

    def outstanding(self, fact: RoomFact) -> Iterator[str]:
        """What may still come to rest by itself."""
        yield from (f"{lang} of {caption} has no end yet" for caption, lang in fact.pending)
        yield from (one.sentence for member in self.members for one in _missing(member, fact) if not member.is_over)
        yield from (one.sentence for one in self._memberships(fact))
        for member in self.members:
            open_cuts = member.cuts - len(member.said) - member.lost_with_session
            if open_cuts > 0 and not member.is_over:
                yield f"{open_cuts} utterances of {member.name} have no end yet"

    def check(self, fact: RoomFact) -> list[RoomFinding]:
        found = [*_numbers(fact), *self._sentences(fact), *_ends(fact), *self._plans(fact)]
        for member in self.members:
            found += _received(member, fact)
        return [*found, *self._memberships(fact), *self._answers(), *self._speech(fact)]

    # -- promises ------------------------------------------------------------------------------------

    def _sentences(self, fact: RoomFact) -> Iterator[RoomFinding]:
        captions = defaultdict[str, list[Entry]](list)
        for entry in fact.log:
            if entry.is_original and not is_spoken(entry.caption):
                captions[entry.text].append(entry)
        for text, entries in captions.items():
            first = entries[0]
            if text not in self.written:
                yield RoomFinding("unknown origin", f"{first.caption} ({text!r}) was written by nobody", first.caption)
            elif len(entries) > 1:
                numbers = [entry.seq for entry in entries]
                yield RoomFinding(
                    "duplicated", f"{text!r} is in the log {len(entries)} times: {numbers}", first.caption
                )
            elif first.lang != self.written[text].lang:
                yield RoomFinding("altered", f"{text!r} has the language {first.lang}", first.caption)
        for one in self.written.values():
            if one.confirmed_at is not None and one.text not in captions:
                yield RoomFinding("lost", f"{one.text!r} was confirmed and is not in the log")

    def _speech(self, fact: RoomFact) -> Iterator[RoomFinding]:
        """An utterance that has ended is one entry of the log: its caption, or its loss; and one job recognised it."""
        entries = defaultdict[str, list[Entry]](list)
        for entry in fact.log:
            if entry.is_original and is_spoken(entry.caption):
                entries[entry.caption].append(entry)
        for caption, found in entries.items():
            session, _, number = caption.partition(":u")
            if [entry.kind for entry in found] == [EntryKind.LOST, EntryKind.ORIGINAL]:
                del found[0]  # it was recognised where its session was resumed
            if len(found) > 1:
                numbers = [entry.seq for entry in found]
                yield RoomFinding("duplicated", f"{caption} is in the log {len(found)} times: {numbers}", caption)
            if found[0].kind is EntryKind.ORIGINAL and found[0].text != f"utterance {number} of {session}":
                yield RoomFinding("altered", f"{caption} has the text {found[0].text!r}", caption)
        for member in self.members:
            for (session, index), how in member.said.items():
                caption = caption_id(session, index)
                kinds = {entry.kind for entry in entries[caption]}
                if how in CAPTIONED and EntryKind.ORIGINAL not in kinds:
                    yield RoomFinding("lost", f"{caption} was recognised ({how}) and is not in the log", caption)
                elif how == "skipped" and not kinds:
                    yield RoomFinding("lost", f"{caption} was skipped, and the members were not informed", caption)
        for (session, index), jobs in fact.recognised.items():
            if len(jobs) > 1:
                caption = caption_id(session, index)
                yield RoomFinding("duplicated", f"{caption} was recognised by {len(jobs)} jobs", caption)

    def _plans(self, fact: RoomFact) -> Iterator[RoomFinding]:
        """Every language that a member heard while a sentence was being written is planned."""
        for entry in fact.log:
            one = self.written.get(entry.text) if entry.is_original else None
            if one is None or one.confirmed_at is None:
                continue
            heard = {member.hears_throughout(one.sent_at, one.confirmed_at) for member in self.members}
            for lang in sorted(heard - {"", entry.lang}):
                if (entry.caption, lang) not in fact.planned:
                    sentence = f"{entry.caption} ({one.text!r}) was not planned in {lang}, which a member heard"
                    yield RoomFinding("no end", sentence, entry.caption)

    def _memberships(self, fact: RoomFact) -> Iterator[RoomFinding]:
        """A session that left without an answer stays a member until it can be resumed no more."""
        present = {one.session: one for one in self.members if not one.is_over}
        unanswered = {one.session for one in self.members if one.is_over and not one.has_left}
        for session in sorted(set(fact.members) - present.keys() - unanswered):
            yield RoomFinding("outlived", f"{session} is still a member, and its session is over")
        for session in sorted(present.keys() - set(fact.members)):
            yield RoomFinding("lost", f"{session} ({present[session].name}) is in the room, and not among its members")

    def _answers(self) -> Iterator[RoomFinding]:
        yield from (RoomFinding("refused", sentence) for sentence in self.refused)
        for one in self.members:
            if one.ended:
                yield RoomFinding("refused", f"the room ended for {one.name}: {one.ended}")


def caption_id(session: str, index: int) -> str:
    return f"{session}:u{index}"


def is_spoken(caption: str) -> bool:
    return ":u" in caption


def late_ends(log: Sequence[Entry], bound_ms: Callable[[int, int], float]) -> Iterator[RoomFinding]:
    """Languages whose first end came more than `bound_ms(from, to)` after the original, by the times of Redis."""
    originals = {entry.caption: entry for entry in log if entry.kind is EntryKind.ORIGINAL}
    first = {(entry.caption, entry.lang): entry for entry in reversed(log) if not entry.is_original}
    for (caption, lang), end in sorted(first.items()):
        original = originals.get(caption)
        if original is not None and end.at_ms - original.at_ms > bound_ms(original.at_ms, end.at_ms):
            took_s = (end.at_ms - original.at_ms) / 1000
            yield RoomFinding("late", f"{lang} of {caption} ended {took_s:.1f} s after the original", caption)


def _numbers(fact: RoomFact) -> Iterator[RoomFinding]:
    expected = 1
    for entry in fact.log:
        if entry.seq != expected:
            yield RoomFinding("gap", f"the log continues with {entry.seq} where {expected} is due", entry.caption)
        expected = entry.seq + 1
    if fact.seq != expected - 1:
        yield RoomFinding("gap", f"the last entry is {expected - 1}, and the room has counted {fact.seq}")


def _ends(fact: RoomFact) -> Iterator[RoomFinding]:
    """Each planning of a language has one end."""
    ends = defaultdict[tuple[str, str], list[int]](list)
    for entry in fact.log:
        if not entry.is_original:
            ends[entry.caption, entry.lang].append(entry.seq)
    for caption, lang in sorted(ends.keys() | fact.planned.keys()):
        seqs, planned = ends[caption, lang], fact.planned.get((caption, lang), PlannedFact(0, 0))
        what = f"{lang} of {caption} was planned {planned.times} times and ended {len(seqs)} times: {seqs}"
        if len(seqs) > planned.times:
            yield RoomFinding("two ends", what, caption)
        elif len(seqs) < planned.times:
            yield RoomFinding("no end", what, caption)
        elif seqs[-1] != planned.seq:
            yield RoomFinding("altered", f"{what}, and its end is noted as {planned.seq}", caption)


# -- what one member received ----------------------------------------------------------------------


class _Cursor:
    """Replays what a member received against the log."""

    def __init__(self, log: Sequence[Entry]) -> None:
        self._log = log
        self._by_seq = {entry.seq: entry for entry in log}
        self._hears, self.position = "", 0
        self.missed: dict[int, RoomFinding] = {}  # by number; what arrives later is out of order
        # After a change of the language the entries up to here may be missing: the server delivered them, to members
        # that heard the new language, before it had the change.
        self._may_miss = 0

    def expected(self) -> Iterator[Entry]:
        """What the member must still receive."""
        concerned = _concerning(self._hears)
        return (entry for entry in self._log if entry.seq > max(self.position, self._may_miss) and concerned(entry))

    def join(self, event: Joined) -> None:
        self._hears, self.position, self._may_miss = event.hears, event.cursor, 0

    def switch(self, event: Switched) -> None:
        following = next(self.expected(), None)
        self._may_miss = following.seq - 1 if following is not None else self._log[-1].seq if self._log else 0
        self._hears = event.hears

    def receive(self, member: MemberLedger, event: Received) -> Iterator[RoomFinding]:
        entry, who = self._by_seq.get(event.seq), f"{member.name} ({member.session})"
        if entry is None or (entry.caption, entry.lang, entry.text) != event[1:]:
            yield RoomFinding("altered", f"{who} received {event}, and the log has {entry}", event.caption)
        elif event.seq <= self.position:
            if self.missed.pop(event.seq, None) is not None:
                yield RoomFinding("reorder", f"{who} received {event.seq} after {self.position}", event.caption)
            elif not member.asked[event.caption, event.lang]:
                sentence = f"{who} received {event.seq} again, after {self.position}"
                yield RoomFinding("duplicated", sentence, event.caption)
            return
        elif not _concerning(self._hears)(entry):
            yield RoomFinding("altered", f"{who} hears {self._hears} and received {event}", event.caption)
        for missed in self.expected():
            if missed.seq >= event.seq:
                break
            sentence = f"{who} received {event.seq} and not {missed.seq} ({missed.kind} in {missed.lang})"
            self.missed[missed.seq] = RoomFinding("lost", sentence, missed.caption)
        self.position, self._may_miss = max(event.seq, self.position), 0


def _concerning(hears: str) -> Callable[[Entry], bool]:
    return lambda entry: entry.is_original or entry.lang == hears


def _replayed(member: MemberLedger, fact: RoomFact) -> tuple[_Cursor, list[RoomFinding]]:
    cursor, found = _Cursor(fact.log), list[RoomFinding]()
    for event in member.events:
        match event:
            case Joined():
                if not event.complete:
                    found.append(RoomFinding("lost", f"{member.name} joined at {event.cursor}, which is not complete"))
                cursor.join(event)
            case Switched():
                cursor.switch(event)
            case Received():
                found += cursor.receive(member, event)
    return cursor, [*found, *cursor.missed.values()]


def _missing(member: MemberLedger, fact: RoomFact) -> Iterator[RoomFinding]:
    """What the log has for it after its cursor."""
    cursor, _ = _replayed(member, fact)
    for entry in cursor.expected() if member.events else ():
        sentence = f"{member.name} ({member.session}) did not receive {entry.seq} ({entry.kind} in {entry.lang})"
        yield RoomFinding("lost", f"{sentence}; its cursor is {cursor.position}", entry.caption)


def _received(member: MemberLedger, fact: RoomFact) -> list[RoomFinding]:
    found = _replayed(member, fact)[1]
    return found if member.is_over else [*found, *_missing(member, fact)]
