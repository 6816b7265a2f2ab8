"""Rooms in Redis: members, the log of captions, and when each room must be visited.

Everything of one room is in one slot, so each change is one script (`room.lua` lists the keys). A script decides
whether a room is empty, who is host, which languages a caption is translated into and whether a translation is still
wanted. A session acts with the epoch of its last resume; a lower epoch than the stored one changes nothing.

The index of visits is in another slot, so it cannot change together with a room. It never loses a visit:

- A room is announced before it is created and before a caption is appended: it will be visited in time, and something
  may be written until T, `translate_timeout_ms` later, that a visit before T does not see. Only a claim at T or later
  deletes this; a visit after an earlier claim schedules the next one at T at the latest. So the first visit after the
  append comes within `translate_timeout_ms`, and schedules the deadline of what it finds pending.
- A visitor that dies costs the rest of its claim. One that was so slow that its claim has ended can only bring the next
  visit forward, because it may have read the room before the last caption.
- If Redis loses the entry of a room (a failover may lose the last writes), the next caption announces the room again,
  and so does an instance that announces the rooms of its members from time to time.

So if a driver dies after an append, its planned languages end `translate_timeout_ms` after the append, plus the pause
between two polls and, if the visitor dies too, one claim. If a driver stops for longer than `translate_timeout_ms`
between announcement and append and dies after that, they end at the next regular visit, `empty_grace_ms` later at most.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from dragoman.domain.rooms import Entry, EntryKind, Member
from dragoman.store.instances import DELETE_IF_EQUAL, RENEW_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

CREATE_ROOM = Script.beside(__file__, "create_room")
JOIN_ROOM = Script.beside(__file__, "join_room")
UPDATE_MEMBER = Script.beside(__file__, "update_member")
END_MEMBER = Script.beside(__file__, "end_member")
TRANSFER_HOST = Script.beside(__file__, "transfer_host")
CHANGE_LOG_EPOCH = Script.beside(__file__, "change_log_epoch")
SET_ROOM_FIELD = Script.beside(__file__, "set_room_field")
APPEND_ORIGINAL = Script.beside(__file__, "append_original")
PLAN_TRANSLATION = Script.beside(__file__, "plan_translation")
APPEND_TRANSLATION = Script.beside(__file__, "append_translation")
EXPIRE_PENDING = Script.beside(__file__, "expire_pending")
CLOSE_ROOM = Script.beside(__file__, "close_room")
ANNOUNCE_ROOM = Script.beside(__file__, "announce_room")
CLAIM_DUE_ROOMS = Script.beside(__file__, "claim_due_rooms")
SCHEDULE_ROOM = Script.beside(__file__, "schedule_room")
FORGET_DUE_ROOM = Script.beside(__file__, "forget_due_room")

READ_PAGE = 1000  # entries of one read of a whole log
MAX_EXPIRED = 100  # languages that one visit ends
ANNOUNCED_TTL_MS = 3_600_000
MEMBERSHIP_TTL_MS = 3_600_000
CHANGEABLE = frozenset({"hears", "voice", "speaks", "muted", "name", "originals", "raw_voice"})  # by the member itself
TIMEOUT = "timeout"  # the reason that expire_pending.lua writes

_decode_member = msgspec.json.Decoder(Member).decode
_encode = msgspec.json.encode


class Refusal(StrEnum):
    NONE = "NONE"  # no such room, or it is closed; of `plan`: no such caption
    FULL = "FULL"
    LOCKED = "LOCKED"
    REMOVED = "REMOVED"  # the host removed this principal
    LANGUAGES = "LANGUAGES"  # too many different ones
    STALE = "STALE"  # the session has joined with a higher epoch
    FENCED = "FENCED"  # the same, of an append
    NOT_MEMBER = "NOT_MEMBER"
    NOT_HOST = "NOT_HOST"
    PAUSED = "PAUSED"
    PENDING = "PENDING"  # the language is being translated
    LATE = "LATE"  # the language has its end, or was planned anew
    OPEN = "OPEN"  # the room is neither empty nor idle for long enough


@dataclass(frozen=True, slots=True)
class RoomBounds:
    max_members: int = 5000
    max_languages: int = 16
    max_entries: int = 20_000
    translate_timeout_ms: int = 4000
    empty_grace_ms: int = 60_000
    idle_ms: int = 1_800_000
    transcript_ms: int = 86_400_000
    persistent_ms: int = 30 * 86_400_000

    def ttl_ms(self, persistent: bool) -> int:
        """The life of an open room's keys; room.lua has the same rule."""
        return self.persistent_ms if persistent else self.idle_ms + self.transcript_ms


