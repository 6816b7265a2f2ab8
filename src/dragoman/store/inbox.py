"""An instance's inbox: a stream that is read by one group, emptied as it is worked, and never trimmed.

    push ─▶ inbox ─XREADGROUP─▶ handled ─▶ done (XACK + XDEL)
                        │ fails again and again
                        └─▶ dead letter, with its reason

Always: added = done + pending + dead letters. `counts` keeps the first, second and last of these in
the same slot, moved by the same scripts that move the entries.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dragoman.store.errors import Refused
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated, Redis
from dragoman.store.script import Script

PUSH_ENTRY = Script.beside(__file__, "push_entry")
FINISH_ENTRIES = Script.beside(__file__, "finish_entries")
MOVE_TO_DLQ = Script.beside(__file__, "move_to_dlq")

MAX_ENTRY_BYTES = 2 * 1024 * 1024
VERSION = 1


class PushReply(StrEnum):
    OK = "OK"
    GONE = "GONE"  # the inbox is closed: look up the owner again
    FULL = "FULL"
    TOO_LARGE = "TOO_LARGE"  # no retry can help


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One entry as it was read. `kind` is empty when it cannot be understood; `newer` when a later release wrote it."""

    id: str
    kind: str
    data: bytes
    trace_id: str
    size: int
    newer: bool = False

    @classmethod
    def parse(cls, id: bytes, fields: Sequence[bytes] | None) -> "InboxEntry":
        pairs = dict(zip(fields[::2], fields[1::2], strict=False)) if fields else {}
        try:
            version, size = int(pairs.get(b"v", b"0")), int(pairs.get(b"size", b"0"))
            kind, trace = pairs.get(b"type", b"").decode(), pairs.get(b"trace_id", b"").decode()
        except ValueError:
            version, size, kind, trace = 0, 0, "", ""
        known = version >= 1 and b"data" in pairs
        return cls(id.decode(), kind if known else "", pairs.get(b"data", b""), trace, size, version > VERSION)


@dataclass(frozen=True, slots=True)
class Pending:
    id: str
    idle_ms: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class InboxCounts:
    added: int = 0
    done: int = 0
    dead: int = 0
    bytes: int = 0
    waiting: int = 0  # in the stream now, delivered or not

    @property
    def balanced(self) -> bool:
        return self.added == self.done + self.dead + self.waiting


@dataclass(frozen=True, slots=True)
class InboxSettings:
    group: str = "scheduler"
    maxlen: int = 10_000
    max_bytes: int = 256 * 1024 * 1024
    dlq_maxlen: int = 10_000
    dead_letters: bool = True


