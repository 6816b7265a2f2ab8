"""The shards of chat in Redis: one slot each, with its two streams, its counts, its claims and its lease.

    accept ─▶ accepted ─deliver stage─▶ to_save ─save stage─▶ (a row)
                                             └─▶ dead

Every script that moves an entry compares the lease first, so a holder that was overtaken changes nothing. At any
time: accepted = saved + dead + backlog, kept by the same scripts that move the entries.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from dragoman.domain.chat.shards import shard_of, tag
from dragoman.domain.limits.rates import DAY_S, cost
from dragoman.store.errors import Refused
from dragoman.store.instances import DELETE_IF_EQUAL, RENEW_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated, Redis
from dragoman.store.script import Script

ACCEPT_MESSAGE = Script.beside(__file__, "accept_message")
SPEND_BYTES = Script.beside(__file__, "spend_bytes")
REMEMBER_MESSAGE = Script.beside(__file__, "remember_message")
RAISE_LAST_ID = Script.beside(__file__, "raise_last_id")
TAKE_LEASE = Script.beside(__file__, "take_lease")
READ_ENTRIES = Script.beside(__file__, "read_entries")
MOVE_TO_SAVE = Script.beside(__file__, "move_to_save")
FINISH_SAVED = Script.beside(__file__, "finish_saved")
MOVE_TO_DEAD = Script.beside(__file__, "move_to_dead")
TRIM_DEAD_LETTERS = Script.beside(__file__, "trim_dead_letters")

CONSUMER = "holder"
PAGE = 200  # entries of a stream that are searched at a time
VERSION = 1
DAY_MS = int(DAY_S * 1000)


class Accepted(StrEnum):
    OK = "OK"
    DUPLICATE = "DUPLICATE"  # accepted before, not saved yet
    SAVED = "SAVED"  # accepted before, and saved
    DUPLICATE_OTHER = "DUPLICATE_OTHER"  # the same, and this body is another one or the first is not known
    SAVED_OTHER = "SAVED_OTHER"
    MISMATCH = "MISMATCH"  # the same clientMsgId to another receiver
    OVER = "OVER"  # its sender has stored as much as it may in a day
    BUSY = "BUSY"
    STALE_ID = "STALE_ID"  # the shard has seen a higher serverMsgId


class Entry(msgspec.Struct, frozen=True):
    """One message in a stream. All its fields are texts there."""

    entry: str
    id: int
    client_msg_id: str
    sender: int
    to: int
    msg_type: str
    body: str
    sent_ms: int
    created_ms: int
    producer: str
    mode: str
    pushed_to: str = ""

    @classmethod
    def parse(cls, entry: bytes, fields: Sequence[bytes] | None) -> "Entry | Unreadable":
        """What cannot be understood keeps its id, to be moved aside; `newer` is for a later release."""
        texts: dict[str, str] = {}
        try:
            pairs = fields or ()
            texts = {k.decode(): v.decode() for k, v in zip(pairs[::2], pairs[1::2], strict=True)}
            if int(texts["v"]) > VERSION:
                return Unreadable(entry.decode(), "written by a later release", texts, newer=True)
            return cls(
                entry.decode(), int(texts["serverMsgId"]), texts["clientMsgId"], int(texts["fromUserId"]),
                int(texts["toUserId"]), texts["msgType"], texts["body"], int(texts["sendTs"]),
                int(texts["createdAtMs"]), texts["producerServerId"], texts["mode"], texts.get("pushedTo", ""),
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            return Unreadable(entry.decode(), f"it cannot be read: {error!r}", texts)

    def fields(self) -> list[str | int]:
        return [
            "serverMsgId", self.id, "clientMsgId", self.client_msg_id, "fromUserId", self.sender, "toUserId", self.to,
            "msgType", self.msg_type, "body", self.body, "sendTs", self.sent_ms, "createdAtMs", self.created_ms,
            "producerServerId", self.producer, "mode", self.mode, "v", VERSION,
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """An entry that is a row: the id of that, and how often its sender asked again before it was told last.

    `duplicate`: the row is that of an earlier message with another body, which stands in `entry` now.
    """

    entry: Entry
    row: int
    asked: int = 0
    duplicate: bool = False

    def parts(self) -> tuple[str | int, ...]:
        return self.entry.entry, self.entry.sender, self.entry.id, self.row, self.asked


@dataclass(frozen=True, slots=True)
class Unreadable:
    entry: str
    why: str
    fields: dict[str, str]
    newer: bool = False


@dataclass(frozen=True, slots=True)
class Tally:
    """What one shard has done and has before it."""

    backlog: int = 0
    accepted: int = 0
    saved: int = 0
    dead: int = 0  # ever: what will never be a row
    fence: int = 0
    holder: str = ""
    accepted_len: int = 0
    accepted_pending: int = 0
    to_save_len: int = 0
    to_save_pending: int = 0
    dead_len: int = 0
    dropped: int = 0  # dead letters ever, for want of room or for their age
    # Since when the oldest entry that was given out is not done; 0: there is none. A moment, not a count to compare.
    oldest_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Names:
    """Streams and groups as configured; the streams' names without the shard's tag."""

    accepted: str
    to_save: str
    deliver_group: str
    save_group: str


@dataclass(frozen=True, slots=True)
class Keep:
    """How many dead letters a shard keeps, and for how long."""

    letters: int = 1000
    ms: int = 30 * 86_400_000


class Shards:
    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        names: Names,
        shards: int,
        claim_ttl_ms: int,
        keep: Keep | None = None,
        bytes_per_day: int = 0,
    ) -> None:
        self.redis, self.keys, self.names, self.count, self.claim_ttl_ms = redis, keys, names, shards, claim_ttl_ms
        self.keep_dead, self.bytes_per_day = keep or Keep(), bytes_per_day
        self._tags = [tag(shard) for shard in range(shards)]
        self._fixed = [
            (self.accepted(shard), keys.shard(self._tags[shard]), keys.unsaved(self._tags[shard]))
            for shard in range(shards)
        ]

    def of(self, user: int) -> int:
        return shard_of(user, self.count)

    def accepted(self, shard: int) -> str:
        return f"{self.names.accepted}:{{{self._tags[shard]}}}"

    def to_save(self, shard: int) -> str:
        return f"{self.names.to_save}:{{{self._tags[shard]}}}"

    def dead(self, shard: int) -> str:
        return self.keys.dead(self._tags[shard])

    # -- accepting -------------------------------------------------------------------------------

    async def accept(
        self, message: Entry, digest: str, share: int, redis: Redis | None = None, *, free: bool = False
    ) -> tuple[Accepted, int]:
        """Claim and append in one step; the number is the serverMsgId, the backlog, the bytes of the sender's day or
        the shard's last id. `free`: the sender's quota does not count."""
        shard = self.of(message.sender)
        accepted, counts, unsaved = self._fixed[shard]
        word, number = await ACCEPT_MESSAGE(
            redis or self.redis,
            claim=self.keys.claim(self._tags[shard], message.sender, message.client_msg_id),
            accepted=accepted,
            shard=counts,
            unsaved=unsaved,
            id=message.id,
            to=message.to,
            digest=digest,
            sender=message.sender,
            share=share,
            ttl=self.claim_ttl_ms,
            spent=self.keys.spent(self._tags[shard], message.sender),
            size=cost(message.body),
            quota=0 if free else self.bytes_per_day,
            day=DAY_MS,
            fields=message.fields(),
        )
        return Accepted(word.decode()), int(number)

    async def spend(self, sender: int, size: int) -> tuple[int, float]:
        """The sender stored so many bytes past `accept`; the bytes of its day, and the seconds that are left of it."""
        used, left_ms = await SPEND_BYTES(self.redis, spent=self._spent(sender), size=size, day=DAY_MS)
        return int(used), max(int(left_ms), 0) / 1000

    async def spent(self, sender: int) -> tuple[int, float]:
        """The same without storing anything."""
        key = self._spent(sender)
        used, left_ms = await asyncio.gather(self.redis.call("GET", key), self.redis.call("PTTL", key))
        return int(used or 0), max(int(left_ms), 0) / 1000

    def _spent(self, sender: int) -> str:
        return self.keys.spent(self._tags[self.of(sender)], sender)

    def remember(self, sender: int, client_msg_id: str, id: int, to: int, digest: str) -> "asyncio.Future[bytes]":
        """A message that was saved at once: its claim, and its id. On its way when this returns."""
        shard = self.of(sender)
        claim, counts = self.keys.claim(self._tags[shard], sender, client_msg_id), self._fixed[shard][1]
        return REMEMBER_MESSAGE(
            self.redis, claim=claim, shard=counts, id=id, to=to, digest=digest, ttl=self.claim_ttl_ms
        )

    def rise(self, sender: int, id: int) -> "asyncio.Future[bytes]":
        """The same without a claim."""
        return RAISE_LAST_ID(self.redis, shard=self._fixed[self.of(sender)][1], id=id)

    async def unsaved(self, user: int) -> int:
        """How many accepted messages of this sender are not rows yet."""
        return int(await self.redis.call("HGET", self._fixed[self.of(user)][2], user) or 0)

    async def last_id(self, user: int) -> int:
        """The highest serverMsgId in the shard of this sender, as far as it was told of."""
        return int(await self.redis.call("HGET", self._fixed[self.of(user)][1], "last_id") or 0)

    async def unsaved_body(self, sender: int, id: int) -> str | None:
        """The body of an accepted message that is not a row yet.

        Entries go from `accepted` to `to_save`, and both are in the order of ids: what is in neither is a row or dead.
        """
        shard = self.of(sender)
        for stream in (self.accepted(shard), self.to_save(shard)):
            start = "-"
            while rows := await self.redis.call("XRANGE", stream, start, "+", "COUNT", PAGE):
                for row in rows:
                    entry = Entry.parse(*row)
                    if isinstance(entry, Entry) and entry.id == id:
                        return entry.body
                start = f"({rows[-1][0].decode()}"
        return None

    async def claim(self, sender: int, client_msg_id: str) -> dict[str, str]:
        key = self.keys.claim(self._tags[self.of(sender)], sender, client_msg_id)
        flat = await self.redis.call("HGETALL", key)
        return {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}

    # -- the lease -------------------------------------------------------------------------------

    async def take(self, shard: int, instance: str, fence: int, ttl_ms: int) -> int:
        """The fence of a lease that is ours now, or 0."""
        keys, name = self.keys, self._tags[shard]
        lease, counts = keys.lease(name), keys.shard(name)
        reply = await TAKE_LEASE(self.redis, lease=lease, shard=counts, instance=instance, fence=fence, ttl=ttl_ms)
        return int(reply[1]) if reply[0] == b"OK" else 0

    async def keep(self, shard: int, holder: str, ttl_ms: int) -> bool:
        lease = self.keys.lease(self._tags[shard])
        return bool(await RENEW_IF_EQUAL(self.redis, key=lease, value=holder, ttl=ttl_ms) == b"OK")

    async def release(self, shard: int, holder: str) -> None:
        await DELETE_IF_EQUAL(self.redis, key=self.keys.lease(self._tags[shard]), value=holder)

    # -- the streams -----------------------------------------------------------------------------

    async def ensure_groups(self, shard: int) -> None:
        """From the very beginning: a group made at `$` would never see what was accepted before it."""
        for stream, group in self._stages(shard):
            try:
                await self.redis.call_at(stream, "XGROUP", "CREATE", stream, group, "0", "MKSTREAM")
            except Refused as error:
                if error.word != "BUSYGROUP":
                    raise

    def _stages(self, shard: int) -> tuple[tuple[str, str], tuple[str, str]]:
        names = self.names
        return (self.accepted(shard), names.deliver_group), (self.to_save(shard), names.save_group)

    def reader(self, shard: int) -> Dedicated:
        return Dedicated(self.redis, self.accepted(shard), f"chat-reader-{shard}")

    async def next_accepted(
        self, reader: Dedicated, shard: int, holder: str, after: str, count: int, block_ms: int
    ) -> list[Entry | Unreadable] | None:
        """New entries (after `>`), waiting for the first; or those left pending, after an id. None when fenced.

        Who waits takes nothing, so that one whose lease lapses meanwhile goes away with empty hands.
        """
        found, newest = await self._next(shard, 0, holder, after, count)
        if found == [] and after == ">":
            command = ("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self.accepted(shard), newest)
            if await reader.call(*command, patience_s=block_ms / 1000 + 5):
                found, _ = await self._next(shard, 0, holder, after, count)
        return found

    async def next_to_save(self, shard: int, holder: str, after: str, count: int) -> list[Entry | Unreadable] | None:
        """The same for the save stage, without waiting."""
        return (await self._next(shard, 1, holder, after, count))[0]

    async def _next(
        self, shard: int, stage: int, holder: str, after: str, count: int
    ) -> tuple[list[Entry | Unreadable] | None, str]:
        stream, group = self._stages(shard)[stage]
        keys = {"lease": self.keys.lease(self._tags[shard]), "stream": stream}
        said = {"holder": holder, "group": group, "consumer": CONSUMER, "after": after, "count": count}
        match await READ_ENTRIES(self.redis, **keys, **said):
            case [b"OK", entries]:
                return [Entry.parse(entry, fields) for entry, fields in entries], ""
            case [b"NONE", newest]:
                return [], newest.decode()
        return None, ""

    async def moved(
        self, shard: int, holder: str, entries: Sequence[tuple[str, str]], tried: Collection[str] = ()
    ) -> int | None:
        """Entries and whom each was pushed to go on to the save stage; how many did, or None when fenced.

        `tried`: entries of which a push was tried, whatever came of it.
        """
        flat = [part for entry, to in entries for part in (entry, to, int(bool(to) or entry in tried))]
        keys = {"lease": self.keys.lease(self._tags[shard]), "accepted": self.accepted(shard)}
        group = self.names.deliver_group
        to_save = self.to_save(shard)
        reply = await MOVE_TO_SAVE(self.redis, **keys, to_save=to_save, holder=holder, group=group, entries=flat)
        return int(reply[1]) if reply[0] == b"OK" else None

    async def saved(self, shard: int, holder: str, rows: Sequence[SavedEntry]) -> list[SavedEntry] | None:
        """Redis is done with them, but for those whose sender has asked again since it was told; None when fenced.

        Those that stay are answered with how often their senders have asked by now.
        """
        name, keys = self._tags[shard], self.keys
        reply = await FINISH_SAVED(
            self.redis,
            lease=keys.lease(name),
            to_save=self.to_save(shard),
            shard=keys.shard(name),
            unsaved=keys.unsaved(name),
            claims=[keys.claim(name, row.entry.sender, row.entry.client_msg_id) for row in rows],
            holder=holder,
            group=self.names.save_group,
            entries=[part for row in rows for part in row.parts()],
        )
        if reply[0] != b"OK":
            return None
        stay = zip(reply[1::2], reply[2::2], strict=True)
        return [replace(rows[int(number) - 1], asked=int(asked)) for number, asked in stay]

    async def move_to_dead(
        self,
        shard: int,
        holder: str,
        what: Entry | Unreadable,
        reason: str,
        tries: int,
        *,
        asked: int = 0,
        from_accepted: bool = False,
        keep: bool = True,
    ) -> int | None:
        """One entry becomes a dead letter, unless its sender has asked again more often than `asked`.

        0: it is one, or was dealt with before; else how often its sender has asked. None when fenced. Without `keep`
        it is dropped instead.
        """
        name, keys = self._tags[shard], self.keys
        if isinstance(what, Entry):
            sender, client, id = str(what.sender), what.client_msg_id, str(what.id)
        else:
            sender, client = what.fields.get("fromUserId", "?"), what.fields.get("clientMsgId", "?")
            id = what.fields.get("serverMsgId", "?")
        stream, group = self._stages(shard)[0 if from_accepted else 1]
        reply = await MOVE_TO_DEAD(
            self.redis,
            lease=keys.lease(name),
            source=stream,
            dead=self.dead(shard),
            shard=keys.shard(name),
            unsaved=keys.unsaved(name),
            claim=keys.claim(name, sender, client),
            holder=holder,
            group=group,
            entry=what.entry,
            sender=sender,
            id=id,
            reason=reason[:500],
            tries=tries,
            keep=int(keep),
            notified=asked,
        )
        match reply:
            case [b"REPEATED", repeats]:
                return int(repeats)
            case [b"FENCED"]:
                return None
        if keep:
            await self.trim(shard)
        return 0

    async def trim(self, shard: int) -> int:
        """Dead letters that are too old or too many go; how many did."""
        counts = self._fixed[shard][1]
        return int(
            await TRIM_DEAD_LETTERS(
                self.redis,
                dead=self.dead(shard),
                shard=counts,
                max_letters=self.keep_dead.letters,
                max_age=self.keep_dead.ms,
            )
        )

    async def newest_to_save(self, shard: int) -> str:
        """The last entry that waits to be saved, or ''."""
        rows = await self.redis.call("XREVRANGE", self.to_save(shard), "+", "-", "COUNT", 1)
        return rows[0][0].decode() if rows else ""

    # -- what can be seen ------------------------------------------------------------------------

    async def tally(self, shard: int) -> Tally:
        name, call = self._tags[shard], self.redis.call
        (accepted, deliver), (to_save, save) = self._stages(shard)
        futures = [
            call("HMGET", self.keys.shard(name), "backlog", "accepted", "saved", "dead", "fence", "dropped"),
            call("GET", self.keys.lease(name)),
            call("XLEN", accepted),
            call("XPENDING", accepted, deliver),
            call("XLEN", to_save),
            call("XPENDING", to_save, save),
            call("XLEN", self.dead(shard)),
        ]
        counts, holder, accepted_len, accepted_pending, to_save_len, to_save_pending, dead_len = await asyncio.gather(
            *map(_or_none, futures)
        )
        backlog, accepted_ever, saved, dead, fence, dropped = (int(count or 0) for count in counts)
        return Tally(
            backlog, accepted_ever, saved, dead, fence, (holder or b"").decode(), accepted_len or 0,
            _pending(accepted_pending),
            to_save_len or 0, _pending(to_save_pending), dead_len or 0, dropped,
            _oldest(accepted_pending, to_save_pending),
        )  # fmt: skip


def _oldest(*summaries: Any) -> int:
    """Of what XPENDING says of each stream: ids begin with the ms of Redis."""
    firsts = [summary[1] for summary in summaries if summary and summary[1]]
    return min((int(first.partition(b"-")[0]) for first in firsts), default=0)


async def _or_none(future: Any) -> Any:
    """A group that is not there yet has nothing pending."""
    try:
        return await future
    except Refused as error:
        if error.word != "NOGROUP":
            raise
        return None


def _pending(reply: Any) -> int:
    return int(reply[0]) if reply else 0