@dataclass(frozen=True, slots=True)
class Joined:
    member: Member  # with its role and its time of joining
    log_epoch: str
    seq: int
    first_seq: int  # of the oldest entry that is kept; seq + 1 if there is none
    version: int
    instances: list[str]
    again: bool


@dataclass(frozen=True, slots=True)
class Updated:
    member: Member
    version: int
    instances: list[str]


@dataclass(frozen=True, slots=True)
class Left:
    version: int
    instances: list[str]
    host: str  # session of the new host; '' if the host did not change
    members: int
    instance: str  # that the session was on


@dataclass(frozen=True, slots=True)
class Changed:
    version: int
    instances: list[str]


@dataclass(frozen=True, slots=True)
class EpochChanged:
    log_epoch: str
    version: int
    instances: list[str]


@dataclass(frozen=True, slots=True)
class RoomState:
    """What an instance with members compares every second."""

    version: int
    seq: int
    log_epoch: str
    appended_ms: int  # when the last entry was appended
    closed: str = ""  # why, if it is closed


@dataclass(frozen=True, slots=True)
class Planned:
    lang: str
    n: int  # how often this language of the caption was planned
    voice: bool


@dataclass(frozen=True, slots=True)
class Done:
    seq: int  # of the translation


@dataclass(frozen=True, slots=True)
class Appended:
    seq: int
    at_ms: int
    again: bool
    planned: list[Planned]
    instances: list[str]


class LanguageState(msgspec.Struct, frozen=True):
    """A planned language of a caption, as the scripts write it."""

    n: int  # how often it was planned
    s: str  # pending, done or untranslated
    seq: int  # of its last end


class CaptionState(msgspec.Struct, frozen=True):
    """A row of `captions`, as the scripts write it."""

    seq: int
    lang: str
    kind: str
    langs: dict[str, LanguageState]  # that are planned


_decode_caption = msgspec.json.Decoder(CaptionState).decode


@dataclass(frozen=True, slots=True)
class Visited:
    expired: list[Entry]
    instances: list[str]
    next_ms: int  # until the next visit
    over: str  # 'empty', 'idle' or ''
    claim: int = 0  # under which the room was visited: for `schedule`


@dataclass(frozen=True, slots=True)
class Closed:
    code: str
    instances: list[str]
    sessions: list[str]


@dataclass(frozen=True, slots=True)
class RoomInfo:
    room: str
    code: str
    tenant: str
    creator: str
    created_ms: int
    settings: bytes
    log_epoch: str
    seq: int
    version: int
    joins: int
    locked: bool
    paused: bool
    persistent: bool
    empty_since_ms: int | None
    active_ms: int
    closed: str  # the reason; '' while it is open


@dataclass(frozen=True, slots=True)
class RoomCounts:
    """How many members there are by instance, by language heard, and by language of which they want the voice."""

    instances: dict[str, int] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)
    voices: dict[str, int] = field(default_factory=dict)