class Inboxes:
    """Every instance's inbox, seen from here."""

    def __init__(self, redis: Redis, keys: Keys, settings: InboxSettings) -> None:
        self.redis, self.keys, self.settings = redis, keys, settings

    async def push(self, instance: str, kind: str, data: bytes, trace_id: str = "") -> PushReply:
        return (await self.put(instance, kind, data, trace_id))[0]

    async def put(self, instance: str, kind: str, data: bytes, trace_id: str = "") -> tuple[PushReply, str]:
        """The same, and the id of the entry: one can `get` it until it is done."""
        if len(data) > MAX_ENTRY_BYTES:
            return PushReply.TOO_LARGE, ""
        reply = await self._put(instance, kind, data, trace_id, 1.0)
        word, _, id = reply.decode().partition(" ")
        return PushReply(word), id

    def offer(self, instance: str, kind: str, data: bytes, share: float) -> "asyncio.Future[bytes]":
        """Push an entry that may be lost: FULL if the inbox is fuller than `share` of its limits. Started; the caller
        does not wait, and reads the answer with `verdict_of`."""
        return self._put(instance, kind, data, "", share)

    @staticmethod
    def verdict_of(answer: "asyncio.Future[bytes]") -> PushReply | None:
        """None: Redis is unavailable, and the entry is lost or not."""
        if answer.cancelled() or answer.exception() is not None:
            return None
        return PushReply(answer.result().decode().partition(" ")[0])

    def _put(self, instance: str, kind: str, data: bytes, trace_id: str, share: float) -> "asyncio.Future[bytes]":
        return PUSH_ENTRY(
            self.redis,
            opened=self.keys.open(instance),
            inbox=self.keys.inbox(instance),
            counts=self.keys.counts(instance),
            maxlen=int(self.settings.maxlen * share),
            max_bytes=int(self.settings.max_bytes * share),
            size=len(data),
            kind=kind,
            trace=trace_id,
            data=data,
        )

    def reader(self, instance: str) -> Dedicated:
        return Dedicated(self.redis, self.keys.inbox(instance), "inbox-reader")

    async def read(self, reader: Dedicated, instance: str, count: int, block_ms: int) -> list[InboxEntry]:
        """New entries, waiting up to `block_ms` for the first."""
        inbox = self.keys.inbox(instance)
        command = ("XREADGROUP", "GROUP", self.settings.group, instance, "COUNT", count, "BLOCK", block_ms)
        reply = await reader.call(*command, "STREAMS", inbox, ">", patience_s=block_ms / 1000 + 5)
        return [InboxEntry.parse(id, fields) for id, fields in reply[0][1]] if reply else []

    async def own(self, instance: str, count: int) -> list[InboxEntry]:
        """Entries that were delivered and are not done, oldest first; for a takeover."""
        _, entries = await self._take_over(instance, "takeover", 0, "-", count)
        return entries

    async def unread(self, instance: str, count: int) -> list[InboxEntry]:
        """Entries that were never delivered; for a takeover, so they go to the consumer `takeover`."""
        reader = Dedicated(self.redis, self.keys.inbox(instance), "takeover")
        try:
            command = ("XREADGROUP", "GROUP", self.settings.group, "takeover", "COUNT", count)
            reply = await reader.call(*command, "STREAMS", self.keys.inbox(instance), ">", patience_s=5)
        finally:
            await reader.close()
        return [InboxEntry.parse(id, fields) for id, fields in reply[0][1]] if reply else []

    async def done(self, instance: str, entries: Sequence[InboxEntry]) -> int:
        return int(await self.finishing(instance, entries))

    def finishing(self, instance: str, entries: Sequence[InboxEntry]) -> "asyncio.Future[int]":
        """The same, started: for a caller that does not wait."""
        flat: list[Any] = []
        for entry in entries:
            flat += (entry.id, entry.size)
        keys = {"inbox": self.keys.inbox(instance), "counts": self.keys.counts(instance)}
        return FINISH_ENTRIES(self.redis, **keys, group=self.settings.group, entries=flat)

    async def get(self, instance: str, id: str) -> InboxEntry | None:
        rows = await self.redis.call("XRANGE", self.keys.inbox(instance), id, id)
        return InboxEntry.parse(*rows[0]) if rows else None

    async def pending(self, instance: str, min_idle_ms: int, count: int, after: str = "") -> list[Pending]:
        """Entries that were delivered and are not done, oldest first, `count` at a time."""
        key, group, start = self.keys.inbox(instance), self.settings.group, f"({after}" if after else "-"
        rows = await self.redis.call("XPENDING", key, group, "IDLE", min_idle_ms, start, "+", count)
        return [Pending(id.decode(), int(idle), int(deliveries)) for id, _, idle, deliveries in rows]

    async def claim(self, instance: str, id: str, min_idle_ms: int) -> bool:
        """Claim one pending entry, unless it was claimed within `min_idle_ms`."""
        key, group = self.keys.inbox(instance), self.settings.group
        return bool(await self.redis.call("XCLAIM", key, group, instance, min_idle_ms, id, "JUSTID"))

    async def reclaim(
        self, instance: str, min_idle_ms: int, count: int, start: str = "-"
    ) -> tuple[str, list[InboxEntry]]:
        """Entries that have been pending too long, for another try; and where to go on."""
        return await self._take_over(instance, instance, min_idle_ms, start, count)

    async def _take_over(
        self, instance: str, consumer: str, min_idle_ms: int, start: str, count: int
    ) -> tuple[str, list[InboxEntry]]:
        key, group = self.keys.inbox(instance), self.settings.group
        reply = await self.redis.call("XAUTOCLAIM", key, group, consumer, min_idle_ms, start, "COUNT", count)
        there = [row for row in reply[1] if row is not None]
        if len(there) < len(reply[1]):
            await self._acknowledge_deleted(key, consumer)
        return reply[0].decode(), [InboxEntry.parse(id, fields) for id, fields in there]

    async def _acknowledge_deleted(self, key: str, consumer: str) -> None:
        """Entries deleted while they were pending: 6.2 hands them on for ever, as nil that does not say which."""
        group = self.settings.group
        rows = await self.redis.call("XPENDING", key, group, "-", "+", self.settings.maxlen, consumer)
        found = [(id, self.redis.call("XRANGE", key, id, id)) for id, *_ in rows]
        gone = [id for id, row in found if not await row]
        if gone:
            await self.redis.call("XACK", key, group, *gone)

    async def dead_letter(self, instance: str, id: str, reason: str, deliveries: int) -> str:
        """Move one entry to the dead letters: 'OK', 'FULL' or 'NONE'."""
        # Indexed first: a letter that is not in the index is never found.
        await self.redis.call("SADD", self.keys.dlq_instances, instance)
        reply = await MOVE_TO_DLQ(
            self.redis,
            inbox=self.keys.inbox(instance),
            dlq=self.keys.dlq(instance),
            counts=self.keys.counts(instance),
            group=self.settings.group,
            id=id,
            maxlen=self.settings.dlq_maxlen,
            reason=reason,
            deliveries=deliveries,
        )
        if reply == b"OK":
            # And again: an operator that saw no letters meanwhile may have removed the name from the index.
            await self.redis.call("SADD", self.keys.dlq_instances, instance)
        return str(reply.decode())

    async def ensure_group(self, instance: str) -> None:
        """The group may be gone with a Redis that lost its data."""
        key = self.keys.inbox(instance)
        try:
            await self.redis.call_at(key, "XGROUP", "CREATE", key, self.settings.group, "0", "MKSTREAM")
        except Refused as error:
            if error.word != "BUSYGROUP":
                raise

    async def counts(self, instance: str) -> InboxCounts:
        """The balance of an inbox. Read in two commands: exact only while nothing is pushed."""
        flat, waiting = await asyncio.gather(
            self.redis.call("HGETALL", self.keys.counts(instance)),
            self.redis.call("XLEN", self.keys.inbox(instance)),
        )
        have = {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
        return InboxCounts(**{k: v for k, v in have.items() if k in InboxCounts.__slots__}, waiting=int(waiting))

    async def oldest_ms(self, instance: str) -> int | None:
        """Since when (ms of Redis) the oldest entry that was handed out is not done; None: there is none."""
        try:
            found = await self.redis.call("XPENDING", self.keys.inbox(instance), self.settings.group)
        except Refused:  # the group does not exist
            return None
        return int(found[1].partition(b"-")[0]) if found and found[0] else None
