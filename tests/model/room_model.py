"""A room as plain objects: what the scripts of store/rooms answer and leave behind. Counts are made anew each time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from dragoman.domain.rooms import Entry, EntryKind, Member, Role, languages_to_translate
from dragoman.store.rooms.rooms import (
    MAX_EXPIRED,
    Appended,
    Changed,
    Closed,
    Done,
    EpochChanged,
    Joined,
    Left,
    Planned,
    Refusal,
    RoomBounds,
    Updated,
    Visited,
)

LISTENERS_AFTER = 10**12  # every listener is ordered behind every speaker
SPOKEN = (EntryKind.ORIGINAL, EntryKind.LOST)


@dataclass
class Language:
    n: int
    s: str
    seq: int = 0


@dataclass
class Caption:
    seq: int
    lang: str
    kind: EntryKind
    langs: dict[str, Language] = field(default_factory=dict)


@dataclass
class RoomModel:
    bounds: RoomBounds
    code: str
    creator: str
    log_epoch: str
    persistent: bool
    locked: bool
    active_ms: int
    empty_since_ms: int | None
    paused: bool = False
    closed: str = ""
    settings: bytes = b"{}"
    seq: int = 0
    version: int = 0
    joins: int = 0
    appended_ms: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # session → the how-manieth join it was
    log: list[Entry] = field(default_factory=list)
    captions: dict[str, Caption] = field(default_factory=dict)
    pending: dict[tuple[str, str], int] = field(default_factory=dict)  # (lang, caption) → deadline
    removed: set[str] = field(default_factory=set)

    # -- what follows from the members and the log -----------------------------------------------

    @property
    def instances(self) -> list[str]:
        return sorted({member.instance for member in self.members.values()})

    @property
    def has_host(self) -> bool:
        return any(member.role is Role.HOST for member in self.members.values())

    @property
    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for member in self.members.values():
            found["i:" + member.instance] += 1
            found["r:host"] += member.role is Role.HOST
            if member.hears:
                found["h:" + member.hears] += 1
                found["v:" + member.hears] += member.voice
        return {name: count for name, count in found.items() if count}

    @property
    def seniority(self) -> dict[str, int]:
        return {
            session: self.numbers[session] + LISTENERS_AFTER * (member.role is Role.LISTENER)
            for session, member in self.members.items()
            if not member.claimed
        }

    @property
    def recent(self) -> list[int]:
        return [entry.seq for entry in self.log if entry.kind in SPOKEN]

    def over(self, now: int) -> tuple[str, int]:
        ends = [(self.active_ms + (self.bounds.persistent_ms if self.persistent else self.bounds.idle_ms), "idle")]
        if self.empty_since_ms is not None and not self.persistent:
            ends.append((self.empty_since_ms + self.bounds.empty_grace_ms, "empty"))
        at, why = min(ends, key=lambda end: end[0])
        return (why if at <= now else "", at - now)

    def has_voice(self, lang: str) -> bool:
        return any(member.hears == lang and member.voice for member in self.members.values())

    # -- members ---------------------------------------------------------------------------------

    def join(self, member: Member, now: int) -> Joined | Refusal:
        before = self.members.get(member.session)
        if self.closed:
            return Refusal.NONE
        if member.principal in self.removed:
            return Refusal.REMOVED
        if before is not None and member.epoch < before.epoch:
            return Refusal.STALE
        invited = member.principal == self.creator or (member.claimed and member.role is Role.HOST)
        if before is None and self.locked and not invited:
            return Refusal.LOCKED
        if before is None and len(self.members) >= self.bounds.max_members:
            return Refusal.FULL
        if not self.fits(member):
            return Refusal.LANGUAGES
        if before is None:
            self.joins += 1
            self.numbers[member.session] = self.joins
            role = member.role if member.claimed or self.has_host else Role.HOST
            after = replace(member, joined_ms=now, role=role)
        else:
            after = replace(member, joined_ms=before.joined_ms, role=before.role, claimed=before.claimed)
        self.members[member.session] = after
        self.active_ms, self.empty_since_ms = now, None
        version, first = self.changed(), self.log[0].seq if self.log else self.seq + 1
        return Joined(after, self.log_epoch, self.seq, first, version.version, self.instances, before is not None)

    def fits(self, after: Member) -> bool:
        others = {member.hears for session, member in self.members.items() if session != after.session}
        return len({*others, after.hears} - {""}) <= self.bounds.max_languages

    def changed(self) -> Changed:
        self.version += 1
        return Changed(self.version, self.instances)

    def update(self, session: str, epoch: int, changes: Mapping[str, Any]) -> Updated | Refusal:
        before = self.members.get(session)
        if self.closed:
            return Refusal.NONE
        if before is None:
            return Refusal.NOT_MEMBER
        if epoch < before.epoch:
            return Refusal.STALE
        after = replace(before, **changes)
        if not self.fits(after):
            return Refusal.LANGUAGES
        self.members[session] = after
        changed = self.changed()
        return Updated(after, changed.version, changed.instances)

    def leave(self, session: str, epoch: int, now: int) -> Left | Refusal:
        if self.closed:
            return Refusal.NONE
        if session not in self.members:
            return Refusal.NOT_MEMBER
        if epoch < self.members[session].epoch:
            return Refusal.STALE
        return self.end(session, now)

    def end(self, session: str, now: int) -> Left:
        member, host = self.members.pop(session), ""
        if self.seniority and not self.has_host:
            host = min(self.seniority, key=self.seniority.__getitem__)
            self.members[host] = replace(self.members[host], role=Role.HOST)
        if not self.members:
            self.empty_since_ms = now
        changed = self.changed()
        return Left(changed.version, changed.instances, host, len(self.members), member.instance)

    def refuse_host(self, session: str, epoch: int) -> Refusal | None:
        member = self.members.get(session)
        if self.closed:
            return Refusal.NONE
        if member is None or member.role is not Role.HOST:
            return Refusal.NOT_HOST
        return Refusal.STALE if epoch < member.epoch else None

    def remove(self, session: str, epoch: int, target: str, now: int) -> Left | Refusal:
        if refused := self.refuse_host(session, epoch):
            return refused
        if target not in self.members:
            return Refusal.NOT_MEMBER
        self.removed.add(self.members[target].principal)
        return self.end(target, now)

    def transfer(self, session: str, epoch: int, to: str) -> Changed | Refusal:
        if refused := self.refuse_host(session, epoch):
            return refused
        if to not in self.members:
            return Refusal.NOT_MEMBER
        self.members[session] = replace(self.members[session], role=Role.SPEAKER)
        self.members[to] = replace(self.members[to], role=Role.HOST)
        return self.changed()

    def set_field(self, session: str, epoch: int, name: str, value: bool | bytes) -> Changed | Refusal:
        if refused := self.refuse_host(session, epoch):
            return refused
        setattr(self, name, value)
        return self.changed()

    # -- the log ---------------------------------------------------------------------------------

    def append(self, kind: EntryKind, caption: str, lang: str, text: str, about: bytes, now: int) -> int:
        self.seq += 1
        self.log.append(Entry(self.seq, kind, caption, lang, text, about, now))
        self.appended_ms = now
        self.active_ms = now
        return self.seq

    def change_log_epoch(self, known: str, epoch: str) -> EpochChanged | Refusal:
        if self.closed:
            return Refusal.NONE
        if self.log_epoch == known:
            self.log_epoch = epoch
            self.version += 1
        return EpochChanged(self.log_epoch, self.version, self.instances)

    def trim(self) -> None:
        while len(self.log) > self.bounds.max_entries:
            oldest = self.log.pop(0)
            if oldest.kind in SPOKEN and self.captions[oldest.caption].seq == oldest.seq:
                del self.captions[oldest.caption]
                self.pending = {name: at for name, at in self.pending.items() if name[1] != oldest.caption}

    def plan_one(self, caption: str, lang: str, now: int) -> Planned:
        languages = self.captions[caption].langs
        n = languages[lang].n + 1 if lang in languages else 1
        languages[lang] = Language(n, "pending")
        self.pending[lang, caption] = now + self.bounds.translate_timeout_ms
        return Planned(lang, n, self.has_voice(lang))

    def original(
        self, caption: str, session: str, epoch: int, lang: str, text: str, about: bytes, lost: bool, now: int
    ) -> Appended | Refusal:
        if self.closed:
            return Refusal.NONE
        row = self.captions.get(caption)
        if row is not None and (lost or row.kind is not EntryKind.LOST):
            left = [Planned(lang, one.n, self.has_voice(lang)) for lang, one in row.langs.items() if one.s == "pending"]
            return Appended(row.seq, now, True, sorted(left, key=lambda one: one.lang), self.instances)
        member = self.members.get(session)
        if member is None and not lost:
            return Refusal.NOT_MEMBER
        if member is not None and epoch < member.epoch:
            return Refusal.FENCED
        if self.paused:
            return Refusal.PAUSED
        kind = EntryKind.LOST if lost else EntryKind.ORIGINAL
        seq = self.append(kind, caption, lang, text, about, now)
        self.captions[caption] = Caption(seq, lang, kind)
        heard = Counter(member.hears for member in self.members.values() if member.hears)
        planned = [] if lost else [self.plan_one(caption, one, now) for one in languages_to_translate(heard, lang)]
        self.trim()
        return Appended(seq, now, False, planned, self.instances)

    def plan(self, caption: str, lang: str, now: int) -> Planned | Done | Refusal:
        row = self.captions.get(caption)
        if self.closed or row is None or row.kind is EntryKind.LOST or row.lang == lang:
            return Refusal.NONE
        language = row.langs.get(lang)
        if language is not None and language.s == "pending":
            return Refusal.PENDING
        if language is not None and language.s == "done":
            return Done(language.seq)
        if language is None and len(row.langs) >= self.bounds.max_languages:
            return Refusal.LANGUAGES
        return self.plan_one(caption, lang, now)

    def finish(self, caption: str, lang: str, kind: EntryKind, text: str, now: int) -> Entry:
        language = self.captions[caption].langs[lang]
        language.seq = self.append(kind, caption, lang, text, b"", now)
        language.s = "done" if kind is EntryKind.TRANSLATION else "untranslated"
        del self.pending[lang, caption]
        return self.log[-1]

    def translate(self, caption: str, lang: str, n: int, text: str, reason: str, now: int) -> Appended | Refusal:
        if self.closed:
            return Refusal.NONE
        row = self.captions.get(caption)
        if (lang, caption) not in self.pending or row is None or row.langs[lang].n != n:
            return Refusal.LATE
        kind = EntryKind.UNTRANSLATED if reason else EntryKind.TRANSLATION
        entry = self.finish(caption, lang, kind, reason or text, now)
        self.trim()
        return Appended(entry.seq, now, False, [], self.instances)

    def visit(self, now: int) -> Visited | Refusal:
        if self.closed:
            return Refusal.NONE
        overdue = sorted((at, f"{name[0]}|{name[1]}", name) for name, at in self.pending.items() if at <= now)
        expired = [
            self.finish(caption, lang, EntryKind.UNTRANSLATED, "timeout", now)
            for _, _, (lang, caption) in overdue[:MAX_EXPIRED]
        ]
        self.trim()
        over, left = self.over(now)
        regular = self.bounds.idle_ms if self.persistent else self.bounds.empty_grace_ms
        next_ms = min(left, regular, *(at - now for at in self.pending.values()))
        return Visited(expired, self.instances, max(next_ms, 0), over)

    def close(self, reason: str, only_if_over: bool, now: int) -> Closed | Refusal:
        if self.closed:
            return Refusal.NONE
        if only_if_over and not self.over(now)[0]:
            return Refusal.OPEN
        closed = Closed(self.code, self.instances, sorted(self.members))
        self.closed = reason
        self.members, self.pending, self.removed = {}, {}, set()
        return closed