class Rooms:
    def __init__(self, redis: Redis, keys: Keys, bounds: RoomBounds, now: Callable[[], int] | None = None) -> None:
        """Only tests pass `now`; without it the scripts ask Redis for the time."""
        self.redis, self.keys, self.bounds = redis, keys, bounds
        self._now = now
        self._bounds = asdict(bounds)
        self._claims: dict[str, int] = {}  # rooms that were claimed and not visited yet, with the end of the claim

    # -- rooms and codes -------------------------------------------------------------------------

    async def create(
        self,
        room: str,
        code: str,
        *,
        tenant: str,
        creator: str,
        settings: bytes,
        log_epoch: str,
        persistent: bool,
        locked: bool,
    ) -> bool:
        """False: there is a room with this id. `creator` is a principal; a locked room lets it in."""
        await self.announce(room, self.bounds.empty_grace_ms)
        fields: dict[str, Any] = {
            "code": code,
            "tenant": tenant,
            "creator": creator,
            "settings": settings,
            "log_epoch": log_epoch,
        }
        fields |= {"persistent": int(persistent), "locked": int(locked)}
        reply = await CREATE_ROOM(
            self.redis,
            info=self.keys.room_info(room),
            **self._time(),
            ttl=self.bounds.ttl_ms(persistent),
            fields=[part for pair in fields.items() for part in pair],
        )
        return bool(reply == b"OK")

    async def close(self, room: str, reason: str, *, only_if_over: bool) -> Closed | Refusal:
        reply = await self._run(CLOSE_ROOM, room, reason=reason, only_if_over=int(only_if_over))
        if isinstance(reply, Refusal):
            return reply
        _, code, instances, sessions = reply
        return Closed(code.decode(), _texts(instances), _texts(sessions))

    async def claim_code(self, code: str, room: str) -> bool:
        """False: another room has it. The claim must be renewed while the room is open."""
        ttl_ms = self.bounds.ttl_ms(False)
        return bool(await self.redis.call("SET", self.keys.room_code(code), room, "NX", "PX", ttl_ms))

    async def room_of_code(self, code: str) -> str | None:
        found = await self.redis.call("GET", self.keys.room_code(code))
        return found.decode() if found is not None else None

    async def renew_code(self, code: str, room: str, ttl_ms: int) -> bool:
        """False: the code is gone, or another room has it."""
        return bool(await RENEW_IF_EQUAL(self.redis, key=self.keys.room_code(code), value=room, ttl=ttl_ms) == b"OK")

    async def release_code(self, code: str, room: str) -> None:
        await DELETE_IF_EQUAL(self.redis, key=self.keys.room_code(code), value=room)

    # -- members ---------------------------------------------------------------------------------

    async def is_removed(self, room: str, principal: str) -> bool:
        return bool(await self.redis.call("SISMEMBER", self.keys.room_removed(room), principal))

    async def join(self, room: str, member: Member) -> Joined | Refusal:
        reply = await self._run(JOIN_ROOM, room, session=member.session, member=_encode(member))
        if isinstance(reply, Refusal):
            return reply
        _, stored, log_epoch, seq, first_seq, version, instances, again = reply
        epoch = log_epoch.decode()
        return Joined(_decode_member(stored), epoch, seq, first_seq, version, _texts(instances), bool(again))

    async def update(self, room: str, session: str, epoch: int, changes: Mapping[str, Any]) -> Updated | Refusal:
        if unknown := changes.keys() - CHANGEABLE:
            raise ValueError(f"a member cannot change {sorted(unknown)}")
        reply = await self._run(UPDATE_MEMBER, room, session=session, epoch=epoch, changes=_encode(changes))
        if isinstance(reply, Refusal):
            return reply
        _, stored, version, instances = reply
        return Updated(_decode_member(stored), version, _texts(instances))

    async def leave(self, room: str, session: str, epoch: int) -> Left | Refusal:
        return _left(await self._run(END_MEMBER, room, session=session, epoch=epoch, host=""))

    async def remove(self, room: str, session: str, epoch: int, target: str) -> Left | Refusal:
        """The host `session` removes `target`; the target's principal cannot join any more."""
        return _left(await self._run(END_MEMBER, room, session=target, epoch=epoch, host=session))

    async def transfer(self, room: str, session: str, epoch: int, to: str) -> Changed | Refusal:
        return _changed(await self._run(TRANSFER_HOST, room, session=session, epoch=epoch, to=to))

    async def set_field(
        self, room: str, session: str, epoch: int, field: str, value: bool | bytes
    ) -> Changed | Refusal:
        """The host sets `locked`, `paused`, `persistent` or `settings`."""
        if field not in ("locked", "paused", "persistent", "settings"):
            raise ValueError(f"a host cannot set {field}")
        given = int(value) if isinstance(value, bool) else value
        return _changed(await self._run(SET_ROOM_FIELD, room, session=session, epoch=epoch, field=field, value=given))

    # -- the log ---------------------------------------------------------------------------------

    async def change_log_epoch(self, room: str, known: str, epoch: str) -> EpochChanged | Refusal:
        """Redis has lost entries. Only the first call after `known` changes it; each returns the present one."""
        reply = await self._run(CHANGE_LOG_EPOCH, room, known=known, epoch=epoch)
        if isinstance(reply, Refusal):
            return reply
        return EpochChanged(reply[1].decode(), reply[2], _texts(reply[3]))

    async def append_original(
        self,
        room: str,
        caption: str,
        session: str,
        epoch: int,
        *,
        lang: str,
        text: str,
        about: bytes,
        lost: bool = False,
    ) -> Appended | Refusal:
        """Announce the room before it. `lost`: the utterance failed, and `text` is the reason."""
        kind = EntryKind.LOST if lost else EntryKind.ORIGINAL
        said = {"caption": caption, "session": session, "epoch": epoch, "lang": lang, "text": text, "about": about}
        reply = await self._run(APPEND_ORIGINAL, room, kind=kind.value, **said)
        if isinstance(reply, Refusal):
            return reply
        _, seq, at_ms, again, planned, instances = reply
        return Appended(seq, at_ms, bool(again), [_planned(*one) for one in planned], _texts(instances))

    async def plan(self, room: str, caption: str, lang: str) -> Planned | Done | Refusal:
        """Announce the room before it."""
        reply = await self._run(PLAN_TRANSLATION, room, caption=caption, lang=lang)
        if isinstance(reply, Refusal):
            return reply
        return Done(reply[1]) if reply[0] == b"DONE" else _planned(*reply[1:])

    async def append_translation(
        self, room: str, caption: str, lang: str, n: int, text: str, *, reason: str = ""
    ) -> Appended | Refusal:
        """With a `reason` there is no translation."""
        kind = EntryKind.UNTRANSLATED if reason else EntryKind.TRANSLATION
        said = {"caption": caption, "lang": lang, "n": n, "kind": kind.value, "text": reason or text}
        reply = await self._run(APPEND_TRANSLATION, room, **said)
        if isinstance(reply, Refusal):
            return reply
        _, seq, at_ms, instances = reply
        return Appended(seq, at_ms, False, [], _texts(instances))

    async def expire_pending(self, room: str) -> Visited | Refusal:
        """End what is overdue. What is read here is as old as the claim that goes with it."""
        claim = self._claims.pop(room, 0)
        reply = await self._run(EXPIRE_PENDING, room, limit=MAX_EXPIRED)
        if isinstance(reply, Refusal):
            return reply
        _, at_ms, expired, instances, next_ms, over = reply
        entries = [
            Entry(seq, EntryKind.UNTRANSLATED, caption.decode(), lang.decode(), TIMEOUT, at_ms=at_ms)
            for seq, caption, lang in expired
        ]
        return Visited(entries, _texts(instances), next_ms, over.decode(), claim)

    async def read(self, room: str, after: int, count: int, upto: int = 0) -> list[Entry]:
        """The entries after a seq, up to and with another if it is given. Also of a closed room."""
        last = str(upto) if upto else "+"
        rows = await self.redis.call("XRANGE", self.keys.room_log(room), f"{after + 1}-0", last, "COUNT", count)
        return [_entry(id, fields) for id, fields in rows]

    async def original(self, room: str, caption: str) -> Entry | None:
        """None: the log does not have it, or not any more."""
        row = await self.caption(room, caption)
        return await self.entry(room, row.seq) if row is not None else None

    async def entry(self, room: str, seq: int) -> Entry | None:
        found = await self.read(room, seq - 1, 1, seq)
        return found[0] if found else None

    async def caption(self, room: str, caption: str) -> CaptionState | None:
        """None: the log does not have it, or not any more."""
        row = await self.redis.call("HGET", self.keys.room_captions(room), caption)
        return _decode_caption(row) if row is not None else None

    async def pending(self, room: str) -> list[tuple[str, str]]:
        """Caption and language of everything that is planned and has no end yet."""
        members = await self.redis.call("ZRANGE", self.keys.room_pending(room), 0, -1)
        pairs = (member.decode().partition("|") for member in members)
        return [(caption, lang) for lang, _, caption in pairs]

    async def read_all(self, room: str) -> list[Entry]:
        """The whole log, as far as it is kept. Also of a closed room."""
        entries: list[Entry] = []
        while page := await self.read(room, entries[-1].seq if entries else 0, READ_PAGE):
            entries += page
        return entries

    async def last(self, room: str, captions: int) -> int:
        """The seq after which the last `captions` captions lie, 1000 at most."""
        recent = self.keys.room_recent(room)
        found, first = await asyncio.gather(
            self.redis.call("LINDEX", recent, -captions), self.redis.call("LINDEX", recent, 0)
        )
        return max(int(found or first or 0) - 1, 0)

    # -- reports ---------------------------------------------------------------------------------

    async def info(self, room: str) -> RoomInfo | None:
        """Also of a closed room."""
        flat = await self.redis.call("HGETALL", self.keys.room_info(room))
        fields = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        if not fields:
            return None
        empty_since = fields["empty_since_ms"]
        texts = {name: fields[name].decode() for name in ("code", "tenant", "creator", "log_epoch", "closed")}
        numbers = {name: int(fields[name]) for name in ("created_ms", "seq", "version", "joins", "active_ms")}
        flags = {name: fields[name] == b"1" for name in ("locked", "paused", "persistent")}
        values: dict[str, Any] = {**texts, **numbers, **flags, "settings": fields["settings"]}
        return RoomInfo(room=room, empty_since_ms=int(empty_since) if empty_since else None, **values)

    async def members(self, room: str) -> list[Member]:
        return [_decode_member(each) for each in await self.redis.call("HVALS", self.keys.room_members(room))]

    async def member(self, room: str, session: str) -> Member | None:
        found = await self.redis.call("HGET", self.keys.room_members(room), session)
        return _decode_member(found) if found is not None else None

    async def counts(self, room: str) -> RoomCounts:
        flat, found = await self.redis.call("HGETALL", self.keys.room_counts(room)), RoomCounts()
        by_prefix = {"i": found.instances, "h": found.heard, "v": found.voices}
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            prefix, _, rest = name.decode().partition(":")
            if prefix in by_prefix:
                by_prefix[prefix][rest] = int(value)
        return found

    async def caption_count(self, room: str) -> int:
        """Captions that the log has."""
        return int(await self.redis.call("HLEN", self.keys.room_captions(room)))

    async def state(self, room: str) -> RoomState | None:
        """None if the room does not exist."""
        names = ("version", "seq", "appended_ms", "log_epoch", "closed")
        found = await self.redis.call("HMGET", self.keys.room_info(room), *names)
        if found[4] is None:
            return None
        return RoomState(int(found[0]), int(found[1]), found[3].decode(), int(found[2] or 0), found[4].decode())

    # -- the index of visits ---------------------------------------------------------------------

    async def announce(self, room: str, after_ms: int) -> None:
        """Before an append. The room is visited after this time at the latest, and not only before the append."""
        guard = self.bounds.translate_timeout_ms
        await self._index(ANNOUNCE_ROOM, room=room, after=after_ms, guard=guard, ttl=ANNOUNCED_TTL_MS)

    async def claim_due(self, limit: int, claim_ms: int) -> list[str]:
        """The rooms to visit now. Each must be scheduled or forgotten; if not, it is due again when the claim ends."""
        until, rooms = await self._index(CLAIM_DUE_ROOMS, limit=limit, claim=claim_ms)
        claimed = _texts(rooms)
        lasting = {room: end for room, end in self._claims.items() if end > until - claim_ms}
        self._claims = lasting | dict.fromkeys(claimed, until)
        return claimed

    async def schedule(self, room: str, after_ms: int, claim: int) -> None:
        """After a visit, with its claim. It delays no visit that was announced or scheduled after that claim."""
        await self._index(SCHEDULE_ROOM, room=room, after=after_ms, claimed=claim)

    async def forget_due(self, room: str) -> None:
        """The room is closed or does not exist. One that was just announced stays in the index."""
        self._claims.pop(room, None)
        await self._index(FORGET_DUE_ROOM, room=room)

    async def open_rooms(self, offset: int, limit: int) -> list[str]:
        """A page of the index; a room in it may be closed already."""
        return _texts(await self.redis.call("ZRANGE", self.keys.rooms_due, offset, offset + limit - 1))

    # -- the room of a session -------------------------------------------------------------------

    async def note_session(self, session: str, room: str, epoch: int) -> None:
        """Also to renew it. Whoever takes over the session's instance leaves the room for it."""
        await self.redis.call("SET", self.keys.session_room(session), f"{epoch}|{room}", "PX", MEMBERSHIP_TTL_MS)

    async def session_room(self, session: str) -> tuple[str, int] | None:
        found = await self.redis.call("GET", self.keys.session_room(session))
        if found is None:
            return None
        epoch, _, room = found.decode().partition("|")
        return room, int(epoch)

    async def forget_session(self, session: str) -> None:
        await self.redis.call("DEL", self.keys.session_room(session))

    # --------------------------------------------------------------------------------------------

    async def _run(self, script: Script, room: str, **given: Any) -> Any:
        """The reply of a script of one room, or its refusal."""
        keys = self.keys
        reply = await script(
            self.redis,
            info=keys.room_info(room),
            members=keys.room_members(room),
            seniority=keys.room_seniority(room),
            counts=keys.room_counts(room),
            log=keys.room_log(room),
            captions=keys.room_captions(room),
            recent=keys.room_recent(room),
            pending=keys.room_pending(room),
            removed=keys.room_removed(room),
            **self._time(),
            **self._bounds,
            **given,
        )
        return Refusal(reply.decode()) if isinstance(reply, bytes) else reply

    def _time(self) -> dict[str, int]:
        return {"now": self._now()} if self._now is not None else {}

    def _index(self, script: Script, **given: Any) -> "asyncio.Future[Any]":
        due, announced = self.keys.rooms_due, self.keys.rooms_announced
        return script(self.redis, due=due, announced=announced, **self._time(), **given)


def _texts(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]


def _left(reply: Any) -> Left | Refusal:
    if isinstance(reply, Refusal):
        return reply
    _, version, instances, host, members, instance = reply
    return Left(version, _texts(instances), host.decode(), members, instance.decode())


def _changed(reply: Any) -> Changed | Refusal:
    return reply if isinstance(reply, Refusal) else Changed(reply[1], _texts(reply[2]))


def _planned(lang: bytes, n: int, voice: int) -> Planned:
    return Planned(lang.decode(), n, bool(voice))


def _entry(id: bytes, fields: list[bytes]) -> Entry:
    _, kind, _, caption, _, lang, _, text, _, about = fields
    seq, _, at_ms = id.partition(b"-")
    kind_of = EntryKind(kind.decode())
    return Entry(int(seq), kind_of, caption.decode(), lang.decode(), text.decode(), about, int(at_ms))
